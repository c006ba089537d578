"""Point clouds are written as binary .ply files."""

from pathlib import Path

import numpy as np
import pytest

from protoformer.depth.result import write_ply
from protoformer.errors import InputError


def test_a_cloud_is_a_head_and_the_points_in_little_endian(tmp_path: Path) -> None:
    points = np.array([[1, 2, 3], [-4, 5.5, 6]], np.float32)
    write_ply(tmp_path / "bare.ply", points)
    head, body = (tmp_path / "bare.ply").read_bytes().split(b"end_header\n", 1)
    assert head.decode().splitlines() == [
        *("ply", "format binary_little_endian 1.0", "element vertex 2"),
        *("property float x", "property float y", "property float z"),
    ]
    assert body == points.astype("<f4").tobytes()
    write_ply(tmp_path / "colored.ply", points, np.array([[255, 0, 1], [2, 3, 4]], np.uint8))
    head, body = (tmp_path / "colored.ply").read_bytes().split(b"end_header\n", 1)
    assert head.endswith(b"property uchar red\nproperty uchar green\nproperty uchar blue\n")
    assert len(body) == 2 * 15 and body[12:15] == b"\xff\x00\x01" and body[27:] == b"\x02\x03\x04"


def test_what_is_no_cloud_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="points are N x 3"):
        write_ply(tmp_path / "x.ply", np.zeros((3, 2), np.float32))
    with pytest.raises(InputError, match="give uint8 N x 3"):
        write_ply(tmp_path / "x.ply", np.zeros((3, 3), np.float32), np.zeros((2, 3), np.uint8))
    assert not list(tmp_path.iterdir())
