"""What is kept of a finished run of an ablation: a small json file."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from protoformer.files import write_atomically
from protoformer.files.small_files import read_small_file

RESULT = "result.json"
MAX_BYTES = 2**20
"""A result has some hundred bytes for every dataset; a longer file was not written here."""


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    key, seed: of its `PlannedRun`. steps, seconds: of training. parameters: of the network. gflops, milliseconds: of a
    forward pass at `size`, on `device`. scores: of everything it was judged by, by name.
    """

    key: str
    seed: int
    steps: int
    seconds: float
    parameters: int
    gflops: float
    milliseconds: float
    size: tuple[int, int]
    device: str
    scores: dict[str, dict[str, float]]


def write_result(folder: Path, result: RunResult) -> None:
    """Write it into a run's folder, whole or not at all."""
    write_atomically(folder / RESULT, json.dumps(dataclasses.asdict(result), indent=1).encode())


def read_result(folder: Path, key: str) -> RunResult | None:
    """The result in a run's folder; None where the run is not finished, or its result cannot be read."""
    try:
        values = json.loads(read_small_file(folder / RESULT, MAX_BYTES))
        found = RunResult(**{**values, "size": tuple(values["size"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if found.key == key and _is_sound(found) else None


def _is_sound(result: RunResult) -> bool:
    """Whether every field that was read has its type and can be computed with; a file on a disk may hold anything."""
    scores = result.scores.values() if isinstance(result.scores, dict) else [None]
    if not all(isinstance(each, dict) for each in scores):
        return False
    figures = (result.seconds, result.gflops, result.milliseconds)
    return (
        len(result.size) == 2
        and isinstance(result.device, str)
        and all(_is_whole(each) for each in (result.seed, result.steps, result.parameters, *result.size))
        and all(_is_number(each) and math.isfinite(each) for each in figures)
        and all(_is_number(score) for each in scores for score in each.values())  # NaN if nothing could be scored
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: object) -> bool:
    return _is_whole(value) or isinstance(value, float)
