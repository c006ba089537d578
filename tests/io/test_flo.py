"""The .flo format, byte for byte."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protoformer.errors import InputError
from protoformer.io.formats import read_flo, valid_flow, write_flo

# A flow of one row and two pixels: (1, 2) and (-0.5, 3.25).
TINY = struct.pack("<fii4f", 202021.25, 2, 1, 1.0, 2.0, -0.5, 3.25)

flows = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 7), st.integers(1, 7), st.just(2)),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


def test_the_layout_is_magic_width_height_then_rows_of_u_and_v(tmp_path: Path) -> None:
    flow = np.array([[[1, 2], [-0.5, 3.25]]], dtype=np.float32)
    write_flo(tmp_path / "a.flo", flow)
    assert (tmp_path / "a.flo").read_bytes() == TINY
    assert TINY.startswith(b"PIEH")


def test_hand_made_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.flo").write_bytes(TINY)
    flow = read_flo(tmp_path / "a.flo")
    assert flow.dtype == np.float32
    assert flow.flags.c_contiguous and flow.flags.writeable
    np.testing.assert_array_equal(flow, [[[1, 2], [-0.5, 3.25]]])


def test_width_comes_before_height(tmp_path: Path) -> None:
    (tmp_path / "a.flo").write_bytes(struct.pack("<fii6f", 202021.25, 1, 3, 0, 1, 2, 3, 4, 5))
    np.testing.assert_array_equal(read_flo(tmp_path / "a.flo"), [[[0, 1]], [[2, 3]], [[4, 5]]])


@settings(deadline=None, max_examples=50)
@given(flow=flows)
def test_every_float_survives_the_round_trip(tmp_path_factory: pytest.TempPathFactory, flow: np.ndarray) -> None:
    path = tmp_path_factory.getbasetemp() / "round.flo"
    write_flo(path, flow)
    np.testing.assert_array_equal(read_flo(path), flow)


def test_other_layouts_and_types_are_written_as_float32(tmp_path: Path) -> None:
    flow = np.arange(12).reshape(2, 3, 2)
    for number, variant in enumerate([flow, flow.astype(np.float64), np.asfortranarray(flow.astype(">f4"))]):
        write_flo(tmp_path / f"{number}.flo", variant)
        np.testing.assert_array_equal(read_flo(tmp_path / f"{number}.flo"), flow)


def test_a_double_too_large_for_the_format_reads_back_as_unknown(tmp_path: Path) -> None:
    write_flo(tmp_path / "a.flo", np.array([[[1e300, 0], [1, 1]]]))
    assert valid_flow(read_flo(tmp_path / "a.flo")).tolist() == [[False, True]]


def test_known_flow_is_finite_and_within_a_billion_pixels() -> None:
    values = [(0, 0), (1e9, -1e9), (1.1e9, 0), (0, -1e10), (np.nan, 0), (0, np.inf)]
    flow = np.array([values], dtype=np.float32)
    assert valid_flow(flow).tolist() == [[True, True, False, False, False, False]]


@pytest.mark.parametrize("cut", range(1, len(TINY)))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.flo").write_bytes(TINY[:cut])
    with pytest.raises(InputError, match=r"a\.flo"):
        read_flo(tmp_path / "a.flo")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is an empty file"),
        (b"not a flow at all", r"is not a \.flo file"),
        (struct.pack(">fii4f", 202021.25, 2, 1, 0, 0, 0, 0), r"is not a \.flo file"),
        (TINY[:6], "cut short inside its header"),
        (TINY + b"\0", r"is 29 bytes long but its header \(2x1\) requires 28"),
        (struct.pack("<fii", 202021.25, 0, 5), r"damaged header \(its size is 0x5\)"),
        (struct.pack("<fii", 202021.25, -2, -3) + bytes(48), r"damaged header \(its size is -2x-3\)"),
        (struct.pack("<fii", 202021.25, 2**31 - 1, 2**31 - 1), "requires 36893488113059364884"),
    ],
)
def test_a_damaged_file_is_refused_before_its_pixels_are_allocated(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.flo").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_flo(tmp_path / "a.flo")


@pytest.mark.parametrize(
    ("path", "message"), [("missing.flo", "does not exist"), (".", "is a folder"), ("a\0b.flo", "cannot be read")]
)
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_flo(tmp_path / path)


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (np.zeros((4, 5)), r"shape HxWx2 with at least one pixel, not \(4, 5\)"),
        (np.zeros((2, 4, 5)), r"not \(2, 4, 5\)"),
        (np.zeros((0, 5, 2)), r"not \(0, 5, 2\)"),
        (np.zeros((4, 5, 2), dtype=complex), "real numbers, not complex128"),
    ],
)
def test_what_is_not_a_flow_is_not_written(tmp_path: Path, flow: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_flo(tmp_path / "a.flo", flow)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_keeps_the_old_flow(tmp_path: Path) -> None:
    (tmp_path / "a.flo").write_bytes(TINY)
    with pytest.raises(InputError, match="No space left"):
        write_flo(tmp_path / "a.flo", np.zeros((3, 3, 2)))
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [TINY]
