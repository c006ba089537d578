"""Public datasets on disk, read into the records that worlds make."""

from protoformer.data.check import CheckReport, check_dataset
from protoformer.data.registry import DATASETS, DatasetEntry, open_dataset
from protoformer.data.tree import Dataset

__all__ = ["DATASETS", "CheckReport", "Dataset", "DatasetEntry", "check_dataset", "open_dataset"]
