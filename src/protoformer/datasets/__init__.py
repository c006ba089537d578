"""Public datasets on disk, read into the sample dataclasses that synthetic scenes produce."""

from protoformer.datasets.registry import DATASETS, CheckReport, check_dataset, open_dataset

__all__ = ["DATASETS", "CheckReport", "check_dataset", "open_dataset"]
