"""Tables that appear whole, or not at all, or, after Ctrl-C, beside."""

from pathlib import Path

import pytest

from protoformer.errors import InputError
from protoformer.io.files import TableWriter

HEAD = ("frame", "name")


def test_a_table_has_a_head_and_its_rows(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.csv", HEAD) as table:
        table.write(1, "a")
        table.write(2, 'b,"c"')
        assert not (tmp_path / "t.csv").exists()
    assert (tmp_path / "t.csv").read_text() == 'frame,name\n1,a\n2,"b,""c"""\n'
    assert (table.rows, table.partial_path) == (2, None)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("old")
    with pytest.raises(ValueError, match="stop"), TableWriter(tmp_path / "t.csv", HEAD) as table:
        table.write(1, "a")
        raise ValueError("stop")
    assert (tmp_path / "t.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_ctrl_c_keeps_the_rows_beside(tmp_path: Path) -> None:
    for name in ("t.partial.csv", "t.partial-2.csv"):
        with pytest.raises(KeyboardInterrupt), TableWriter(tmp_path / "t.csv", HEAD) as table:
            table.write(1, "a")
            raise KeyboardInterrupt
        assert table.partial_path == tmp_path / name
        assert table.partial_path.read_text() == "frame,name\n1,a\n"
    with pytest.raises(KeyboardInterrupt), TableWriter(tmp_path / "t.csv", HEAD) as table:
        raise KeyboardInterrupt
    assert table.partial_path is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.partial-2.csv", "t.partial.csv"]


def test_a_table_ends_in_csv(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.txt does not end in \.csv"):
        TableWriter(tmp_path / "t.txt", HEAD)
    with pytest.raises(InputError, match="does not exist"):
        TableWriter(tmp_path / "nowhere" / "t.csv", HEAD)
