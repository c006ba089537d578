"""What is kept of a finished run of an ablation: a small json file."""

import dataclasses
import json
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
    """Whether every field is of its type; a file from a disk may say anything."""
    whole = (result.seed, result.steps, result.parameters, *result.size)
    scores = result.scores.values() if isinstance(result.scores, dict) else [None]
    if not all(isinstance(each, dict) for each in scores):
        return False
    figures = (
        result.seconds,
        result.gflops,
        result.milliseconds,
        *(value for each in scores for value in each.values()),
    )
    return (
        len(result.size) == 2
        and isinstance(result.device, str)
        and all(isinstance(each, int) and not isinstance(each, bool) for each in whole)
        and all(isinstance(each, int | float) and not isinstance(each, bool) for each in figures)
    )
