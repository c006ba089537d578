"""What is kept of a finished run of an ablation: a small json file."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from protoformer.files import write_atomically

RESULT = "result.json"


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
        values = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        found = RunResult(**{**values, "size": tuple(values["size"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if found.key == key and _is_sound(found) else None


def _is_sound(result: RunResult) -> bool:
    """Whether a result that was read has values of the right types, with which tables can be computed."""
    numbers = (result.seed, result.steps, result.seconds, result.parameters, result.gflops, result.milliseconds)
    try:
        scores = [score for figures in result.scores.values() for score in figures.values()]
    except AttributeError:
        return False
    return (
        all(_is_number(each) and math.isfinite(each) for each in (*numbers, *result.size))
        and len(result.size) == 2
        and isinstance(result.device, str)
        and all(_is_number(score) for score in scores)  # NaN where nothing could be scored
    )


def _is_number(value: object) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return is_whole or isinstance(value, float)
