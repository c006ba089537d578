"""KITTI's disparity and depth pngs: value / 256, where 0 means none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protoformer.errors import InputError
from protoformer.io.formats import read_kitti_depth, read_kitti_disparity, write_kitti_depth, write_kitti_disparity
from protoformer.io.png import encode_png

both = pytest.mark.parametrize(
    ("read", "write"), [(read_kitti_depth, write_kitti_depth), (read_kitti_disparity, write_kitti_disparity)]
)
sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))


@both
def test_hand_made_pixels_are_256ths(tmp_path: Path, build_png: Callable[..., bytes], read, write) -> None:
    (tmp_path / "a.png").write_bytes(build_png(np.array([[0, 1, 256], [384, 65535, 0]], dtype=np.uint16), 0))
    result = read(tmp_path / "a.png")
    assert (result.values.dtype, result.valid.dtype) == (np.float32, np.bool_)
    np.testing.assert_array_equal(result.values, [[0, 1 / 256, 1], [1.5, 255.99609375, 0]])
    assert result.valid.tolist() == [[False, True, True], [True, True, False]]


@both
def test_writing_stores_256ths_and_zero_where_invalid(tmp_path: Path, read, write) -> None:
    write(tmp_path / "a.png", [[1, 1.5, 255.99609375, 7]], np.array([[True, True, True, False]]))
    expected = np.array([[256, 384, 65535, 0]], dtype=np.uint16)
    assert (tmp_path / "a.png").read_bytes() == encode_png(expected)


@both
@settings(deadline=None, max_examples=40)
@given(data=st.data(), size=sizes)
def test_multiples_of_a_256th_survive_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, read, write, data: st.DataObject, size: tuple[int, int]
) -> None:
    steps = data.draw(hnp.arrays(np.int32, size, elements=st.integers(1, 65535)))
    valid = data.draw(hnp.arrays(np.bool_, size))
    path = tmp_path_factory.getbasetemp() / "round.png"
    write(path, steps / 256, valid)
    result = read(path)
    np.testing.assert_array_equal(result.valid, valid)
    np.testing.assert_array_equal(result.values, np.where(valid, steps / 256, 0))


@both
@settings(deadline=None, max_examples=40)
@given(data=st.data(), size=sizes)
def test_other_values_are_off_by_half_a_step_at_most(
    tmp_path_factory: pytest.TempPathFactory, read, write, data: st.DataObject, size: tuple[int, int]
) -> None:
    values = data.draw(hnp.arrays(np.float32, size, elements=st.floats(1 / 256, 255.99609375, width=32)))
    path = tmp_path_factory.getbasetemp() / "near.png"
    write(path, values)
    result = read(path)
    assert result.valid.all()
    assert np.abs(result.values - values).max() <= 1 / 512


@both
@pytest.mark.parametrize("value", [1e-30, 1e-5, 1 / 600])
def test_a_tiny_value_stays_valid_as_the_smallest_step(tmp_path: Path, read, write, value: float) -> None:
    write(tmp_path / "a.png", [[value]])
    assert read(tmp_path / "a.png").values.tolist() == [[1 / 256]]


@both
@pytest.mark.parametrize("value", [0, -0.0, -1, 256, 255.999, 1e30, np.nan, np.inf, -np.inf])
def test_what_the_format_cannot_hold_becomes_none_and_never_wraps(tmp_path: Path, read, write, value: float) -> None:
    write(tmp_path / "a.png", [[3.5, value]])
    result = read(tmp_path / "a.png")
    assert result.values.tolist() == [[3.5, 0]]
    assert result.valid.tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("read", "kind", "folder"), [(read_kitti_depth, "depth", "depth"), (read_kitti_disparity, "disparity", "disp")]
)
@pytest.mark.parametrize(
    ("samples", "color_type"),
    [
        (np.zeros((2, 2), dtype=np.uint8), 0),
        (np.zeros((2, 2, 3), dtype=np.uint16), 2),
        (np.zeros((2, 2, 2), dtype=np.uint16), 4),
    ],
)
def test_another_kind_of_png_is_refused(
    tmp_path: Path, build_png: Callable[..., bytes], samples: np.ndarray, color_type: int, read, kind: str, folder: str
) -> None:
    (tmp_path / "a.png").write_bytes(build_png(samples, color_type))
    message = rf"a\.png is a png but not a KITTI {kind}, which is 16-bit gray; give a file from a {folder} folder\."
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.png")


def test_a_header_that_declares_more_rows_than_there_are_is_refused(
    tmp_path: Path, build_png: Callable[..., bytes]
) -> None:
    (tmp_path / "a.png").write_bytes(build_png(np.ones((4, 4), dtype=np.uint16), 0, size=(4, 400)))
    with pytest.raises(InputError, match="its pixels cannot be decoded"):
        read_kitti_depth(tmp_path / "a.png")


def test_a_size_that_the_data_cannot_hold_is_refused_before_it_is_allocated(
    tmp_path: Path, build_png: Callable[..., bytes]
) -> None:
    # 132 million pixels are within the limit of pixels, but no hundred bytes unpack to a quarter of a gigabyte.
    (tmp_path / "a.png").write_bytes(build_png(np.ones((4, 4), dtype=np.uint16), 0, size=(11500, 11500)))
    with pytest.raises(InputError, match="its data cannot hold the 11500x11500 pixels of its header"):
        read_kitti_depth(tmp_path / "a.png")


def test_the_best_compressed_image_is_not_taken_for_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((1000, 1000), dtype=np.uint16)))
    assert read_kitti_depth(tmp_path / "a.png").values.shape == (1000, 1000)


@pytest.mark.parametrize("size", [(0, 2), (2, 0)])
def test_an_image_without_pixels_is_refused(
    tmp_path: Path, build_png: Callable[..., bytes], size: tuple[int, int]
) -> None:
    (tmp_path / "a.png").write_bytes(build_png(np.ones((2, 2), dtype=np.uint16), 0, size=size))
    with pytest.raises(InputError, match=r"damaged header \(its size is"):
        read_kitti_depth(tmp_path / "a.png")


def test_a_mask_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the valid mask of a 3x2 disparity is bool of that shape"):
        write_kitti_disparity(tmp_path / "a.png", np.zeros((3, 2)), np.ones((2, 3), dtype=bool))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [(np.zeros((2, 2, 1)), "a depth has shape HxW"), (np.zeros((2, 2), dtype=bool), "a depth holds real numbers")],
)
def test_what_is_not_a_map_of_values_is_not_written(tmp_path: Path, values: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_kitti_depth(tmp_path / "a.png", values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
@both
def test_a_full_disk_leaves_no_file(tmp_path: Path, read, write) -> None:
    with pytest.raises(InputError, match="No space left"):
        write(tmp_path / "a.png", np.ones((3, 3)))
    assert list(tmp_path.iterdir()) == []
