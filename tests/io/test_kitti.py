"""KITTI's flow png: u = (R - 32768) / 64, v = (G - 32768) / 64, B = valid."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protoformer.errors import InputError
from protoformer.io.formats import read_kitti_flow, write_kitti_flow
from protoformer.io.png import encode_png

sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))


def test_hand_made_pixels_follow_the_formula(tmp_path: Path, build_png: Callable[..., bytes]) -> None:
    stored = np.array(
        [[(32768, 32768, 1), (32832, 32704, 1), (0, 65535, 1)], [(32769, 32767, 65535), (40000, 1, 0), (0, 0, 0)]],
        dtype=np.uint16,
    )
    (tmp_path / "a.png").write_bytes(build_png(stored, 2))
    read = read_kitti_flow(tmp_path / "a.png")
    assert (read.flow.dtype, read.valid.dtype) == (np.float32, np.bool_)
    assert read.valid.tolist() == [[True, True, True], [True, False, False]]
    np.testing.assert_array_equal(
        read.flow, [[(0, 0), (1, -1), (-512, 511.984375)], [(1 / 64, -1 / 64), (0, 0), (0, 0)]]
    )


def test_writing_stores_the_formula_and_zeros_where_invalid(tmp_path: Path) -> None:
    flow = np.array([[(1, -1), (-512, 511.984375), (7, 7)]], dtype=np.float32)
    write_kitti_flow(tmp_path / "a.png", flow, np.array([[True, True, False]]))
    expected = np.array([[(32832, 32704, 1), (0, 65535, 1), (0, 0, 0)]], dtype=np.uint16)
    assert (tmp_path / "a.png").read_bytes() == encode_png(expected)


@settings(deadline=None, max_examples=50)
@given(data=st.data(), size=sizes)
def test_multiples_of_a_64th_survive_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, size: tuple[int, int]
) -> None:
    steps = data.draw(hnp.arrays(np.int32, (*size, 2), elements=st.integers(-32768, 32767)))
    valid = data.draw(hnp.arrays(np.bool_, size))
    path = tmp_path_factory.getbasetemp() / "round.png"
    write_kitti_flow(path, steps / 64, valid)
    read = read_kitti_flow(path)
    np.testing.assert_array_equal(read.valid, valid)
    np.testing.assert_array_equal(read.flow, np.where(valid[..., None], steps / 64, 0))


@settings(deadline=None, max_examples=50)
@given(data=st.data(), size=sizes)
def test_other_motion_is_off_by_half_a_step_at_most(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, size: tuple[int, int]
) -> None:
    flow = data.draw(hnp.arrays(np.float32, (*size, 2), elements=st.floats(-512, 511.984375, width=32)))
    path = tmp_path_factory.getbasetemp() / "near.png"
    write_kitti_flow(path, flow)
    read = read_kitti_flow(path)
    assert read.valid.all()
    assert np.abs(read.flow - flow).max() <= 1 / 128


@pytest.mark.parametrize("value", [512, -513, 511.9925, -512.0079, 1e10, -1e30, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("component", [0, 1])
def test_motion_the_format_cannot_hold_becomes_invalid_and_never_wraps(
    tmp_path: Path, value: float, component: int
) -> None:
    flow = np.full((1, 2, 2), 3.5, dtype=np.float32)
    flow[0, 1, component] = value
    write_kitti_flow(tmp_path / "a.png", flow)
    read = read_kitti_flow(tmp_path / "a.png")
    assert read.valid.tolist() == [[True, False]]
    assert read.flow.tolist() == [[[3.5, 3.5], [0, 0]]]


@pytest.mark.parametrize(
    "valid", [np.ones((2, 3), dtype=bool), np.ones((3, 2), dtype=np.float32), np.ones((3, 2, 1), dtype=bool)]
)
def test_a_mask_that_does_not_fit_is_refused(tmp_path: Path, valid: np.ndarray) -> None:
    with pytest.raises(InputError, match="the valid mask of a 3x2 flow is bool of that shape"):
        write_kitti_flow(tmp_path / "a.png", np.zeros((3, 2, 2)), valid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("samples", "color_type"),
    [
        (np.zeros((2, 2, 3), dtype=np.uint8), 2),
        (np.zeros((2, 2), dtype=np.uint16), 0),
        (np.zeros((2, 2, 4), dtype=np.uint16), 6),
    ],
)
def test_another_kind_of_png_is_refused(
    tmp_path: Path, build_png: Callable[..., bytes], samples: np.ndarray, color_type: int
) -> None:
    (tmp_path / "a.png").write_bytes(build_png(samples, color_type))
    with pytest.raises(InputError, match=r"a\.png is a png but not a KITTI flow, which is 16-bit RGB"):
        read_kitti_flow(tmp_path / "a.png")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = encode_png(rng.integers(0, 65536, (5, 6, 3), dtype=np.uint16))
    for cut in range(len(data)):
        (tmp_path / "a.png").write_bytes(data[:cut])
        with pytest.raises(InputError, match=r"a\.png"):
            read_kitti_flow(tmp_path / "a.png")


def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = encode_png(rng.integers(0, 65536, (5, 6, 3), dtype=np.uint16))
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        (tmp_path / "a.png").write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.png"):
            read_kitti_flow(tmp_path / "a.png")


def test_a_header_that_declares_more_rows_than_there_are_is_refused(
    tmp_path: Path, build_png: Callable[..., bytes]
) -> None:
    data = build_png(np.ones((4, 4, 3), dtype=np.uint16), 2, size=(4, 400))
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(InputError, match="its pixels cannot be decoded"):
        read_kitti_flow(tmp_path / "a.png")


def test_a_header_over_the_pixel_limit_is_refused(tmp_path: Path, build_png: Callable[..., bytes]) -> None:
    data = build_png(np.ones((4, 4, 3), dtype=np.uint16), 2, size=(2**14, 2**13 + 1))
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(InputError, match="is 16384x8193, over the limit of 134217728 pixels"):
        read_kitti_flow(tmp_path / "a.png")


def test_a_jpeg_is_not_a_png(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\xff\xd8\xff\xe0 and so on")
    with pytest.raises(InputError, match="is not a png file"):
        read_kitti_flow(tmp_path / "a.png")


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No space left"):
        write_kitti_flow(tmp_path / "a.png", np.zeros((3, 3, 2)))
    assert list(tmp_path.iterdir()) == []
