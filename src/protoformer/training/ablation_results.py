"""What is kept of a finished run of an ablation: a small json file."""

import dataclasses
import json
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
    return found if found.key == key else None
