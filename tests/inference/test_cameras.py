"""The camera of an image: as told, as noted, or as assumed, and the result says which."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from protoformer.errors import InputError
from protoformer.files import focal_in_35mm
from protoformer.inference.cameras import ASSUMED_FOV, CameraHint, camera_of

SIZE = (30, 40)


def photograph(path: Path, focal: int) -> Path:
    """A photograph of 40x30 pixels whose file notes a focal length on 35 mm film."""
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = focal
    Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(path, exif=exif)
    return path


def test_a_focal_length_is_taken_as_it_is() -> None:
    camera = camera_of(SIZE, CameraHint(focal=33.0))
    assert camera.source == "given" and camera.focal == pytest.approx(33)
    assert camera.intrinsics.tolist() == [[33, 0, 19.5], [0, 33, 14.5], [0, 0, 1]]


def test_intrinsics_are_taken_as_they_are() -> None:
    given_ones = np.array([[20.0, 0, 3], [0, 45.0, 4], [0, 0, 1]])
    camera = camera_of(SIZE, CameraHint(intrinsics=given_ones))
    assert camera.source == "given" and torch.equal(camera.intrinsics, torch.from_numpy(given_ones).float())
    assert camera.focal == pytest.approx(30)  # the geometric mean


@given(st.floats(5, 170), st.integers(1, 4000), st.integers(1, 4000))
def test_a_field_of_view_spans_the_width(degrees: float, height: int, width: int) -> None:
    camera = camera_of((height, width), CameraHint(fov=degrees))
    assert 2 * math.degrees(math.atan(width / 2 / camera.focal)) == pytest.approx(degrees, rel=1e-4)


def test_a_photograph_knows_its_camera(tmp_path: Path) -> None:
    path = photograph(tmp_path / "photo.jpg", 50)
    assert focal_in_35mm(path) == 50
    camera = camera_of(SIZE, CameraHint(), path)
    assert camera.source == "exif"
    assert camera.focal == pytest.approx(50 / math.hypot(36, 24) * 50)  # the diagonal has 50 pixels
    with Image.open(path) as picture:
        assert camera_of(SIZE, CameraHint(), picture).source == "exif"
    assert camera_of(SIZE, CameraHint(focal=9.0), path).source == "given"


def test_without_any_word_the_longer_side_spans_a_usual_angle(tmp_path: Path) -> None:
    zero = photograph(tmp_path / "zero.jpg", 0)
    for image in (None, zero, np.zeros((*SIZE, 3))):
        lying, standing = camera_of(SIZE, CameraHint(), image), camera_of(SIZE[::-1], CameraHint(), image)
        assert lying.source == standing.source == "assumed"
        assert lying.focal == standing.focal == pytest.approx(20 / math.tan(math.radians(ASSUMED_FOV / 2)))


@pytest.mark.parametrize("focal", [0, -3, math.nan, math.inf])
def test_a_focal_length_that_is_none_is_refused(focal: float) -> None:
    with pytest.raises(InputError, match=r"a focal length is a number of pixels over 0, not .*; give one, or none\.$"):
        CameraHint(focal=focal)


@pytest.mark.parametrize("fov", [0, 180, -5, math.nan])
def test_a_field_of_view_that_is_none_is_refused(fov: float) -> None:
    with pytest.raises(InputError, match="a field of view is between 0 and 180 degrees"):
        CameraHint(fov=fov)


def test_intrinsics_that_are_none_are_refused() -> None:
    broken = torch.eye(3)
    broken[0, 2] = math.nan
    for bad, why in (
        (torch.eye(4), "intrinsics are 3 x 3 numbers"),
        (broken, "the intrinsics contain NaN"),
        (-torch.eye(3), "a focal length that is not over 0"),
        (np.array([["a"]]), "intrinsics are 3 x 3 numbers"),
    ):
        with pytest.raises(InputError, match=why):
            CameraHint(intrinsics=bad)
    with pytest.raises(InputError, match=r"the camera is told by focal and by fov; give one of these\.$"):
        CameraHint(focal=3.0, fov=60.0)
