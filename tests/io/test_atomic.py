"""A file is written whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from protoformer.errors import InputError
from protoformer.io.files import check_output, write_atomically


def fail_with_full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_bytes_arrive(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new.bin", b"\0\1\2")
    assert (tmp_path / "new.bin").read_bytes() == b"\0\1\2"
    assert [entry.name for entry in tmp_path.iterdir()] == ["new.bin"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "old.bin"
    target.write_bytes(b"a longer old content")
    write_atomically(str(target), b"new")
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("old", [None, b"old content"])
def test_a_full_disk_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, old: bytes | None
) -> None:
    target = tmp_path / "file.bin"
    if old is not None:
        target.write_bytes(old)
    monkeypatch.setattr(os, step, fail_with_full_disk)
    with pytest.raises(InputError, match=r"file\.bin could not be written \(No space left on device\)"):
        write_atomically(target, b"new content")
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == (
        {} if old is None else {"file.bin": old}
    )


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file.bin", b"new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file.bin", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.bin").stat().st_mode) == mode


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"old")
    target.chmod(0o640)
    write_atomically(target, b"new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "file.bin", tmp_path / "link.bin"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_the_longest_name_a_disk_takes_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 251 + ".png")
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"


def test_checking_creates_nothing(tmp_path: Path) -> None:
    assert check_output(tmp_path / "file.bin") == tmp_path / "file.bin"
    assert list(tmp_path.iterdir()) == []


def test_a_bare_name_is_a_file_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("file.bin", b"new")
    assert (tmp_path / "file.bin").read_bytes() == b"new"


@pytest.mark.parametrize("act", [check_output, lambda path: write_atomically(path, b"new")])
class TestRefusedPlaces:
    def test_a_missing_folder(self, tmp_path: Path, act) -> None:
        with pytest.raises(InputError, match=r"the folder .*missing does not exist; create it or choose another\."):
            act(tmp_path / "missing" / "file.bin")
        assert list(tmp_path.iterdir()) == []

    def test_a_file_where_the_folder_belongs(self, tmp_path: Path, act) -> None:
        (tmp_path / "plain").write_bytes(b"x")
        with pytest.raises(InputError, match="plain is a file, not a folder"):
            act(tmp_path / "plain" / "file.bin")

    def test_a_folder(self, tmp_path: Path, act) -> None:
        with pytest.raises(InputError, match="is a folder; give the name of a file"):
            act(tmp_path)

    def test_a_link_to_a_missing_folder(self, tmp_path: Path, act) -> None:
        (tmp_path / "link.bin").symlink_to(tmp_path / "missing" / "file.bin")
        with pytest.raises(InputError, match="missing does not exist"):
            act(tmp_path / "link.bin")

    def test_a_link_to_itself(self, tmp_path: Path, act) -> None:
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(InputError, match="loop cannot be written"):
            act(tmp_path / "loop")

    def test_a_pipe(self, tmp_path: Path, act) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="device or pipe"):
            act(tmp_path / "pipe")

    @pytest.mark.parametrize("name", ["n" * 300, "zero\0byte"])
    def test_an_impossible_name(self, tmp_path: Path, act, name: str) -> None:
        with pytest.raises(InputError, match="choose another path"):
            act(tmp_path / name)

    @pytest.mark.parametrize(("refused", "message"), [("", "is not writable"), ("file.bin", "is write-protected")])
    def test_what_permissions_forbid(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act, refused: str, message: str
    ) -> None:
        (tmp_path / "file.bin").write_bytes(b"old")
        monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path / refused)
        with pytest.raises(InputError, match=message):
            act(tmp_path / "file.bin")
        assert (tmp_path / "file.bin").read_bytes() == b"old"
