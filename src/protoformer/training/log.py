"""The log of a run: one json record a line, appended, and cut back to the checkpoint that a run goes on from."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from protoformer.files import write_atomically
from protoformer.files.reading import system_reason
from protoformer.training.observer import Observer, Progress
from protoformer.training.task import Validated


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log, in order; a line that was cut off when its writer died is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


class RunLog(Observer):
    """Writes what happens to a file. Each record has a step and an event: start, step, validation or checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def started(self, step: int, steps: int | None) -> None:
        """Forget what came after the step: that part of the run was lost, and will happen again."""
        kept = [record for record in read_log(self.path) if record["step"] <= step]
        write_atomically(self.path, "".join(map(_line, kept)).encode())
        self._append({"event": "start", "step": step, "steps": steps})

    def logged(self, progress: Progress) -> None:
        """Write the figures."""
        self._append({"event": "step", **dataclasses.asdict(progress)})

    def validated(self, step: int, found: Validated) -> None:
        """Write the scores."""
        self._append({"event": "validation", "step": step, "on": found.name, **found.scores})

    def saved(self, step: int, path: Path) -> None:
        """Write where."""
        self._append({"event": "checkpoint", "step": step, "path": path.name})

    def _append(self, record: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(record))
        except OSError as error:
            raise InputError(
                f"the log {self.path} could not be written ({system_reason(error)}), and the run ends at its last "
                "checkpoint; check the disk and its permissions, and start it again."
            ) from None


def _line(record: dict[str, Any]) -> str:
    return json.dumps(_plain(record)) + "\n"


def _plain(value: Any) -> Any:
    """For json, which has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value
