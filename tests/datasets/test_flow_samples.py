"""The datasets of flow read the public benchmarks' own files."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from protoformer.datasets.base import Dataset
from protoformer.datasets.registry import check_dataset, open_dataset
from protoformer.errors import InputError
from protoformer.geometry.warps import warp_back
from protoformer.io.formats import read_flo
from protoformer.synthetic.samples import FlowSample


def opened(benchmarks: Path, name: str, folder: str, split: str | None = None, **options: str) -> Dataset[FlowSample]:
    if not (benchmarks / folder).is_dir():
        pytest.skip(f"{folder} is not among the benchmark samples")
    return open_dataset(name, benchmarks / folder, split, **options)


def test_sintel_has_four_clean_and_three_final_pairs(benchmarks: Path) -> None:
    data = opened(benchmarks, "sintel", "Sintel")
    assert [name.partition("/")[0] for name in data.names] == ["clean"] * 4 + ["final"] * 3
    assert data.names[1] == "clean/alley_2/frame_0002"
    assert len(opened(benchmarks, "sintel", "Sintel", render_pass="final")) == 3
    sample = data[4]
    stored = read_flo(benchmarks / "Sintel/training/flow/alley_1/frame_0002.flo")
    hidden = cv2.imread(str(benchmarks / "Sintel/training/occlusions/alley_1/frame_0002.png"), 0) > 127
    invalid = cv2.imread(str(benchmarks / "Sintel/training/invalid/alley_1/frame_0002.png"), 0) > 127
    assert sample.first.shape == (1, 3, 436, 1024)
    assert sample.flow[0, :, 100, 200].tolist() == stored[100, 200].tolist()
    np.testing.assert_array_equal(sample.valid[0, 0].numpy(), ~invalid)
    row, column = np.mgrid[:436, :1024]
    x, y = column + stored[..., 0], row + stored[..., 1]
    leaves = ~invalid & ((x < 0) | (x > 1023) | (y < 0) | (y > 435))
    np.testing.assert_array_equal(sample.occlusion[0, 0].numpy(), hidden | leaves)


def test_the_motion_of_sintel_carries_the_second_image_onto_the_first(benchmarks: Path) -> None:
    sample = opened(benchmarks, "sintel", "Sintel", render_pass="clean")[0]
    seen = sample.valid & ~sample.occlusion
    still = (sample.first - sample.second).abs().masked_select(seen).mean()
    moved = (sample.first - warp_back(sample.second, sample.flow)).abs().masked_select(seen).mean()
    assert moved < still / 4


def test_middlebury_has_four_scenes_with_some_motion_unknown(benchmarks: Path) -> None:
    data = opened(benchmarks, "middlebury", "Middlebury")
    assert data.names == ("Dimetrodon", "Grove2", "RubberWhale", "Venus")
    whale = data[2]
    assert 0.9 < whale.valid.float().mean() < 1
    assert whale.flow.abs().max() < 20


def test_kitti_2012_has_two_pairs_with_all_truth_and_four_with_the_seen_one(benchmarks: Path) -> None:
    occ = opened(benchmarks, "kitti-2012", "KITTI-2012")
    noc = opened(benchmarks, "kitti-2012", "KITTI-2012", truth="noc")
    assert occ.names == ("000027", "000138")
    assert noc.names == ("000027", "000045", "000138", "000157")
    everywhere, seen = occ[0], noc[0]
    assert not (seen.valid & ~everywhere.valid).any() and seen.valid.sum() < everywhere.valid.sum()
    row, column = np.argwhere(everywhere.valid[0, 0].numpy())[1000]
    stored = cv2.imread(str(benchmarks / "KITTI-2012/training/flow_occ/000027_10.png"), cv2.IMREAD_UNCHANGED)
    _, green, red = (int(value) for value in stored[row, column])
    assert everywhere.flow[0, :, row, column].tolist() == [(red - 32768) / 64, (green - 32768) / 64]
    assert torch.equal(everywhere.first[:, 0], everywhere.first[:, 1])
    assert not torch.equal(noc[1].first[:, 0], noc[1].first[:, 1])


def test_five_chairs_are_there_and_no_file_that_splits_them(benchmarks: Path) -> None:
    data = opened(benchmarks, "flyingchairs", "FlyingChairs", "all")
    assert data.names == ("00001", "00002", "00003", "10000", "10002")
    stored = read_flo(benchmarks / "FlyingChairs/data/10002_flow.flo")
    assert data[4].flow[0, :, 7, 11].tolist() == stored[7, 11].tolist()
    assert data[4].valid.all()
    with pytest.raises(InputError, match=r"FlyingChairs_train_val\.txt does not exist"):
        opened(benchmarks, "flyingchairs", "FlyingChairs", "val")


def test_the_samples_are_whole(benchmarks: Path) -> None:
    report = check_dataset(opened(benchmarks, "kitti-2012", "KITTI-2012", truth="noc"))
    assert (report.num_samples, report.read, report.broken) == (4, 4, ())
