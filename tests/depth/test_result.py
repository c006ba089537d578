"""Depth is saved as files, images and point clouds, in meters."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.depth.metrics import depth_scores
from protoformer.errors import InputError
from protoformer.io.formats import read_kitti_depth, read_mm_depth
from protoformer.io.image import read_image

CAMERA = torch.tensor([[10.0, 0, 3], [0, 20.0, 2], [0, 0, 1]])


@pytest.fixture
def result() -> pf.DepthResult:
    """Of 8x6 pixels: from 1 to 4 m from left to right."""
    depth = torch.linspace(1, 4, 8).expand(1, 6, 8).clone()
    return pf.DepthResult(depth, torch.ones(1, 6, 8), (0.1, 10.0), CAMERA)


def test_files_hold_the_meters(result: pf.DepthResult, tmp_path: Path) -> None:
    result.save(tmp_path / "d.npy")
    assert np.array_equal(np.load(tmp_path / "d.npy"), result.depth[0].numpy())
    result.save(tmp_path / "mm.png", "mm")
    np.testing.assert_allclose(read_mm_depth(tmp_path / "mm.png").values, result.depth[0], atol=5.1e-4)
    result.save(tmp_path / "kitti.png", "kitti")
    np.testing.assert_allclose(read_kitti_depth(tmp_path / "kitti.png").values, result.depth[0], atol=1 / 512 + 1e-6)
    result.save(tmp_path / "colors.png")
    np.testing.assert_allclose(read_image(tmp_path / "colors.png") * 255, np.asarray(result.image()), atol=0.01)
    result.save(tmp_path / "points.ply", image=torch.rand(3, 6, 8))
    assert (tmp_path / "points.ply").read_bytes().startswith(b"ply\nformat binary_little_endian 1.0\n")


def test_points_lie_where_their_pixels_see_them(result: pf.DepthResult) -> None:
    image = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))
    cloud = result.points(image)
    assert len(cloud) == 48 and cloud.colors is not None
    back = cloud.points @ CAMERA.numpy().T
    x, y = np.meshgrid(np.arange(8), np.arange(6))
    np.testing.assert_allclose(back[:, 0] / back[:, 2], x.ravel(), atol=1e-5)
    np.testing.assert_allclose(back[:, 1] / back[:, 2], y.ravel(), atol=1e-5)
    np.testing.assert_allclose(cloud.points[:, 2], result.depth.flatten())
    assert np.array_equal(cloud.colors, (image * 255).round().byte().flatten(1).T.numpy())
    assert result.points().colors is None


def test_points_beside_a_step_of_depth_can_be_left_out(result: pf.DepthResult) -> None:
    step = torch.ones(1, 6, 8)
    step[..., 4:] = 2.0
    output = replace(result, depth=step)
    assert len(output.points()) == 48
    kept = output.points(jump=0.1)
    assert len(kept) == 36 and 3 not in np.rint(kept.points[:, 0] * 10 / kept.points[:, 2] + 3)
    assert len(output.points(jump=1.5)) == 48
    with pytest.raises(InputError, match="a jump of depth is a fraction over 0"):
        output.points(jump=0)


def test_alignment_is_that_of_the_evaluation(result: pf.DepthResult) -> None:
    truth = 0.5 * result.depth + 2 + 0.1 * torch.rand(1, 6, 8, generator=torch.Generator().manual_seed(3))
    aligned = result.aligned_to(truth)
    assert (aligned.kind, result.kind) == ("aligned", "metric")
    valid = torch.ones(1, 1, 6, 8, dtype=torch.bool)
    by_metrics = depth_scores(result.depth[None], truth[None], valid).aligned
    own = depth_scores(aligned.depth[None], truth[None], valid).metric
    assert own.rmse == pytest.approx(by_metrics.rmse, rel=1e-5)
    assert own.abs_rel == pytest.approx(by_metrics.abs_rel, rel=1e-5)


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 5.0), (0.01, 0.0), (-0.5, 20.0), (1.0, -2.0)])
def test_an_aligned_depth_has_a_range_that_holds_it(result: pf.DepthResult, scale: float, shift: float) -> None:
    """Whatever the reference is: the range that the network has says nothing of it."""
    truth = scale * result.depth + shift
    aligned = result.aligned_to(truth, torch.ones(1, 6, 8, dtype=torch.bool) & (truth > 0))
    torch.testing.assert_close(aligned.depth, truth.clamp_min(1e-3), rtol=1e-3, atol=1e-4)
    near, far = aligned.range
    assert near > 0 and near - 1e-6 <= float(aligned.depth.min()) <= float(aligned.depth.max()) <= far + 1e-5


def test_only_known_truth_is_aligned_to(result: pf.DepthResult) -> None:
    truth = 2 * result.depth[0]
    truth[0, 0], truth[0, 1], truth[0, 2] = math.nan, 0, -1
    wrong = torch.ones(6, 8, dtype=torch.bool)
    truth[5], wrong[5] = 9.0, False
    torch.testing.assert_close(result.aligned_to(truth, wrong).depth, 2 * result.depth)
    with pytest.raises(InputError, match="the reference has no valid depth to align to"):
        result.aligned_to(torch.zeros(6, 8))
    with pytest.raises(InputError, match=r"the reference has shape \(1, 3, 3\) and the depth \(1, 6, 8\)"):
        result.aligned_to(torch.ones(3, 3))
    with pytest.raises(InputError, match="give bool, one value per pixel"):
        result.aligned_to(torch.ones(6, 8), torch.ones(6, 8))


@pytest.mark.parametrize(
    ("name", "format", "sentence"),
    [
        ("d.jpg", None, "give one ending in .npy, .npz, .png or .ply"),
        ("d.npy", "mm", "give one ending in .png"),
        ("d.png", "exr", "there is no depth format 'exr'; choose one of npy, npz, mm, kitti, image, ply"),
    ],
)
def test_files_of_other_kinds_are_refused(
    result: pf.DepthResult, tmp_path: Path, name: str, format: str | None, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        result.save(tmp_path / name, format)
    assert not list(tmp_path.iterdir())


def test_an_image_of_another_size_has_no_colors_for_the_points(result: pf.DepthResult, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the image is 5x4 pixels and its depth 8x6; give the image"):
        result.points(torch.rand(3, 4, 5))
    with pytest.raises(InputError, match=r"give one ending in \.ply"):
        result.points().save(tmp_path / "points.txt")
