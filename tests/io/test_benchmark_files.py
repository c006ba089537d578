"""The codecs read the public benchmarks' own files."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from protoformer.io.formats import (
    read_flo,
    read_kitti_disparity,
    read_kitti_flow,
    read_pfm_flow,
    valid_flow,
    write_flo,
    write_kitti_disparity,
    write_kitti_flow,
    write_pfm_flow,
)
from protoformer.io.image import read_image
from protoformer.viz.colormaps import flow_to_color


def sample(benchmarks: Path, name: str) -> Path:
    path = benchmarks / name
    if not path.is_file():
        pytest.skip(f"{name} is not among the benchmark samples")
    return path


def test_sintel_flow_and_frame_have_one_size(benchmarks: Path) -> None:
    flow = read_flo(sample(benchmarks, "Sintel/training/flow/alley_1/frame_0002.flo"))
    image = read_image(sample(benchmarks, "Sintel/training/clean/alley_1/frame_0002.png"))
    assert flow.shape == (436, 1024, 2)
    assert image.shape == (436, 1024, 3)
    assert valid_flow(flow).all()


def test_middlebury_marks_unknown_motion_which_is_painted_black(benchmarks: Path) -> None:
    flow = read_flo(sample(benchmarks, "Middlebury/other-gt-flow/RubberWhale/flow10.flo"))
    known = valid_flow(flow)
    assert 0.9 < known.mean() < 1
    assert np.abs(flow[known]).max() < 20
    pixels = flow_to_color(flow)
    np.testing.assert_array_equal((pixels == 0).all(axis=-1), ~known)


def test_kitti_flow_is_sparse_and_plausible(benchmarks: Path) -> None:
    path = sample(benchmarks, "KITTI-2012/training/flow_occ/000027_10.png")
    read = read_kitti_flow(path)
    image = read_image(sample(benchmarks, "KITTI-2012/training/image_0/000027_10.png"))
    assert read.valid.shape == image.shape[:2]
    assert 0.05 < read.valid.mean() < 0.9
    assert 1 < np.abs(read.flow[read.valid]).max() < 512
    stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED).astype(int)
    row, column = np.argwhere(read.valid)[1000]
    _, green, red = stored[row, column]
    assert read.flow[row, column].tolist() == [(red - 32768) / 64, (green - 32768) / 64]


@pytest.mark.parametrize("number", ["000027", "000138"])
def test_kitti_disparity_is_sparse_and_plausible(benchmarks: Path, number: str) -> None:
    path = sample(benchmarks, f"KITTI-2012/training/disp_occ/{number}_10.png")
    everywhere = read_kitti_disparity(path)
    unoccluded = read_kitti_disparity(sample(benchmarks, f"KITTI-2012/training/disp_noc/{number}_10.png"))
    image = read_image(sample(benchmarks, f"KITTI-2012/training/image_0/{number}_10.png"))
    assert everywhere.values.shape == everywhere.valid.shape == image.shape[:2]
    assert 0.05 < unoccluded.valid.mean() < everywhere.valid.mean() < 0.9
    assert 1 < everywhere.values[everywhere.valid].min() < everywhere.values.max() < 256
    np.testing.assert_array_equal(everywhere.values * 256, cv2.imread(str(path), cv2.IMREAD_UNCHANGED))
    # What both cameras see is a part of what one sees; the two files round to slightly different values.
    assert not (unoccluded.valid & ~everywhere.valid).any()
    assert np.abs(unoccluded.values - everywhere.values)[unoccluded.valid].max() < 1


def test_kitti_truth_survives_the_round_trip(benchmarks: Path, tmp_path: Path) -> None:
    flow = read_kitti_flow(sample(benchmarks, "KITTI-2012/training/flow_noc/000045_10.png"))
    write_kitti_flow(tmp_path / "flow.png", flow.flow, flow.valid)
    again = read_kitti_flow(tmp_path / "flow.png")
    np.testing.assert_array_equal(again.flow, flow.flow)
    np.testing.assert_array_equal(again.valid, flow.valid)
    disparity = read_kitti_disparity(sample(benchmarks, "KITTI-2012/training/disp_noc/000027_10.png"))
    write_kitti_disparity(tmp_path / "disparity.png", disparity.values)
    np.testing.assert_array_equal(read_kitti_disparity(tmp_path / "disparity.png").values, disparity.values)


def test_sintel_flow_is_written_back_byte_for_byte(benchmarks: Path, tmp_path: Path) -> None:
    path = sample(benchmarks, "Sintel/training/flow/market_5/frame_0002.flo")
    flow = read_flo(path)
    write_flo(tmp_path / "a.flo", flow)
    assert (tmp_path / "a.flo").read_bytes() == path.read_bytes()
    write_pfm_flow(tmp_path / "a.pfm", flow)
    np.testing.assert_array_equal(read_pfm_flow(tmp_path / "a.pfm"), flow)


def test_a_gray_kitti_frame_has_three_equal_channels(benchmarks: Path) -> None:
    image = read_image(sample(benchmarks, "KITTI-2012/training/image_0/000138_10.png"))
    np.testing.assert_array_equal(image[..., 0], image[..., 1])
    np.testing.assert_array_equal(image[..., 0], image[..., 2])


def test_a_flyingchairs_pair_is_read_from_ppm(benchmarks: Path) -> None:
    image = read_image(sample(benchmarks, "FlyingChairs/data/00001_img1.ppm"))
    flow = read_flo(sample(benchmarks, "FlyingChairs/data/00001_flow.flo"))
    assert image.shape == (384, 512, 3)
    assert flow.shape == (384, 512, 2)
    assert 0 <= image.min() < image.max() <= 1
