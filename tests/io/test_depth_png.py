"""Depth in millimeters, 16 bits."""

from pathlib import Path

import numpy as np

from protoformer.io.formats import read_mm_depth, write_mm_depth


def test_millimeters_come_back_and_what_does_not_fit_is_none(tmp_path: Path) -> None:
    depth = np.array([[0.001, 1.2344, 65.535, 1e-5], [65.536, 0, -2, np.nan]])
    write_mm_depth(tmp_path / "depth.png", depth)
    read = read_mm_depth(tmp_path / "depth.png")
    np.testing.assert_allclose(read.values[0], [0.001, 1.234, 65.535, 0.001], atol=1e-6)
    assert read.valid.tolist() == [[True] * 4, [False] * 4]
