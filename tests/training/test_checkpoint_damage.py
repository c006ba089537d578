"""Checkpoints that are not as they were written are refused, or passed over for the newest that is."""

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from protoformer.errors import InputError
from protoformer.training.checkpoint import Checkpoint, find_newest, load, load_newest, save


def silent(sentence: str) -> None:
    raise AssertionError(sentence)


def truncated(path: Path) -> None:
    part = path / "tensors.safetensors"
    os.truncate(part, part.stat().st_size - 1)


def flipped(path: Path) -> None:
    part = path / "tensors.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(bytes(data))


def changed_record(path: Path) -> None:
    record = path / "record.json"
    record.write_bytes(record.read_bytes().replace(b"0.1", b"0.2"))


def without_part(path: Path) -> None:
    (path / "tensors.safetensors").unlink()


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


def signed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the tensor file, with a manifest that lists it by its new length and digest."""

    def done(path: Path) -> None:
        file = path / "tensors.safetensors"
        data = change(file.read_bytes())
        file.write_bytes(data)
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        edited(lambda manifest: manifest["files"].update({"tensors.safetensors": entry}))(path)

    return done


def header(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Change the header of the tensor file, with a manifest that fits."""

    def changed(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        content = json.loads(data[8 : 8 + length])
        change(content)
        encoded = json.dumps(content).encode()
        return len(encoded).to_bytes(8, "little") + encoded + data[8 + length :]

    return signed(changed)


FAULTS = {
    "truncated": (truncated, "tensors.safetensors is "),
    "tampered": (flipped, "tensors.safetensors was changed after it was written"),
    "record changed": (changed_record, "record.json was changed after it was written"),
    "part missing": (without_part, "tensors.safetensors is missing"),
    "manifest missing": (without_manifest, "manifest.json is missing"),
    "manifest torn": (half_a_manifest, "manifest.json is not a JSON object"),
    "step changed": (
        edited(lambda manifest: manifest.update(step=1300), sign=False),
        "manifest.json was changed after it was written",
    ),
    "other version": (
        edited(lambda manifest: manifest.update(version=3)),
        "it is of version 3, and this package reads version 2",
    ),
    "other format": (
        edited(lambda manifest: manifest.update(format="x")),
        "manifest.json is not the manifest of a checkpoint",
    ),
    "extra key": (
        edited(lambda manifest: manifest.update(more=1)),
        "manifest.json has missing, unknown or invalid keys",
    ),
    "extra key of a file": (
        edited(lambda manifest: manifest["files"]["tensors.safetensors"].update(more=1)),
        "manifest.json has missing, unknown or invalid keys",
    ),
    "negative step": (
        edited(lambda manifest: manifest.update(step=-1)),
        "manifest.json has missing, unknown or invalid keys",
    ),
    "file outside": (
        edited(
            lambda manifest: manifest["files"].update({"../../secret": manifest["files"].pop("tensors.safetensors")})
        ),
        "manifest.json lists other files than a checkpoint has",
    ),
    "absolute file": (
        edited(lambda manifest: manifest["files"].update({"/etc/passwd": manifest["files"].pop("record.json")})),
        "manifest.json lists other files than a checkpoint has",
    ),
    "one more file": (
        edited(lambda manifest: manifest["files"].update(more=manifest["files"]["record.json"])),
        "manifest.json lists other files than a checkpoint has",
    ),
    "link": (linked, "record.json is not a regular file"),
}
LATER_FAULTS = {
    "not tensors": (signed(lambda _: b"\x80\x05cos\nsystem\n" * 20), "tensors.safetensors does not hold tensors"),
    "missing tensor": (header(lambda content: content.pop("ema.odd")), "tensors.safetensors does not hold tensors"),
    "other shape": (
        header(lambda content: content["ema.odd"].update(shape=[1, 4])),
        "tensors.safetensors does not hold tensors",
    ),
    "other type": (
        header(lambda content: content["ema.odd"].update(dtype="F64")),
        "tensors.safetensors does not hold tensors",
    ),
    "immense shape": (
        header(lambda content: content["ema.odd"].update(shape=[2**40, 2**20])),
        "tensors.safetensors does not hold tensors",
    ),
    "overlap": (
        header(lambda content: content["ema.odd"].update(data_offsets=content["model.weight"]["data_offsets"])),
        "tensors.safetensors does not hold tensors",
    ),
}


@pytest.mark.parametrize("fault", [*FAULTS, *LATER_FAULTS])
def test_what_is_not_as_it_was_written_is_refused(stored, tmp_path: Path, fault: str) -> None:
    path = stored.saved(tmp_path / "run")
    damage, reason = {**FAULTS, **LATER_FAULTS}[fault]
    damage(path)
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"the checkpoint {path} cannot be used: ")
    assert reason in message
    assert message.endswith("; use another one, or start over.") and "\n" not in message


@pytest.mark.parametrize("fault", FAULTS)
def test_the_newest_good_one_is_found_behind_a_torn_one(stored, tmp_path: Path, fault: str) -> None:
    good, torn = stored.saved(tmp_path / "run", 1), stored.saved(tmp_path / "run", 2)
    damage, reason = FAULTS[fault]
    damage(torn)
    said: list[str] = []
    assert find_newest(tmp_path / "run", said.append) == good
    assert len(said) == 1
    assert said[0].startswith(f"the checkpoint {torn} is skipped: {reason}") and said[0].endswith(".")


@pytest.mark.parametrize("find", [find_newest, load_newest])
def test_a_file_that_the_disk_cannot_read_to_its_end_is_damage(
    stored, tmp_path: Path, find: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.saved(tmp_path, 1)
    failing = (stored.saved(tmp_path, 2) / "tensors.safetensors").stat().st_ino

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
    assert (found[0] if isinstance(found, tuple) else found) == tmp_path / "step-00000001"
    assert said == [
        f"the checkpoint {tmp_path / 'step-00000002'} is skipped: tensors.safetensors cannot be "
        "read (Input/output error)."
    ]


def test_the_newest_that_can_be_used_is_loaded(stored, tmp_path: Path) -> None:
    good, other = stored.saved(tmp_path, 1), stored.saved(tmp_path, 2)
    LATER_FAULTS["other shape"][0](other)  # of which the sums alone say nothing
    said: list[str] = []
    found = load_newest(tmp_path, said.append)
    assert found is not None and found[0] == good and stored.same(found[1].tensors, stored.tensors())
    assert len(said) == 1 and said[0].startswith(
        f"the checkpoint {other} is skipped: tensors.safetensors does not hold"
    )
    assert load_newest(tmp_path / "nowhere", silent) is None


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not a checkpoint, which is a folder; check the path"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "change",
    [
        header(lambda content: content.update(x={"dtype": "F32", "shape": [10**30, 0], "data_offsets": [0, 0]})),
        edited(lambda manifest: manifest["files"]["tensors.safetensors"].update(bytes=2**40)),
        edited(lambda manifest: manifest.update(version=["x" * 100] * 1000)),
        edited(lambda manifest: manifest["files"].update({"y" * 10**5: 3})),
    ],
    ids=["shape", "bytes", "version", "name"],
)
def test_a_manifest_that_claims_much_is_refused_in_few_words(stored, tmp_path: Path, change) -> None:
    path = stored.saved(tmp_path)
    change(path)
    with pytest.raises(InputError) as caught:
        load(path)
    assert len(str(caught.value)) < 500


def test_a_long_file_of_holes_is_not_read(stored, tmp_path: Path) -> None:
    path = stored.saved(tmp_path)
    part = path / "tensors.safetensors"
    os.truncate(part, 2**36)
    edited(lambda manifest: manifest["files"]["tensors.safetensors"].update(bytes=2**36))(path)
    with pytest.raises(InputError, match=r"its files have more than 8589934592 bytes, which is too much"):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": None},
        {"recipe": {"model": {"preset": ["tiny"]}}},
        {"random": {}},
        {"random": {"python": [3, [1], None], "numpy": {}}},
        {"seconds": "x"},
        {"seconds": float("inf")},
        {"took": {"save": "x"}},
        {"took": [1]},
    ],
    ids=str,
)
def test_a_record_that_is_not_of_a_run_is_refused(lines, tmp_path: Path, change: dict[str, object]) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=2)).run()
    found = lines.last(tmp_path)
    save(tmp_path / "checkpoints", Checkpoint(found.step, found.tensors, {**found.record, **change}))
    with pytest.raises(InputError):
        lines.trainer(tmp_path, lines.recipe(steps=3)).run()


@pytest.mark.parametrize("key", ["recipe", "random", "seconds", "broken", "took"])
def test_a_record_that_lacks_something_is_refused(lines, tmp_path: Path, key: str) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=2)).run()
    found = lines.last(tmp_path)
    record = {name: value for name, value in found.record.items() if name != key}
    save(tmp_path / "checkpoints", Checkpoint(found.step, found.tensors, record))
    with pytest.raises(InputError, match=r"start over with --fresh"):
        lines.trainer(tmp_path, lines.recipe(steps=3)).run()


def test_a_random_state_that_is_none_is_refused(lines, tmp_path: Path) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=2)).run()
    found = lines.last(tmp_path)
    tensors = {**found.tensors, "random.torch": torch.zeros(3)}
    save(tmp_path / "checkpoints", Checkpoint(found.step, tensors, found.record))
    with pytest.raises(InputError, match=r"does not hold the state of a run"):
        lines.trainer(tmp_path, lines.recipe(steps=3)).run()


@pytest.mark.parametrize("change", ["extra", "missing", "other shape"])
def test_tensors_of_another_network_are_refused(lines, tmp_path: Path, change: str) -> None:
    lines.trainer(tmp_path, lines.recipe(steps=2)).run()
    found = lines.last(tmp_path)
    tensors = dict(found.tensors)
    name = next(each for each in tensors if each.startswith("ema."))
    if change == "extra":
        name = "model.more"
        tensors[name] = torch.zeros(1)
    elif change == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(3, 3)
    save(tmp_path / "checkpoints", Checkpoint(found.step, tensors, found.record))
    with pytest.raises(InputError, match=rf"tensor {name} does not fit the recipe's network"):
        lines.trainer(tmp_path, lines.recipe(steps=3)).run()
