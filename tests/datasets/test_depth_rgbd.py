"""Frames of depth cameras."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.datasets.depth import Rgbd
from protoformer.datasets.registry import open_dataset
from protoformer.errors import InputError
from protoformer.io.image import write_image

STEPS = np.array([[0, 1, 1500, 65535], [65534, 2000, 250, 0]], dtype=np.uint16)


@pytest.fixture
def scenes(tmp_path: Path, paint: Callable[..., Path]) -> Path:
    for scene, camera in (("kitchen", "fx fy cx cy (4x2): 292.5 292.5 1.5 0.5\n"), ("office", "250 251 2 1")):
        for frame in ("0000", "0012", "0002"):
            paint(tmp_path / scene / "rgb" / f"{frame}.jpg", 128, (2, 4))
            (tmp_path / scene / "depth").mkdir(exist_ok=True)
            write_image(tmp_path / scene / "depth" / f"{frame}.png", STEPS)
        (tmp_path / scene / "intrinsics.txt").write_text(camera)
    return tmp_path


def test_millimeters_are_meters_and_both_ends_are_none(scenes: Path) -> None:
    sample = Rgbd(scenes)[0]
    expected = torch.tensor([[0.0, 0.001, 1.5, 0.0], [65.534, 2.0, 0.25, 0.0]])[None, None]
    assert torch.allclose(sample.depth, expected) and torch.equal(sample.valid, expected > 0)
    camera = torch.tensor([[292.5, 0.0, 1.5], [0.0, 292.5, 0.5], [0.0, 0.0, 1.0]])
    assert sample.intrinsics is not None and torch.equal(sample.intrinsics[0], camera)


def test_scenes_come_one_after_another_or_as_chosen(scenes: Path) -> None:
    data = open_dataset("rgbd", scenes)
    assert data.names == tuple(
        f"{scene}/{frame}" for scene in ("kitchen", "office") for frame in ("0000", "0002", "0012")
    )
    assert data[5].names == ("office/0012",)
    assert Rgbd(scenes, scenes="office").names[0] == "office/0000"
    with pytest.raises(InputError, match="holds no attic; choose among kitchen, office"):
        Rgbd(scenes, scenes="attic")


@pytest.mark.parametrize("text", ["\n", "1 2 3", "1 2 3 4 5", "0 1 2 3", "a b c d", "nan 1 2 3"])
def test_a_camera_that_is_none_is_refused(scenes: Path, text: str) -> None:
    (scenes / "office" / "intrinsics.txt").write_text(text)
    with pytest.raises(InputError, match=r"intrinsics\.txt does not hold fx fy cx cy, four numbers in pixels"):
        Rgbd(scenes)


def test_what_is_missing_is_named(scenes: Path, tmp_path: Path) -> None:
    (scenes / "kitchen" / "depth" / "0002.png").unlink()
    data = Rgbd(scenes)
    with pytest.raises(InputError, match=r"0002\.png does not exist, but the depth of kitchen/0002 was expected"):
        data[1]
    (scenes / "office" / "intrinsics.txt").unlink()
    with pytest.raises(InputError, match="the intrinsics fx fy cx cy was expected there"):
        Rgbd(scenes)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no folders <scene>/rgb and <scene>/depth"):
        Rgbd(tmp_path / "empty")


def test_depth_of_another_kind_is_refused(scenes: Path) -> None:
    write_image(scenes / "office" / "depth" / "0000.png", np.ones((2, 4), dtype=np.uint8))
    with pytest.raises(InputError, match="not a depth in millimeters, which is 16-bit gray"):
        Rgbd(scenes)[3]


def test_the_real_scenes_are_read(benchmarks: Path) -> None:
    data = Rgbd(benchmarks / "RGBD")
    assert len(data) == 171
    for index in (0, 100):
        sample = data[index]
        assert sample.image.shape == (1, 3, 240, 320) and sample.valid.float().mean() > 0.5
        assert 0.5 < sample.depth[sample.valid].median() < 5
