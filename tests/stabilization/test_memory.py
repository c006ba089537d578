"""Memory grows with the length of a clip by only a few numbers per frame."""

import errno
import gc
import itertools
import os
import pickle
import platform
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.errors import InputError
from protoformer.io.memory import TRIM_EVERY, trim_memory
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network
from protoformer.stabilization.analysis import MotionAnalyzer
from protoformer.stabilization.camera_motion import Features
from protoformer.stabilization.metrics import StabilityMeter
from protoformer.stabilization.result import MAX_MEMORY, FieldFile, StoredField, StoredFields

Frames = Callable[[int], Iterator[np.ndarray]]


@pytest.fixture(scope="module")
def model() -> pf.StabilizationPredictor:
    """The smallest networks, with random weights."""
    with pytest.warns(pf.UntrainedWarning):
        network = pf.load("tiny", device="cpu", task="stabilize", stabilization={"field_window": 1}).network
    return pf.StabilizationPredictor(network, False, torch.device("cpu"), build_network(preset("tiny"), "flow"))


@pytest.fixture(scope="module")
def frames() -> Frames:
    texture = np.random.default_rng(0).integers(0, 256, (80, 112, 3), dtype=np.uint8)

    def moving(count: int) -> Iterator[np.ndarray]:
        return (np.ascontiguousarray(texture[at % 9 : 64 + at % 9, at % 7 : 96 + at % 7]) for at in range(count))

    return moving


def fields(count: int, shape: tuple[int, ...] = (2, 3, 4)) -> list[StoredField]:
    return list(np.random.default_rng(1).normal(size=(count, *shape)).astype(np.float32))


def test_no_tensor_is_kept_for_a_frame_that_is_done(model: pf.StabilizationPredictor, frames: Frames) -> None:
    alive: dict[int, int] = {}

    def count(done: int, _: int) -> None:
        if done in (12, 28):
            gc.collect()
            alive[done] = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    result = model.stabilize(frames(29), progress=count)
    assert len(result.local) == len(result.times) == 29
    assert alive[28] <= alive[12]  # fewer if tensors of other tests are collected meanwhile


def test_fields_are_kept_in_a_file_and_are_the_same(
    model: pf.StabilizationPredictor, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    output: list[tuple[StoredField, weakref.ref[StoredField]]] = []
    local = MotionAnalyzer.local_warps

    def watched(*given: object) -> list[StoredField]:
        made = local(*given)  # type: ignore[arg-type]
        output.extend((each.copy(), weakref.ref(each)) for each in made)
        return made

    monkeypatch.setattr(MotionAnalyzer, "local_warps", watched)
    result = model.stabilize(frames(12), strength=0.5, crop=0.9)
    assert len(output) == len(result.local) == 12
    assert all(kept() is None for _, kept in output)
    for (field, _), stored in zip(output, result.local, strict=True):
        assert stored.dtype == np.float32 and np.array_equal(stored, 0.5 * field)
    again = pickle.loads(pickle.dumps(result))
    assert all(np.array_equal(one, other) for one, other in zip(again.local, result.local, strict=True))


def test_the_meter_keeps_only_numbers() -> None:
    points = np.random.default_rng(3).uniform(0, 60, (40, 2)).astype(np.float32)
    marks = np.random.default_rng(4).normal(size=(40, 128)).astype(np.float32)
    meter = StabilityMeter()
    for number in range(6):
        meter.add(Features(points, marks, (30.0, 30.0)), Features(points + number, marks, (30.0, 30.0)))
    assert (len(meter.views), len(meter.motions)) == (6 * 9, 5 * 9)
    scores = meter.scores()
    assert scores.frames == 6 and scores.skipped_frames == scores.skipped_motions == 0
    assert scores.cropping == pytest.approx(1, abs=1e-4) and scores.acceleration == pytest.approx(0, abs=1e-3)


def test_stored_fields_are_a_sequence() -> None:
    file, given = FieldFile(), fields(5)
    stored = StoredFields(file, 2.0)
    assert not stored
    file.extend(given)
    assert len(stored) == 5 and np.array_equal(stored[-1], 2 * given[4]) and np.array_equal(stored[0], 2 * given[0])
    assert all(np.array_equal(one, 2 * other) for one, other in zip(stored[1:4], given[1:4], strict=True))
    with pytest.raises(IndexError):
        stored[5]
    with pytest.raises(ValueError, match="shape"):
        file.extend(fields(1, (2, 3, 5)))


def test_more_than_a_little_is_on_the_disk_and_gone_with_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file, given = FieldFile(), fields(3, (2, 256, 256))
    file.extend(itertools.islice(itertools.cycle(given), 12))
    assert 12 * given[0].nbytes > MAX_MEMORY
    assert np.array_equal(file.read(10), given[1])
    assert not list(tmp_path.iterdir())  # it has no name, so nothing can leave it behind
    file.extend(given)  # after a reading it goes on at the end
    assert np.array_equal(file.read(12), given[0]) and np.array_equal(file.read(11), given[2])


def test_a_full_disk_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(InputError, match=r"no room for temporary files in .* \(No space left on device\)"):
        FieldFile().extend(fields(10, (2, 256, 256)))


def test_unused_memory_goes_back_to_the_system() -> None:
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc holds on to memory like this and can be asked for it")

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    pieces = [torch.ones(16_000) for _ in range(2000)]  # 122 MiB, too small a piece for pages of its own
    last = pieces[-1]
    pieces.clear()  # the last one lies behind all that is free now
    before = resident()
    assert sum(1 for _ in trim_memory(range(TRIM_EVERY + 1))) == TRIM_EVERY + 1
    assert resident() < before - 80
    assert last.sum() == 16_000
