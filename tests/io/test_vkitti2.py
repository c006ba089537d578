"""Virtual KITTI 2: depth in centimeters; flow scaled to the image, with blue 0 where there is none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from vkitti2_writers import write_vkitti2_depth, write_vkitti2_flow

from protoformer.errors import InputError
from protoformer.io.formats import read_vkitti2_depth, read_vkitti2_flow
from protoformer.io.png import encode_png

sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))


def test_hand_made_depth_is_in_centimeters_and_the_sky_is_the_largest(
    tmp_path: Path, build_png: Callable[..., bytes]
) -> None:
    (tmp_path / "a.png").write_bytes(build_png(np.array([[0, 1, 250], [10000, 65534, 65535]], dtype=np.uint16), 0))
    depth = read_vkitti2_depth(tmp_path / "a.png")
    assert depth.dtype == np.float32
    np.testing.assert_array_equal(depth, np.array([[0, 0.01, 2.5], [100, 655.34, 655.35]], dtype=np.float32))


def test_depth_beyond_the_range_is_written_as_sky(tmp_path: Path) -> None:
    write_vkitti2_depth(tmp_path / "a.png", [[0, 0.014, 0.016, 655.34, 655.35, 655.4, 1e30, np.inf]])
    expected = np.array([[0, 1, 2, 65534, 65535, 65535, 65535, 65535]], dtype=np.uint16)
    assert (tmp_path / "a.png").read_bytes() == encode_png(expected)


@settings(deadline=None, max_examples=40)
@given(stored=hnp.arrays(np.uint16, hnp.array_shapes(min_dims=2, max_dims=2)))
def test_whole_centimeters_survive_the_round_trip(tmp_path_factory: pytest.TempPathFactory, stored: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "round.png"
    write_vkitti2_depth(path, stored / 100)
    np.testing.assert_array_equal(read_vkitti2_depth(path), (stored / 100).astype(np.float32))


@settings(deadline=None, max_examples=40)
@given(data=st.data(), size=sizes)
def test_other_depth_is_off_by_half_a_centimeter_at_most(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, size: tuple[int, int]
) -> None:
    depth = data.draw(hnp.arrays(np.float32, size, elements=st.floats(0, 655.25, width=32)))
    path = tmp_path_factory.getbasetemp() / "near.png"
    write_vkitti2_depth(path, depth)
    # Half a step, and the rounding of a float32 of hundreds of meters.
    assert np.abs(read_vkitti2_depth(path) - depth).max() <= 0.005 + 4e-5


@pytest.mark.parametrize("value", [np.nan, -0.01, -np.inf])
def test_a_depth_that_is_unknown_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(InputError, match="known and not negative at every pixel; replace"):
        write_vkitti2_depth(tmp_path / "a.png", [[1, value]])
    assert list(tmp_path.iterdir()) == []


def test_hand_made_flow_follows_the_formula(tmp_path: Path, build_png: Callable[..., bytes]) -> None:
    # An image of 3 rows and 4 columns: white is 3 pixels to the right, 2 down.
    stored = np.zeros((3, 4, 3), dtype=np.uint16)
    stored[0] = [(65535, 65535, 65535), (0, 0, 1), (43690, 13107, 1), (65535, 65535, 0)]
    (tmp_path / "a.png").write_bytes(build_png(stored, 2))
    read = read_vkitti2_flow(tmp_path / "a.png")
    assert (read.flow.dtype, read.valid.dtype) == (np.float32, np.bool_)
    assert read.valid.tolist() == [[True, True, True, False], [False] * 4, [False] * 4]
    np.testing.assert_allclose(read.flow[0], [(3, 2), (-3, -2), (1, -1.2), (0, 0)], rtol=1e-6)
    assert not read.flow[1:].any()


def test_writing_flow_stores_the_formula_and_zeros_where_invalid(tmp_path: Path) -> None:
    flow = np.zeros((3, 4, 2), dtype=np.float32)
    flow[0] = [(3, 2), (-3, -2), (1, -1.2), (1, 1)]
    valid = np.zeros((3, 4), dtype=bool)
    valid[0, :3] = True
    write_vkitti2_flow(tmp_path / "a.png", flow, valid)
    expected = np.zeros((3, 4, 3), dtype=np.uint16)
    expected[0, :3] = [(65535, 65535, 65535), (0, 0, 65535), (43690, 13107, 65535)]
    assert (tmp_path / "a.png").read_bytes() == encode_png(expected)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), size=sizes)
def test_flow_is_off_by_half_a_step_at_most_and_then_stays(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, size: tuple[int, int]
) -> None:
    largest = np.array([size[1] - 1, size[0] - 1])
    parts = data.draw(hnp.arrays(np.float32, (*size, 2), elements=st.floats(-1, 1, width=32)))
    valid = data.draw(hnp.arrays(np.bool_, size))
    path = tmp_path_factory.getbasetemp() / "near.png"
    write_vkitti2_flow(path, parts * largest, valid)
    read = read_vkitti2_flow(path)
    np.testing.assert_array_equal(read.valid, valid)
    error = np.abs(read.flow - np.where(valid[..., None], parts * largest, 0))
    assert (error <= largest / 65535 + 1e-6).all()
    first = path.read_bytes()
    write_vkitti2_flow(path, read.flow, read.valid)
    assert path.read_bytes() == first


@pytest.mark.parametrize("value", [3.001, -3.001, 1e30, np.nan, np.inf, -np.inf])
def test_motion_the_format_cannot_hold_becomes_invalid_and_never_wraps(tmp_path: Path, value: float) -> None:
    flow = np.full((4, 4, 2), 3.0)
    flow[1, 2, 0] = flow[3, 0, 1] = value
    write_vkitti2_flow(tmp_path / "a.png", flow)
    read = read_vkitti2_flow(tmp_path / "a.png")
    assert np.argwhere(~read.valid).tolist() == [[1, 2], [3, 0]]
    assert (read.flow[read.valid] == 3).all()
    assert not read.flow[~read.valid].any()


def test_an_image_of_one_pixel_holds_no_motion_but_zero(tmp_path: Path) -> None:
    write_vkitti2_flow(tmp_path / "a.png", np.zeros((1, 1, 2)))
    read = read_vkitti2_flow(tmp_path / "a.png")
    assert read.valid.all() and not read.flow.any()
    write_vkitti2_flow(tmp_path / "a.png", np.full((1, 1, 2), 0.5))
    assert not read_vkitti2_flow(tmp_path / "a.png").valid.any()


def test_a_mask_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the valid mask of a 3x2 flow is bool of that shape"):
        write_vkitti2_flow(tmp_path / "a.png", np.zeros((3, 2, 2)), np.ones((2, 3), dtype=bool))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("read", "samples", "color_type", "message"),
    [
        (read_vkitti2_depth, np.zeros((2, 2, 3), dtype=np.uint16), 2, "not a VKITTI2 depth, which is 16-bit gray"),
        (read_vkitti2_depth, np.zeros((2, 2), dtype=np.uint8), 0, "not a VKITTI2 depth, which is 16-bit gray"),
        (read_vkitti2_flow, np.zeros((2, 2), dtype=np.uint16), 0, "not a VKITTI2 flow, which is 16-bit RGB"),
        (read_vkitti2_flow, np.zeros((2, 2, 4), dtype=np.uint16), 6, "not a VKITTI2 flow, which is 16-bit RGB"),
    ],
)
def test_another_kind_of_png_is_refused(
    tmp_path: Path, build_png: Callable[..., bytes], read, samples: np.ndarray, color_type: int, message: str
) -> None:
    (tmp_path / "a.png").write_bytes(build_png(samples, color_type))
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.png")


def test_a_flow_that_names_a_transparent_color_is_refused(tmp_path: Path, build_png: Callable[..., bytes]) -> None:
    (tmp_path / "a.png").write_bytes(build_png(np.zeros((2, 2, 3), dtype=np.uint16), 2, extra={b"tRNS": bytes(6)}))
    with pytest.raises(InputError, match="declares a transparent color, which a VKITTI2 flow does not have"):
        read_vkitti2_flow(tmp_path / "a.png")


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No space left"):
        write_vkitti2_depth(tmp_path / "a.png", np.ones((3, 3)))
    with pytest.raises(InputError, match="No space left"):
        write_vkitti2_flow(tmp_path / "a.png", np.zeros((3, 3, 2)))
    assert list(tmp_path.iterdir()) == []
