"""The camera of an image is given, read from EXIF or assumed, and the result says which."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import protoformer as pf
from protoformer.depth.camera import ASSUMED_FOV, FOCAL_BOUNDS, FOV_BOUNDS, CameraHint, resolve_camera
from protoformer.errors import InputError
from protoformer.io.image import focal_in_35mm

SIZE = (30, 40)


def photograph(path: Path, focal: int) -> Path:
    """A photograph of 40x30 pixels whose file notes a focal length on 35 mm film."""
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = focal
    Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(path, exif=exif)
    return path


def test_a_focal_length_is_taken_as_it_is() -> None:
    camera = resolve_camera(SIZE, CameraHint(focal=33.0))
    assert camera.source == "given" and camera.focal == pytest.approx(33)
    assert camera.intrinsics.tolist() == [[33, 0, 19.5], [0, 33, 14.5], [0, 0, 1]]


def test_intrinsics_are_taken_as_they_are() -> None:
    given_ones = np.array([[20.0, 0, 3], [0, 45.0, 4], [0, 0, 1]])
    camera = resolve_camera(SIZE, CameraHint(intrinsics=given_ones))
    assert camera.source == "given" and torch.equal(camera.intrinsics, torch.from_numpy(given_ones).float())
    assert camera.focal == pytest.approx(30)  # the geometric mean


@given(st.floats(5, 170), st.integers(1, 4000), st.integers(1, 4000))
def test_a_field_of_view_spans_the_width(degrees: float, height: int, width: int) -> None:
    camera = resolve_camera((height, width), CameraHint(fov=degrees))
    assert 2 * math.degrees(math.atan(width / 2 / camera.focal)) == pytest.approx(degrees, rel=1e-4)


def test_a_photograph_knows_its_camera(tmp_path: Path) -> None:
    path = photograph(tmp_path / "photo.jpg", 50)
    assert focal_in_35mm(path) == 50
    camera = resolve_camera(SIZE, CameraHint(), path)
    assert camera.source == "exif"
    assert camera.focal == pytest.approx(50 / math.hypot(36, 24) * 50)  # the diagonal has 50 pixels
    with Image.open(path) as photo:
        assert resolve_camera(SIZE, CameraHint(), photo).source == "exif"
    assert resolve_camera(SIZE, CameraHint(focal=9.0), path).source == "given"


def test_without_any_word_the_longer_side_spans_a_usual_angle(tmp_path: Path) -> None:
    zero = photograph(tmp_path / "zero.jpg", 0)
    for image in (None, zero, np.zeros((*SIZE, 3))):
        lying, standing = resolve_camera(SIZE, CameraHint(), image), resolve_camera(SIZE[::-1], CameraHint(), image)
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
    with pytest.raises(InputError, match=r"the camera is given by focal and by fov; give one of these\.$"):
        CameraHint(focal=3.0, fov=60.0)


@pytest.mark.parametrize(
    "hint", [{"fov": 1e-300}, {"fov": 1e-5}, {"fov": 179.9999}, {"focal": 1e-300}, {"focal": 1e300}, {"focal": 1e9}]
)
def test_an_impossible_camera_is_refused(hint: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"^no camera has a f.* of .* (pixels|degrees); give one from .*, or none\.$"):
        CameraHint(**hint)


@pytest.mark.parametrize(
    ("place", "value"), [((0, 0), 1e-30), ((1, 1), 1e-30), ((0, 0), 1e30), ((0, 2), 1e30), ((1, 2), -1e30)]
)
def test_intrinsics_that_no_camera_has_are_refused(place: tuple[int, int], value: float) -> None:
    intrinsics = torch.tensor([[20.0, 0, 3], [0, 45.0, 4], [0, 0, 1]])
    intrinsics[place] = value
    with pytest.raises(InputError, match=r"no camera has a focal length of|have an optical center more than"):
        CameraHint(intrinsics=intrinsics)


def test_a_number_without_end_is_no_focal_length() -> None:
    with pytest.raises(InputError, match="a focal length is a number of pixels over 0, not a whole number of"):
        CameraHint(focal=10**400)


def test_a_wide_image_and_a_narrow_view_are_too_much_together() -> None:
    assert resolve_camera((1, 4000), CameraHint(fov=FOV_BOUNDS[0])).focal == pytest.approx(2.29e7, rel=0.01)
    with pytest.raises(InputError, match="no camera has a focal length of"):
        resolve_camera((1, 2**27), CameraHint(fov=FOV_BOUNDS[0]))


def test_a_note_that_cannot_be_is_passed_over() -> None:
    photo = Image.fromarray(np.zeros((*SIZE, 3), np.uint8))
    photo.getexif().get_ifd(0x8769)[0xA405] = 1e300
    assert focal_in_35mm(photo) == 1e300
    assert resolve_camera(SIZE, CameraHint(), photo).source == "assumed"


@pytest.mark.parametrize(
    "hint",
    [
        *({"focal": each} for each in FOCAL_BOUNDS),
        *({"fov": each} for each in FOV_BOUNDS),
        {"intrinsics": [[1e-3, 0, -1e8], [0, 1e8, 1e8], [0, 0, 1]]},
    ],
)
def test_depth_is_finite_up_to_the_bounds(hint: dict[str, Any], tiny_depth: pf.DepthPredictor) -> None:
    result = tiny_depth.depth(np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8), **hint)
    assert result.depth.isfinite().all() and (result.depth > 0).all() and all(map(math.isfinite, result.range))
    assert np.isfinite(result.points().points).all()


@pytest.mark.parametrize("meters", [(1e-300, 1.0), (1.0, 1e300), (1e300, 1e301)])
def test_a_range_beyond_all_distances_is_refused(meters: tuple[float, float], tiny_depth: pf.DepthPredictor) -> None:
    with pytest.raises(InputError, match=r"a range cannot go from .* m; give meters from 1e-06 to 1e\+09"):
        tiny_depth.depth(np.zeros((64, 96, 3), np.uint8), range=meters)
