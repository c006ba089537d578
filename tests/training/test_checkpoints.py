"""Checkpoints come back as they were, and whatever is not as it was written is refused."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as tensors_to

from protoformer.errors import InputError
from protoformer.training.checkpoint_files import packed
from protoformer.training.checkpoints import Checkpoint, clear, load, newest, newest_loaded, parsed_size, save

RECORD = {"recipe": {"task": "flow"}, "random": [3, [1, 2, 2**40]], "loss": 0.1, "none": None, "text": "grün"}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    odd = torch.tensor([0.1, -0.0, torch.nan, torch.inf, 1e-40])
    return {
        "model.weight": torch.randn(7, 5, 3, generator=generator),
        "model.half": torch.randn(9, 11, generator=generator).bfloat16(),
        "ema.odd": odd,
        "optimizer.step": torch.tensor(17.0),
        "optimizer.count": torch.tensor(2**40 + 1),
        "optimizer.empty": torch.empty(0, 4),
        "random.cpu": torch.randint(0, 256, (500,), dtype=torch.uint8, generator=generator),
        "model.flag": torch.tensor([True, False]),
        "model.transposed": torch.arange(6.0).view(2, 3).t(),
    }


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same bits."""

    def bits(tensor: torch.Tensor) -> bytes:
        return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()

    return first.keys() == second.keys() and all(
        (tensor.dtype, tensor.shape, bits(tensor)) == (second[name].dtype, second[name].shape, bits(second[name]))
        for name, tensor in first.items()
    )


def saved(folder: Path, step: int = 1200, **options: int) -> Path:
    return save(folder, Checkpoint(step, tensors(), RECORD), **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def silent(sentence: str) -> None:
    raise AssertionError(sentence)


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = saved(tmp_path / "run" / "checkpoints")
    assert path == tmp_path / "run" / "checkpoints" / "step-00001200"
    assert names(path) == ["manifest.json", "record.json", "tensors-00001-of-00001.safetensors"]
    loaded = load(path)
    assert (loaded.step, loaded.record) == (1200, RECORD)
    assert same(loaded.tensors, tensors())


def test_the_manifest_lists_every_file_with_its_length_and_digest(tmp_path: Path) -> None:
    path = saved(tmp_path, part_bytes=4096)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("protoformer checkpoint", 1, 1200)
    listed = {file["name"]: (file["bytes"], file["sha256"]) for file in manifest["files"]}
    for file in path.iterdir():
        if file.name != "manifest.json":
            assert listed.pop(file.name) == (file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
    assert not listed


def test_a_weight_with_two_names_is_stored_twice(tmp_path: Path) -> None:
    weight = torch.arange(6.0)
    shared = {"a": weight, "b": weight, "c": weight[2:4]}
    assert same(load(save(tmp_path, Checkpoint(0, shared, {}))).tensors, shared)


def test_a_checkpoint_may_have_no_tensors(tmp_path: Path) -> None:
    loaded = load(save(tmp_path, Checkpoint(0, {}, {"a": 1})))
    assert loaded == Checkpoint(0, {}, {"a": 1})


@pytest.mark.parametrize("part_bytes", [4096, 5000, 20_000, 10**6])
def test_parts_are_no_larger_than_asked_for_and_join_to_the_same_bits(tmp_path: Path, part_bytes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    large = {f"model.block.{number}.weight": torch.randn(10 + number, 9, generator=generator) for number in range(40)}
    large["model.long"] = torch.randn(6, 1000, generator=generator).bfloat16()
    large["model.zero"] = torch.tensor(1.5, dtype=torch.float64)
    path = save(tmp_path, Checkpoint(1, large, RECORD), part_bytes=part_bytes)
    parts = sorted(path.glob("tensors-*"))
    assert all(part.stat().st_size <= part_bytes for part in parts)
    assert sum(part.stat().st_size for part in parts) > part_bytes * (len(parts) - 2) * 0.5  # nor needlessly small
    assert [part.name for part in parts] == [
        f"tensors-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)
    ]
    assert (len(parts) == 1) == (part_bytes == 10**6)
    assert same(load(path).tensors, large)


def test_tensors_are_packed_in_the_order_of_their_names_and_only_a_large_one_is_cut() -> None:
    small, large = torch.zeros(100), torch.zeros(50, 50)
    parts = packed({"d": small, "a": small, "e": torch.zeros(400), "b": large, "c": small}, 4096)
    assert [[piece.name for piece in part] for part in parts] == [["a"], ["b"], ["b"], ["b", "c", "d"], ["e"]]
    (first, second, third) = (piece.span for part in parts for piece in part if piece.name == "b")
    assert first and second and third
    assert (first[0], first[1], second[1], third[1]) == (0, second[0], third[0], 2500)
    assert all(piece.span is None for part in parts for piece in part if piece.name != "b")


def test_parts_that_are_too_small_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="parts of 100 bytes are too small; make them at least 4096 bytes"):
        saved(tmp_path / "run", part_bytes=100)
    assert not (tmp_path / "run").exists()


def test_the_newest_is_found_and_older_ones_go(tmp_path: Path) -> None:
    for step in (20, 100, 3, 99_999_999, 100_000_000):
        saved(tmp_path, step)
    assert names(tmp_path) == ["step-100000000", "step-99999999"]
    assert newest(tmp_path, silent) == tmp_path / "step-100000000"
    saved(tmp_path, 100_000_001, keep=1)
    assert names(tmp_path) == ["step-100000001"]


def test_an_old_one_is_out_of_sight_before_its_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(16, "Device or resource busy")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", stuck)
        for step in (1, 2):
            saved(tmp_path, step, keep=1)
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["step-00000002"]
    assert len(names(tmp_path)) == 2
    saved(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-00000003"]


def test_a_checkpoint_just_written_stays_though_there_are_later_ones(tmp_path: Path) -> None:
    for step in (500, 400, 3):
        saved(tmp_path, step)
    assert names(tmp_path) == ["step-00000003", "step-00000400", "step-00000500"]


def test_a_torn_one_is_not_counted_among_those_that_are_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        saved(tmp_path, step, keep=3)
    (tmp_path / "step-00000002" / "record.json").unlink()
    saved(tmp_path, 3, keep=2)
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]
    saved(tmp_path, 4, keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_the_same_step_again_replaces_the_first(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    path = save(tmp_path, Checkpoint(7, {}, {"again": True}))
    assert newest(tmp_path, silent) == path
    assert names(tmp_path) == [path.name]
    assert load(path).record == {"again": True}
    assert saved(tmp_path, 8).name == "step-00000008"


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert newest(tmp_path, silent) is None
    assert newest(tmp_path / "nowhere", silent) is None
    (tmp_path / "step-00000001").write_text("a file")
    (tmp_path / "other").mkdir()
    assert newest(tmp_path, silent) is None


def test_a_run_that_starts_over_clears_its_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    saved(tmp_path, 2)
    (tmp_path / "log.jsonl").write_text("")
    (tmp_path / ".step-00000003.0a.part").mkdir()
    clear(tmp_path)
    assert names(tmp_path) == ["log.jsonl"]
    clear(tmp_path / "nowhere")


def truncated(path: Path) -> None:
    part = path / "tensors-00001-of-00001.safetensors"
    os.truncate(part, part.stat().st_size - 1)


def flipped(path: Path) -> None:
    part = path / "tensors-00001-of-00001.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(bytes(data))


def changed_record(path: Path) -> None:
    record = path / "record.json"
    record.write_bytes(record.read_bytes().replace(b"0.1", b"0.2"))


def without_part(path: Path) -> None:
    (path / "tensors-00001-of-00001.safetensors").unlink()


def without_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def half_a_manifest(path: Path) -> None:
    os.truncate(path / "manifest.json", 200)


def edited(change: Callable[[dict], object], sign: bool = True) -> Callable[[Path], None]:
    """Change the manifest, with a digest that fits, as somebody with bad intentions would."""

    def done(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        before = manifest.pop("sha256")
        change(manifest)
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest() if sign else before
        (path / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))

    return done


def linked(path: Path) -> None:
    record = path / "record.json"
    record.rename(path.parent / "elsewhere.json")
    record.symlink_to(path.parent / "elsewhere.json")


def stored_again(content: dict[str, torch.Tensor]) -> Callable[[Path], None]:
    """Put other tensors into the part, with a manifest that lists them by length and digest."""

    def done(path: Path) -> None:
        data = tensors_to({name: tensor.contiguous() for name, tensor in content.items()})
        (path / "tensors-00001-of-00001.safetensors").write_bytes(data)
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        edited(lambda manifest: manifest["files"][0].update(entry))(path)

    return done


FAULTS = {
    "truncated": (truncated, "tensors-00001-of-00001.safetensors is "),
    "tampered": (flipped, "tensors-00001-of-00001.safetensors was changed after it was written"),
    "record changed": (changed_record, "record.json was changed after it was written"),
    "part missing": (without_part, "tensors-00001-of-00001.safetensors is missing"),
    "manifest missing": (without_manifest, "manifest.json is missing"),
    "manifest torn": (half_a_manifest, "manifest.json is not json of keys and values"),
    "step changed": (
        edited(lambda manifest: manifest.update(step=1300), sign=False),
        "manifest.json was changed after it was written",
    ),
    "other version": (
        edited(lambda manifest: manifest.update(version=2)),
        "it is of version 2, and this package reads version 1",
    ),
    "other format": (edited(lambda manifest: manifest.update(format="x")), "manifest.json is not of a checkpoint"),
    "extra key": (
        edited(lambda manifest: manifest.update(more=1)),
        "manifest.json does not say what a manifest must",
    ),
    "extra key of a file": (
        edited(lambda manifest: manifest["files"][0].update(more=1)),
        "manifest.json does not say what a manifest must",
    ),
    "negative step": (
        edited(lambda manifest: manifest.update(step=-1)),
        "manifest.json does not say what a manifest must",
    ),
    "file outside": (
        edited(lambda manifest: manifest["files"][0].update(name="../../secret")),
        "manifest.json lists other files than a checkpoint has",
    ),
    "absolute file": (
        edited(lambda manifest: manifest["files"][-1].update(name="/etc/passwd")),
        "manifest.json lists other files than a checkpoint has",
    ),
    "file twice": (
        edited(lambda manifest: manifest["files"].append(manifest["files"][-1])),
        "manifest.json lists other files than a checkpoint has",
    ),
    "link": (linked, "record.json is not a regular file"),
}
LATER_FAULTS = {
    "extra tensor": (
        stored_again({**tensors(), "more": torch.zeros(1)}),
        "holds more, which the manifest does not say",
    ),
    "missing tensor": (
        stored_again({name: tensor for name, tensor in tensors().items() if name != "ema.odd"}),
        "ema.odd is not of the type and shape that the manifest says",
    ),
    "other shape": (
        edited(lambda manifest: manifest["tensors"]["ema.odd"].update(shape=[1, 5])),
        "ema.odd is not of the type and shape that the manifest says",
    ),
    "other type": (
        edited(lambda manifest: manifest["tensors"]["ema.odd"].update(dtype="int32")),
        "ema.odd is not of the type and shape that the manifest says",
    ),
    "immense shape": (
        edited(lambda manifest: manifest["tensors"]["ema.odd"].update(shape=[2**40, 2**20])),
        "ema.odd is not of the type and shape that the manifest says",
    ),
}


@pytest.mark.parametrize("fault", [*FAULTS, *LATER_FAULTS])
def test_what_is_not_as_it_was_written_is_refused(tmp_path: Path, fault: str) -> None:
    path = saved(tmp_path / "run")
    damage, reason = {**FAULTS, **LATER_FAULTS}[fault]
    damage(path)
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"the checkpoint {path} cannot be used: ")
    assert reason in message
    assert message.endswith("; take another one, or start over.") and "\n" not in message


@pytest.mark.parametrize("fault", FAULTS)
def test_the_newest_good_one_is_found_behind_a_torn_one(tmp_path: Path, fault: str) -> None:
    good, torn = saved(tmp_path / "run", 1), saved(tmp_path / "run", 2)
    damage, reason = FAULTS[fault]
    damage(torn)
    said: list[str] = []
    assert newest(tmp_path / "run", said.append) == good
    assert len(said) == 1
    assert said[0].startswith(f"the checkpoint {torn} is passed over: {reason}") and said[0].endswith(".")


@pytest.mark.parametrize("find", [newest, newest_loaded])
def test_a_file_that_the_disk_cannot_read_to_its_end_is_damage(
    tmp_path: Path, find: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1)
    failing = (saved(tmp_path, 2) / "tensors-00001-of-00001.safetensors").stat().st_ino

    class Failing(io.FileIO):
        def readinto(self, *_: object) -> int:
            raise OSError(5, "Input/output error")

        readall = readinto  # type: ignore[assignment]

    plain = os.fdopen

    def opened(handle: int, mode: str) -> object:
        bad = os.fstat(handle).st_ino == failing
        return io.BufferedReader(Failing(handle, "rb")) if bad else plain(handle, mode)

    monkeypatch.setattr(os, "fdopen", opened)
    said: list[str] = []
    found = find(tmp_path, said.append)
    assert getattr(found, "path", found) == tmp_path / "step-00000001"
    assert said == [
        f"the checkpoint {tmp_path / 'step-00000002'} is passed over: tensors-00001-of-00001.safetensors cannot be "
        "read (Input/output error)."
    ]


def test_the_newest_that_can_be_used_is_loaded(tmp_path: Path) -> None:
    good, other = saved(tmp_path, 1), saved(tmp_path, 2)
    LATER_FAULTS["other shape"][0](other)  # of which the sums alone say nothing
    said: list[str] = []
    found = newest_loaded(tmp_path, said.append)
    assert found is not None and found.path == good and same(found.checkpoint.tensors, tensors())
    assert len(said) == 1 and said[0].startswith(f"the checkpoint {other} is passed over: ema.odd is not of the type")
    assert newest_loaded(tmp_path / "nowhere", silent) is None


def test_a_part_that_is_not_safetensors_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    junk = b"\x80\x05cos\nsystem\n" * 20
    (path / "tensors-00001-of-00001.safetensors").write_bytes(junk)
    entry = {"bytes": len(junk), "sha256": hashlib.sha256(junk).hexdigest()}
    edited(lambda manifest: manifest["files"][0].update(entry))(path)
    with pytest.raises(InputError, match="does not hold tensors"):
        load(path)


def test_pieces_of_a_tensor_are_joined_in_their_own_order_or_not_at_all(tmp_path: Path) -> None:
    path = save(tmp_path, Checkpoint(1, {"a": torch.arange(3000.0)}, {}), part_bytes=4096)
    edited(lambda manifest: manifest["tensors"]["a"]["parts"].reverse())(path)
    with pytest.raises(InputError, match="holds a, which the manifest does not say"):
        load(path)


def test_pieces_that_do_not_make_up_the_shape_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, Checkpoint(1, {"a": torch.arange(3000.0)}, {}), part_bytes=4096)
    edited(lambda manifest: manifest["tensors"]["a"].update(shape=[3000, 2]))(path)
    with pytest.raises(InputError, match="a is not of the type and shape that the manifest says"):
        load(path)


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not a checkpoint, which is a folder; check the path"):
        load(tmp_path / "nowhere")


def test_the_remains_of_a_dead_writer_are_cleared_and_a_living_ones_are_not(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="folders cannot be locked on this system")
    dead, living, gone = (tmp_path / f".step-0000000{name}" for name in ("1.aa.part", "2.bb.part", "3.cc.gone"))
    for path in (dead, living, gone):
        path.mkdir()
        (path / "tensors-00001-of-00001.safetensors").write_bytes(b"half")
    handle = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        saved(tmp_path, 5)
    finally:
        os.close(handle)
    assert names(tmp_path) == [living.name, "step-00000005"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_refusal_of_the_system_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    saved(tmp_path, 1)
    saved(tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def refused(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refused)
        with pytest.raises(InputError) as caught:
            saved(tmp_path, 3)
    assert str(caught.value) == (
        f"the checkpoint of step 3 (0.0 MB) could not be written to {tmp_path} (Input/output error), but the last one, "
        "step-00000002, is whole; free some room there and go on."
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_an_interrupt_while_writing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            saved(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001"]


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from protoformer.errors import InputError
from protoformer.training.checkpoints import Checkpoint, save
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
        "step-00000001, is whole; free some room there and go on.\n"
    )
    assert names(tmp_path) == ["step-00000001"]
    assert newest(tmp_path, silent) == tmp_path / "step-00000001"


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
            "last one, step-00000001, is whole; free some room there and go on."
        )
        assert names(tmp_path) == ["step-00000001"]
        assert newest(tmp_path, silent) == path
        assert torch.equal(load(path).tensors["a"], torch.ones(100_000))
        assert save(tmp_path, Checkpoint(3, {"a": torch.ones(100_000)}, {})).name == "step-00000003"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from protoformer.training.checkpoints import Checkpoint, load, newest, save

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
    path = newest(folder, said.append)
    assert not said, said
    if path is not None:
        found = load(path)
        assert found.record == {"n": found.step} and found.step >= last
        assert all(bool((tensor == found.step).all()) for tensor in found.tensors.values())
        went += found.step > last
        last = found.step
print(last, went)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    last, went = map(int, done.stdout.split())
    assert last >= went >= 6  # most of the twelve wrote at least one
    saved(tmp_path, last + 1)
    assert not [name for name in names(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize(
    ("text", "size"),
    [("15MB", 15_000_000), ("15MiB", 15 * 2**20), ("500KB", 500_000), ("1.5 gb", 1_500_000_000), ("4096B", 4096)],
)
def test_sizes_are_read_in_either_count(text: str, size: int) -> None:
    assert parsed_size(text) == size


@pytest.mark.parametrize("text", ["", "15", "MB", "15M", "-1MB", "15 MB more", "1e3KB", "15TB", "15iB"])
def test_what_is_no_size_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed_size(text)
    assert str(caught.value) == (
        f"{text!r} is not a size; write a number and B, KB, MB, GB, KiB, MiB or GiB, such as 15MB."
    )
