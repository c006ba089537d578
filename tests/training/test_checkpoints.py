"""Checkpoints come back as they were, and whatever is not as it was written is refused."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protoformer.errors import InputError
from protoformer.training.checkpoint import Checkpoint, clear, find_newest, load, save
from protoformer.training.checkpoint_files import pack_tensors


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def silent(sentence: str) -> None:
    raise AssertionError(sentence)


def test_a_checkpoint_comes_back_bit_for_bit(stored, tmp_path: Path) -> None:
    path = stored.saved(tmp_path / "run" / "checkpoints")
    assert path == tmp_path / "run" / "checkpoints" / "step-00001200"
    assert names(path) == ["manifest.json", "record.json", "tensors-00001-of-00001.safetensors"]
    loaded = load(path)
    assert (loaded.step, loaded.record) == (1200, stored.record)
    assert stored.same(loaded.tensors, stored.tensors())


def test_the_manifest_lists_every_file_with_its_length_and_digest(stored, tmp_path: Path) -> None:
    path = stored.saved(tmp_path, part_bytes=4096)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("protoformer checkpoint", 1, 1200)
    listed = {file["name"]: (file["bytes"], file["sha256"]) for file in manifest["files"]}
    for file in path.iterdir():
        if file.name != "manifest.json":
            assert listed.pop(file.name) == (file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
    assert not listed


def test_a_weight_with_two_names_is_stored_twice(stored, tmp_path: Path) -> None:
    weight = torch.arange(6.0)
    shared = {"a": weight, "b": weight, "c": weight[2:4]}
    assert stored.same(load(save(tmp_path, Checkpoint(0, shared, {}))).tensors, shared)


def test_a_checkpoint_may_have_no_tensors(tmp_path: Path) -> None:
    loaded = load(save(tmp_path, Checkpoint(0, {}, {"a": 1})))
    assert loaded == Checkpoint(0, {}, {"a": 1})


@pytest.mark.parametrize("part_bytes", [4096, 5000, 20_000, 10**6])
def test_parts_are_no_larger_than_asked_for_and_join_to_the_same_bits(stored, tmp_path: Path, part_bytes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    large = {f"model.block.{number}.weight": torch.randn(10 + number, 9, generator=generator) for number in range(40)}
    large["model.long"] = torch.randn(6, 1000, generator=generator).bfloat16()
    large["model.zero"] = torch.tensor(1.5, dtype=torch.float64)
    path = save(tmp_path, Checkpoint(1, large, stored.record), part_bytes=part_bytes)
    parts = sorted(path.glob("tensors-*"))
    assert all(part.stat().st_size <= part_bytes for part in parts)
    assert sum(part.stat().st_size for part in parts) > part_bytes * (len(parts) - 2) * 0.5  # nor needlessly small
    assert [part.name for part in parts] == [
        f"tensors-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)
    ]
    assert (len(parts) == 1) == (part_bytes == 10**6)
    assert stored.same(load(path).tensors, large)


def test_tensors_are_packed_in_the_order_of_their_names_and_only_a_large_one_is_cut() -> None:
    small, large = torch.zeros(100), torch.zeros(50, 50)
    parts = pack_tensors({"d": small, "a": small, "e": torch.zeros(400), "b": large, "c": small}, 4096)
    assert [[piece.name for piece in part] for part in parts] == [["a"], ["b"], ["b"], ["b", "c", "d"], ["e"]]
    (first, second, third) = (piece.span for part in parts for piece in part if piece.name == "b")
    assert first and second and third
    assert (first[0], first[1], second[1], third[1]) == (0, second[0], third[0], 2500)
    assert all(piece.span is None for part in parts for piece in part if piece.name != "b")


def test_parts_that_are_too_small_are_refused_before_anything_is_written(stored, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="parts of 100 bytes are too small; make them at least 4096 bytes"):
        stored.saved(tmp_path / "run", part_bytes=100)
    assert not (tmp_path / "run").exists()


def test_the_newest_is_found_and_older_ones_go(stored, tmp_path: Path) -> None:
    for step in (20, 100, 3, 99_999_999, 100_000_000):
        stored.saved(tmp_path, step)
    assert names(tmp_path) == ["step-100000000", "step-99999999"]
    assert find_newest(tmp_path, silent) == tmp_path / "step-100000000"
    stored.saved(tmp_path, 100_000_001, keep=1)
    assert names(tmp_path) == ["step-100000001"]


def test_an_old_one_is_out_of_sight_before_its_files_go(
    stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(16, "Device or resource busy")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", stuck)
        for step in (1, 2):
            stored.saved(tmp_path, step, keep=1)
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["step-00000002"]
    assert len(names(tmp_path)) == 2
    stored.saved(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-00000003"]


def test_a_checkpoint_just_written_stays_though_there_are_later_ones(stored, tmp_path: Path) -> None:
    for step in (500, 400, 3):
        stored.saved(tmp_path, step)
    assert names(tmp_path) == ["step-00000003", "step-00000400", "step-00000500"]


def test_a_torn_one_is_not_counted_among_those_that_are_kept(stored, tmp_path: Path) -> None:
    for step in (1, 2):
        stored.saved(tmp_path, step, keep=3)
    (tmp_path / "step-00000002" / "record.json").unlink()
    stored.saved(tmp_path, 3, keep=2)
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    stored.saved(tmp_path, 4, keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_the_same_step_again_replaces_the_first(stored, tmp_path: Path) -> None:
    stored.saved(tmp_path, 7)
    path = save(tmp_path, Checkpoint(7, {}, {"again": True}))
    assert find_newest(tmp_path, silent) == path
    assert names(tmp_path) == [path.name]
    assert load(path).record == {"again": True}
    assert stored.saved(tmp_path, 8).name == "step-00000008"


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert find_newest(tmp_path, silent) is None
    assert find_newest(tmp_path / "nowhere", silent) is None
    (tmp_path / "step-00000001").write_text("a file")
    (tmp_path / "other").mkdir()
    assert find_newest(tmp_path, silent) is None


def test_a_run_that_starts_over_clears_its_checkpoints_and_nothing_else(stored, tmp_path: Path) -> None:
    stored.saved(tmp_path, 1)
    stored.saved(tmp_path, 2)
    (tmp_path / "log.jsonl").write_text("")
    (tmp_path / ".step-00000003.0a.part").mkdir()
    clear(tmp_path)
    assert names(tmp_path) == ["log.jsonl"]
    clear(tmp_path / "nowhere")


def test_the_remains_of_a_dead_writer_are_cleared_and_a_living_ones_are_not(stored, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="folders cannot be locked on this system")
    dead, living, gone = (tmp_path / f".step-0000000{name}" for name in ("1.aa.part", "2.bb.part", "3.cc.gone"))
    for path in (dead, living, gone):
        path.mkdir()
        (path / "tensors-00001-of-00001.safetensors").write_bytes(b"half")
    handle = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        stored.saved(tmp_path, 5)
    finally:
        os.close(handle)
    assert names(tmp_path) == [living.name, "step-00000005"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_refusal_of_the_system_leaves_everything_as_it_was(
    stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    stored.saved(tmp_path, 1)
    stored.saved(tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def refused(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refused)
        with pytest.raises(InputError) as caught:
            stored.saved(tmp_path, 3)
    assert str(caught.value) == (
        f"the checkpoint of step 3 (0.0 MB) could not be written to {tmp_path} (Input/output error), but the last one, "
        "step-00000002, is intact; free some space there and resume."
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_an_interrupt_while_writing_leaves_nothing_behind(
    stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.saved(tmp_path, 1)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stored.saved(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001"]


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from protoformer.errors import InputError
from protoformer.training.checkpoint import Checkpoint, save
folder = Path(sys.argv[1])
save(folder, Checkpoint(1, {"a": torch.ones(1000)}, {}))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save(folder, Checkpoint(2, {"a": torch.ones(1_000_000)}, {}))
except InputError as error:
    print(error)
"""


def test_a_file_larger_than_the_system_allows_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="this system has no limits on the size of files")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == (
        f"the checkpoint of step 2 (4.0 MB) could not be written to {tmp_path} (File too large), but the last one, "
        "step-00000001, is intact; free some space there and resume.\n"
    )
    assert names(tmp_path) == ["step-00000001"]
    assert find_newest(tmp_path, silent) == tmp_path / "step-00000001"


def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if mount is None or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("only an administrator can mount a small disk; the limit on the size of files is tested instead")
    try:
        path = save(tmp_path, Checkpoint(1, {"a": torch.ones(100_000)}, {}))
        with pytest.raises(InputError) as caught:
            save(tmp_path, Checkpoint(2, {"a": torch.full((200_000,), 2.0)}, {}))
        assert str(caught.value) == (
            f"the checkpoint of step 2 (0.8 MB) could not be written to {tmp_path} (No space left on device), but the "
            "last one, step-00000001, is intact; free some space there and resume."
        )
        assert names(tmp_path) == ["step-00000001"]
        assert find_newest(tmp_path, silent) == path
        assert torch.equal(load(path).tensors["a"], torch.ones(100_000))
        assert save(tmp_path, Checkpoint(3, {"a": torch.ones(100_000)}, {})).name == "step-00000003"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from protoformer.training.checkpoint import Checkpoint, load, find_newest, save

folder = Path(sys.argv[1])
torch.set_num_threads(1)

def save_forever(first):
    step = first
    while True:
        step += 1
        save(folder, Checkpoint(step, {f"t{n}": torch.full((20_000,), float(step)) for n in range(8)}, {"n": step}),
             part_bytes=100_000)

chance, last, went = random.Random(0), 0, 0
for turn in range(12):
    child = os.fork()
    if not child:
        save_forever(last)
    time.sleep(chance.uniform(0.02, 0.25))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = []
    path = find_newest(folder, said.append)
    assert not said, said
    if path is not None:
        found = load(path)
        assert found.record == {"n": found.step} and found.step >= last
        assert all(bool((tensor == found.step).all()) for tensor in found.tensors.values())
        went += found.step > last
        last = found.step
print(last, went)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(stored, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    last, went = map(int, done.stdout.split())
    assert last >= went >= 6  # most of the twelve wrote at least one
    stored.saved(tmp_path, last + 1)
    assert not [name for name in names(tmp_path) if name.startswith(".")]
