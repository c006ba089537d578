"""Sample names from a manifest become file names: short enough, and inside the requested folder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from protoformer.datasets.manifest import ManifestFlow
from protoformer.errors import InputError
from protoformer.flow.evaluation import write_submission
from protoformer.viz.report import WorstSamples


def still(first: Tensor, second: Tensor) -> Tensor:
    return torch.zeros(2, *first.shape[-2:])


def test_no_name_of_a_manifest_leads_a_submission_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "data/manifest.csv").write_text("first,second\n../a.png,../a.png\n")
    with pytest.raises(InputError, match="would be written outside"):
        write_submission(ManifestFlow(tmp_path / "data"), still, "sintel", tmp_path / "deep/out")
    assert not (tmp_path / "deep").exists()


def test_the_worst_sample_may_have_a_long_name(tmp_path: Path) -> None:
    worst = WorstSamples(1)
    worst.offer(1.0, "d/" * 200, lambda: np.zeros((4, 4, 3), np.uint8))
    (path,) = worst.write(tmp_path)
    assert path.is_file()
