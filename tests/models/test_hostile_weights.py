"""Files that claim to hold weights: whatever they say, they cost little and end in one sentence."""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save

import protoformer as pf
from protoformer.errors import InputError
from protoformer.models import pretrained as weights_module
from protoformer.models.config import PRESETS, TASKS, ModelConfig
from protoformer.models.pretrained import (
    DIGESTS,
    KEY,
    MAX_HEADER_BYTES,
    MAX_PARAMETERS,
    packaged_digests,
    packaged_weights,
    parameter_count,
)
from protoformer.models.protoformer import ProtoFormer, build_network

PACKAGED = Path(pf.__file__).parent / "weights"
SECONDS = 5.0
"""The longest that any of these files may take; the fastest machine and the slowest differ by much."""


@pytest.fixture
def good(tmp_path: Path, tiny: pf.FlowPredictor) -> Path:
    """A small file of weights that can be read."""
    tiny.save(tmp_path / "good.safetensors")
    return tmp_path / "good.safetensors"


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The parsed header of a file, and the bytes of its tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def raw(header: str | dict[str, Any], body: bytes = b"", length: int | None = None) -> bytes:
    """A file of this header, whatever it says."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def refused(path: Path, data: bytes) -> str:
    """The message with which a file of these bytes is refused, which comes soon."""
    path.write_bytes(data)
    began = time.perf_counter()
    with pytest.raises(InputError) as caught:
        ProtoFormer.load_weights(path)
    assert time.perf_counter() - began < SECONDS
    message = str(caught.value)
    assert len(message) < 800 and message.count(". ") == 0
    return message


def described(path: Path, **fields: Any) -> bytes:
    """The same file, whose configuration has other values."""
    data = path.read_bytes()
    about = json.loads(header_of(path)[0]["__metadata__"][KEY])
    config = about["config"]
    for name, value in fields.items():
        section, _, field = name.partition(".")
        config[section] = {**config[section], field: value} if field else value
    return save(load_tensors(data), metadata={KEY: json.dumps(about)})


@pytest.mark.parametrize(
    "fields",
    [
        {"encoder.depths": [1_000_000, 2]},
        {"encoder.depths": [2, 10**30]},
        {"flow.hidden_dim": 10**9},
        {"flow.hidden_dim": 10**300},
        {"flow.memory_layers": 10**7, "flow.decoder": "memory"},
        {"tracking.num_stages": 10**6},
        {"flow.corr_levels": 10**6},
        {"flow.corr_radius": 10**6},
        {"encoder.num_prototypes": 10**9},
        {"encoder.num_iterations": 10**9},
        {"flow.num_updates": 10**9},
        {"flow.min_pixels": 10**12},
        {"tracking.target_grid": 10**5},
        {"stabilization.field_window": 10**9},
        {"depth.min_depth": 1e-300},
        {"depth.max_depth": 1e300},
        {"encoder.embed_dims": [[[[1]]], 2]},
        {"encoder.update": {"a": [1] * 1000}},
        {"x" * 100_000: 1},
        {"encoder." + "x" * 100_000: 1},
        {"encoder": [1]},
    ],
    ids=lambda fields: next(iter(fields))[:20],
)
def test_every_number_of_a_configuration_has_bounds(good: Path, fields: dict[str, Any]) -> None:
    assert "does not hold weights of this package (" in refused(good, described(good, **fields))


def bounds() -> dict[str, float]:
    """The upper bound of every numeric field, by dotted name."""
    largest = {}
    for section in dataclasses.fields(ModelConfig):
        for field in dataclasses.fields(section.default_factory):
            if not isinstance(field.default, bool | str):
                largest[f"{section.name}.{field.name}"] = field.metadata["bounds"]["max"]
    return largest


def test_bounds_are_generous_and_cover_every_number() -> None:
    assert all(largest is not None for largest in bounds().values())
    for config in PRESETS.values():
        for name, largest in bounds().items():
            section, field = name.split(".")
            value = getattr(getattr(config, section), field)
            if name not in ("depth.min_depth", "depth.max_depth"):
                assert 8 * max(value if isinstance(value, tuple) else (value,)) <= largest, name
    assert all(
        10 * parameter_count(ProtoFormer, config, (task,)) < MAX_PARAMETERS
        for task in TASKS
        for config in PRESETS.values()
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_largest_network_within_the_bounds_is_refused_before_it_is_built(task: str) -> None:
    most: dict[str, dict[str, Any]] = {}
    for name, largest in bounds().items():
        section, field = name.split(".")
        if name not in ("depth.min_depth", "depth.max_depth"):
            pair = field in ("embed_dims", "depths")
            most.setdefault(section, {})[field] = (int(largest), int(largest)) if pair else int(largest)
    began = time.perf_counter()
    with pytest.raises(InputError, match=r"would have \d+ parameters, and at most \d+ are built; choose smaller"):
        build_network(ModelConfig().changed(**most), task)
    assert time.perf_counter() - began < SECONDS


def test_a_claim_of_a_million_layers_takes_no_memory(good: Path) -> None:
    data = described(good, **{"encoder.depths": [1_000_000, 2]})
    tracemalloc.start()
    try:
        refused(good, data)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("__metadata__"),
        lambda header: header.update(__metadata__={KEY: {"config": []}}),
        lambda header: header.update(__metadata__=[1]),
        lambda header: header.update(__metadata__={KEY: 3}),
        lambda header: header.update(__metadata__={KEY: "[" * 100_000}),
        lambda header: header.update(__metadata__={KEY: '{"a": ' * 5000 + "1" + "}" * 5000}),
        lambda header: header.update(__metadata__={KEY: '{"tasks": "flow", "trained": true, "config": {}}'}),
        lambda header: header.update(
            __metadata__={KEY: '{"tasks": ["flow"], "trained": true, "config": {}, "tasks": 1}'}
        ),
        lambda header: header.update(__metadata__={KEY: '{"tasks": ["flow"], "trained": true, "config": null}'}),
        lambda header: header.update(
            __metadata__={KEY: '{"tasks": ["flow"], "trained": 1, "config": {"depth": {"min_depth": NaN}}}'}
        ),
        lambda header: header.update(
            __metadata__={
                KEY: '{"tasks": ["flow"], "trained": 1, "config": {"flow": {"num_prototypes": ' + "9" * 5000 + "}}}"
            }
        ),
        lambda header: header.update(__metadata__={KEY: '{"tasks": [], "trained": true, "config": {}}'}),
        lambda header: header.update(__metadata__={KEY: '{"tasks": ["flow", "flow"], "trained": true, "config": {}}'}),
        lambda header: header.update(__metadata__={KEY: '{"tasks": [["flow"]], "trained": true, "config": {}}'}),
        lambda header: header.update(
            __metadata__={KEY: '{"tasks": ["flow"], "trained": true, "config": {}, "separate_encoders": 3}'}
        ),
        lambda header: header.update(more=7),
        lambda header: header.update(more={"dtype": "F32"}),
        lambda header: header.update(more={"dtype": "F32", "shape": [0], "data_offsets": [0, 0], "code": "x"}),
        lambda header: header.update(more={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
        lambda header: header.update(more={"dtype": "F32", "shape": [2**62], "data_offsets": [0, 2**62]}),
        lambda header: header.update(more={"dtype": "F32", "shape": [10**40], "data_offsets": [0, 4]}),
        lambda header: header.update(more={"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}),
        lambda header: header.update(more={"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}),
        lambda header: header.update(more={"dtype": "F32", "shape": [2**60] * 5000, "data_offsets": [0, 4]}),
        lambda header: header.update(more={"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}),
        lambda header: header.update(more={"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}),
    ],
)
def test_a_header_that_is_not_one_is_refused(good: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    header, body = header_of(good)
    change(header)
    assert "does not hold weights of this package (" in refused(good, raw(header, body))


def test_a_header_that_claims_a_length_is_held_to_it(good: Path) -> None:
    header, body = header_of(good)
    assert "its header is longer than the file" in refused(good, raw(header, body, length=2**63))
    assert "its header is longer than the file" in refused(good, raw(header, body, length=len(body) * 2))
    long = raw(" " * (MAX_HEADER_BYTES + 1))
    assert f"at most {MAX_HEADER_BYTES} are read" in refused(good, long)
    assert "does not hold weights of this package (" in refused(good, raw("[" * 100_000))


def test_a_name_given_twice_is_refused(good: Path) -> None:
    header, body = header_of(good)
    name = next(each for each in header if each != "__metadata__")
    text = json.dumps(header)
    twice = text[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    assert f"its JSON has '{name}' twice" in refused(good, raw(twice, body))


def test_overlapping_tensors_and_bytes_of_nobody_are_refused(good: Path) -> None:
    header, body = header_of(good)
    names = [name for name in header if name != "__metadata__"]
    one = next(name for name in names if header[name]["shape"] == [32])
    two = next(name for name in names if name != one and header[name]["shape"] == header[one]["shape"])
    overlapping = json.loads(json.dumps(header))
    overlapping[two]["data_offsets"] = header[one]["data_offsets"]
    assert "does not begin where the tensor before it ends" in refused(good, raw(overlapping, body))
    assert "and the file has" in refused(good, raw(header, body + b"code"))


@pytest.mark.parametrize("kind", [torch.float64, torch.int32, torch.uint8, torch.bool])
def test_weights_of_another_type_are_refused(good: Path, kind: torch.dtype) -> None:
    metadata = header_of(good)[0]["__metadata__"]
    tensors = {name: tensor.to(kind) for name, tensor in load_tensors(good.read_bytes()).items()}
    assert "and weights have F16, BF16, F32" in refused(good, save(tensors, metadata=metadata))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(good: Path, value: float) -> None:
    metadata = header_of(good)[0]["__metadata__"]
    tensors = load_tensors(good.read_bytes())
    name = max(tensors)
    tensors[name].flatten()[-1] = value
    assert f"holds numbers that are not finite, in {name}" in refused(good, save(tensors, metadata=metadata))


def test_other_tensors_than_the_network_has_are_refused_unread(good: Path) -> None:
    header, _ = header_of(good)
    metadata = header.pop("__metadata__")
    huge = {name: {**entry, "shape": [2**25, 2**3]} for name, entry in header.items()}
    size = 2**30
    for place, entry in enumerate(huge.values()):
        entry["data_offsets"] = [place * size, (place + 1) * size]
    good.write_bytes(raw({**huge, "__metadata__": metadata}))
    try:
        os.truncate(good, good.stat().st_size + size * len(huge))  # a file of holes: it is long and takes no room
    except OSError as error:
        pytest.skip(f"the disk has no files of {size * len(huge)} bytes with holes ({error})")
    began = time.perf_counter()
    with pytest.raises(InputError, match="does not fit the network it describes"):
        ProtoFormer.load_weights(good)
    assert time.perf_counter() - began < SECONDS


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="is not a regular file"):
        ProtoFormer.load_weights(tmp_path / "w.safetensors")


class TestDigests:
    def test_they_are_those_of_the_packaged_weights(self) -> None:
        files = sorted(PACKAGED.glob("*.safetensors"))
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        assert found and packaged_digests() == found

    def test_other_weights_in_the_package_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("stabilize-grid.safetensors", "flow.safetensors", DIGESTS):
            shutil.copy(PACKAGED / name, tmp_path / name)
        monkeypatch.setattr(weights_module, "_package_folder", lambda: tmp_path)
        path = packaged_weights("stabilize-grid")
        assert path == tmp_path / "stabilize-grid.safetensors"
        assert ProtoFormer.load_weights(path).trained
        for name in ("flow.safetensors", "stabilize-grid.safetensors"):  # the lender's are checked as its own are
            data = bytearray((PACKAGED / name).read_bytes())
            data[-1] ^= 1
            (tmp_path / name).write_bytes(bytes(data))
            with pytest.raises(InputError, match=rf"{name} is not the file that this package was released with"):
                ProtoFormer.load_weights(path)
            (tmp_path / name).write_bytes((PACKAGED / name).read_bytes())
        (tmp_path / DIGESTS).write_text("")
        with pytest.raises(InputError, match="is not the file that this package was released with"):
            ProtoFormer.load_weights(path)
        (tmp_path / DIGESTS).unlink()
        with pytest.raises(InputError, match="cannot be read; install the package again"):
            ProtoFormer.load_weights(path)

    def test_weights_elsewhere_need_none(self, good: Path) -> None:
        assert ProtoFormer.load_weights(good).tasks == ("flow",)
