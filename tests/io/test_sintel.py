"""Sintel's .dpt and .cam, byte for byte."""

import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protoformer.errors import InputError
from protoformer.io.files import read_exactly
from protoformer.io.formats import Camera, read_cam, read_dpt, write_cam, write_dpt

# Two columns, one row.
DEPTH = struct.pack("<fii2f", 202021.25, 2, 1, 1.5, 20.25)
CAMERA = struct.pack("<f21d", 202021.25, *range(21))

finite = st.floats(allow_nan=False, allow_infinity=False)


def test_a_depth_is_magic_width_height_then_meters(tmp_path: Path) -> None:
    write_dpt(tmp_path / "a.dpt", [[1.5, 20.25]])
    assert (tmp_path / "a.dpt").read_bytes() == DEPTH


def test_a_hand_made_depth_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.dpt").write_bytes(struct.pack("<fii6f", 202021.25, 2, 3, 0, 1, 2, 3, 4, 5))
    depth = read_dpt(tmp_path / "a.dpt")
    assert depth.dtype == np.float32
    assert depth.flags.c_contiguous and depth.flags.writeable
    np.testing.assert_array_equal(depth, [[0, 1], [2, 3], [4, 5]])


@settings(deadline=None, max_examples=50)
@given(depth=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(width=32)))
def test_every_depth_survives_the_round_trip(tmp_path_factory: pytest.TempPathFactory, depth: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "round.dpt"
    write_dpt(path, depth)
    np.testing.assert_array_equal(read_dpt(path), depth)


@pytest.mark.parametrize("cut", range(1, len(DEPTH)))
def test_a_depth_cut_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.dpt").write_bytes(DEPTH[:cut])
    with pytest.raises(InputError, match=r"a\.dpt"):
        read_dpt(tmp_path / "a.dpt")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a depth", r"is not a \.dpt file \(it does not start with 202021\.25\); give a \.dpt file\."),
        (DEPTH + b"\0", r"is 21 bytes long but its header \(2x1\) requires 20"),
        (struct.pack("<fii", 202021.25, 0, 5), r"damaged header \(its size is 0x5\)"),
        (struct.pack("<fii", 202021.25, 2**31 - 1, 2**31 - 1), "requires 18446744056529682448"),
    ],
)
def test_a_damaged_depth_is_refused_before_its_pixels_are_allocated(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.dpt").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_dpt(tmp_path / "a.dpt")


@pytest.mark.parametrize("depth", [np.zeros(3), np.zeros((2, 2, 1)), np.zeros((0, 2))])
def test_what_is_not_a_depth_is_not_written(tmp_path: Path, depth: np.ndarray) -> None:
    with pytest.raises(InputError, match="a depth has shape HxW with at least one pixel"):
        write_dpt(tmp_path / "a.dpt", depth)
    assert list(tmp_path.iterdir()) == []


def test_a_camera_is_magic_intrinsics_then_extrinsics(tmp_path: Path) -> None:
    write_cam(tmp_path / "a.cam", Camera(np.arange(9.0).reshape(3, 3), np.arange(9.0, 21).reshape(3, 4)))
    assert (tmp_path / "a.cam").read_bytes() == CAMERA
    assert len(CAMERA) == 172


def test_a_hand_made_camera_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.cam").write_bytes(CAMERA)
    camera = read_cam(tmp_path / "a.cam")
    assert camera.intrinsics.dtype == camera.extrinsics.dtype == np.float64
    assert camera.intrinsics.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert camera.extrinsics.tolist() == [[9, 10, 11, 12], [13, 14, 15, 16], [17, 18, 19, 20]]


@settings(deadline=None, max_examples=50)
@given(
    intrinsics=hnp.arrays(np.float64, (3, 3), elements=finite),
    extrinsics=hnp.arrays(np.float64, (3, 4), elements=finite),
)
def test_every_camera_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, intrinsics: np.ndarray, extrinsics: np.ndarray
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.cam"
    write_cam(path, Camera(intrinsics, np.asfortranarray(extrinsics)))
    read = read_cam(path)
    np.testing.assert_array_equal(read.intrinsics, intrinsics)
    np.testing.assert_array_equal(read.extrinsics, extrinsics)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a camera", r"is not a \.cam file"),
        (CAMERA[:3], r"is not a \.cam file"),
        (CAMERA[:-1], "is 171 bytes long but its format requires 172"),
        (CAMERA + b"\0", "is 173 bytes long but its format requires 172"),
        (struct.pack("<f21d", 202021.25, *[np.nan] * 21), "NaN or infinite numbers"),
        (CAMERA[:-8] + struct.pack("<d", -np.inf), "NaN or infinite numbers"),
    ],
)
def test_a_damaged_camera_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.cam").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_cam(tmp_path / "a.cam")


@pytest.mark.parametrize(
    ("camera", "message"),
    [
        (Camera(np.eye(4), np.eye(3, 4)), r"the intrinsics of a camera are 3x3 real numbers, not .* \(4, 4\)"),
        (Camera(np.eye(3), np.eye(3)), r"the extrinsics of a camera are 3x4 real numbers, not .* \(3, 3\)"),
        (Camera(np.eye(3), np.full((3, 4), np.nan)), "the extrinsics of a camera are finite"),
    ],
)
def test_what_is_not_a_camera_is_not_written(tmp_path: Path, camera: Camera, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_cam(tmp_path / "a.cam", camera)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    with pytest.raises(InputError, match=r"a\.dpt became shorter while it was read; wait"):
        read_exactly(BytesIO(DEPTH), len(DEPTH) + 1, "a.dpt")


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No space left"):
        write_dpt(tmp_path / "a.dpt", np.zeros((3, 3)))
    with pytest.raises(InputError, match="No space left"):
        write_cam(tmp_path / "a.cam", Camera(np.eye(3), np.eye(3, 4)))
    assert list(tmp_path.iterdir()) == []
