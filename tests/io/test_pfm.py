"""The .pfm format, byte for byte: text header, byte order in the sign of the scale, rows from the bottom up."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protoformer.errors import InputError
from protoformer.io.formats import read_pfm, read_pfm_flow, write_pfm, write_pfm_flow

# Two columns and two rows; the bottom row, (3, 4), is stored first.
GRAY = b"Pf\n2 2\n-1.0\n" + struct.pack("<4f", 3, 4, 1, 2)

any_float = st.floats(width=32, allow_nan=True, allow_infinity=True)
sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))
gray_values = hnp.arrays(np.float32, sizes, elements=any_float)
color_values = hnp.arrays(np.float32, sizes.map(lambda size: (*size, 3)), elements=any_float)


@pytest.mark.parametrize(("scale", "order"), [("-1.0", "<"), ("1.0", ">"), ("-1", "<"), ("+1e0", ">")])
def test_the_sign_of_the_scale_is_the_byte_order(tmp_path: Path, scale: str, order: str) -> None:
    (tmp_path / "a.pfm").write_bytes(f"Pf\n3 2\n{scale}\n".encode() + struct.pack(order + "6f", 4, 5, 6, 1, 2, 3))
    values = read_pfm(tmp_path / "a.pfm")
    assert values.dtype == np.float32
    assert values.flags.c_contiguous and values.flags.writeable and values.dtype.isnative
    np.testing.assert_array_equal(values, [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("order", ["<", ">"])
def test_three_channels_lie_side_by_side_in_each_pixel(tmp_path: Path, order: str) -> None:
    scale = "-1" if order == "<" else "1"
    (tmp_path / "a.pfm").write_bytes(f"PF\n1 2\n{scale}\n".encode() + struct.pack(order + "6f", 4, 5, 6, 1, 2, 3))
    np.testing.assert_array_equal(read_pfm(tmp_path / "a.pfm"), [[[1, 2, 3]], [[4, 5, 6]]])


@pytest.mark.parametrize("scale", ["-0.00392157", "-255", "-1e-3"])
def test_the_magnitude_of_the_scale_changes_no_value(tmp_path: Path, scale: str) -> None:
    (tmp_path / "a.pfm").write_bytes(GRAY.replace(b"-1.0", scale.encode()))
    np.testing.assert_array_equal(read_pfm(tmp_path / "a.pfm"), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    "header", [b"Pf 2 2 -1.0 ", b"Pf\r\n2 2\r\n-1.0\r\n", b"Pf\n2\n2\n-1.0\n", b"Pf\t\n 2 \t2\v-1.0\f"]
)
def test_words_are_parted_by_any_blanks(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a.pfm").write_bytes(header + struct.pack("<4f", 3, 4, 1, 2))
    np.testing.assert_array_equal(read_pfm(tmp_path / "a.pfm"), [[1, 2], [3, 4]])


@pytest.mark.parametrize("blank", [b"\n", b"\r", b"\r\n"])
def test_pixels_that_look_like_blanks_are_pixels(tmp_path: Path, blank: bytes) -> None:
    (tmp_path / "a.pfm").write_bytes(b"Pf 1 1 -1" + blank + b"\n\r\n ")
    assert read_pfm(tmp_path / "a.pfm").astype("<f4").tobytes() == b"\n\r\n "


def test_writing_is_little_endian_from_the_bottom_row_up(tmp_path: Path) -> None:
    write_pfm(tmp_path / "a.pfm", np.array([[1, 2], [3, 4]]))
    assert (tmp_path / "a.pfm").read_bytes() == GRAY


def test_a_flow_is_written_with_a_third_channel_of_zero(tmp_path: Path) -> None:
    write_pfm_flow(tmp_path / "a.pfm", np.array([[[1, 2], [-0.5, 3.25]]]))
    expected = b"PF\n2 1\n-1.0\n" + struct.pack("<6f", 1, 2, 0, -0.5, 3.25, 0)
    assert (tmp_path / "a.pfm").read_bytes() == expected


def test_a_flow_is_the_first_two_channels(tmp_path: Path) -> None:
    (tmp_path / "a.pfm").write_bytes(b"PF\n1 2\n1\n" + struct.pack(">6f", 4, 5, 6, 1, 2, 3))
    flow = read_pfm_flow(tmp_path / "a.pfm")
    assert flow.flags.c_contiguous
    np.testing.assert_array_equal(flow, [[[1, 2]], [[4, 5]]])


def test_one_channel_is_no_flow(tmp_path: Path) -> None:
    (tmp_path / "a.pfm").write_bytes(GRAY)
    with pytest.raises(InputError, match=r"a\.pfm holds one channel \(Pf\), not a flow; give"):
        read_pfm_flow(tmp_path / "a.pfm")


@settings(deadline=None, max_examples=60)
@given(values=st.one_of(gray_values, color_values))
def test_every_float_survives_the_round_trip(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "round.pfm"
    write_pfm(path, values)
    np.testing.assert_array_equal(read_pfm(path), values)


@settings(deadline=None, max_examples=40)
@given(values=color_values)
def test_a_flow_survives_the_round_trip(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "flow.pfm"
    write_pfm_flow(path, values[..., :2])
    np.testing.assert_array_equal(read_pfm_flow(path), values[..., :2])


@settings(deadline=None, max_examples=40)
@given(values=gray_values)
def test_both_byte_orders_read_alike(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "big.pfm"
    height, width = values.shape
    path.write_bytes(f"Pf {width} {height} 1\n".encode() + values[::-1].astype(">f4").tobytes())
    np.testing.assert_array_equal(read_pfm(path), values)


def test_unknown_disparity_is_returned_as_it_is(tmp_path: Path) -> None:
    values = np.array([[np.inf, -np.inf, np.nan, 7.5]], dtype=np.float32)
    write_pfm(tmp_path / "a.pfm", values)
    np.testing.assert_array_equal(read_pfm(tmp_path / "a.pfm"), values)


@pytest.mark.parametrize("cut", range(1, len(GRAY)))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.pfm").write_bytes(GRAY[:cut])
    with pytest.raises(InputError, match=r"a\.pfm"):
        read_pfm(tmp_path / "a.pfm")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is an empty file"),
        (b"P6\n2 2\n255\n" + bytes(12), r"is not a \.pfm file \(it starts with neither PF nor Pf\)"),
        (b"PF4\n2 2\n-1\n" + bytes(64), r"damaged header \(it does not end\)"),
        (b"Pf" + b" " * 300 + b"2 2 -1\n" + bytes(16), r"damaged header \(it does not end\)"),
        (GRAY + b"\0", r"is 29 bytes long but its header \(2x2\) requires 28"),
        (GRAY.replace(b"-1.0\n", b"-1.0\r\n") + b"\0", "is 30 bytes long but its header .* requires 28"),
        (b"Pf\n0 2\n-1\n" + bytes(16), r"damaged header \(its size is 0x2\)"),
        (b"Pf\n-2 -2\n-1\n" + bytes(16), r"damaged header \('-2' is not a width or height\)"),
        (b"Pf\n2.0 2\n-1\n" + bytes(16), "'2.0' is not a width or height"),
        (b"Pf\n99999999999 2\n-1\n" + bytes(16), "'99999999999' is not a width or height"),
        (b"PF\n9999999999 9999999999\n-1\n" + bytes(48), "requires 1199999999760000000040"),
        (b"Pf\n2 2\n0.0\n" + bytes(16), "'0.0' is not a scale, whose sign is the byte order"),
        (b"Pf\n2 2\nnan\n" + bytes(16), "'nan' is not a scale"),
        (b"Pf\n2 2\n-1e999\n" + bytes(16), "'-1e999' is not a scale"),
        (b"Pf\n2 2\n-1_0\n" + bytes(16), "'-1_0' is not a scale"),
        (b"Pf\n2 2\n\xff\x00\n" + bytes(16), r"is not a scale"),
    ],
)
def test_a_damaged_file_is_refused_before_its_pixels_are_allocated(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.pfm").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_pfm(tmp_path / "a.pfm")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(4), r"HxW or HxWx3 values with at least one pixel, not \(4,\)"),
        (np.zeros((2, 2, 2)), r"not \(2, 2, 2\)"),
        (np.zeros((0, 2)), r"not \(0, 2\)"),
        (np.zeros((2, 2), dtype=complex), "real numbers, not complex128"),
    ],
)
def test_what_a_pfm_cannot_hold_is_not_written(tmp_path: Path, values: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_pfm(tmp_path / "a.pfm", values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_keeps_the_old_values(tmp_path: Path) -> None:
    (tmp_path / "a.pfm").write_bytes(GRAY)
    with pytest.raises(InputError, match="No space left"):
        write_pfm(tmp_path / "a.pfm", np.zeros((3, 3)))
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [GRAY]
