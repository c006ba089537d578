"""The folder of a run: what lies where, and whether a run begins there, goes on, or must not be touched."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protoformer import __version__
from protoformer.errors import InputError
from protoformer.files.folders import made_folder
from protoformer.training import checkpoints
from protoformer.training.checkpoints import Checkpoint
from protoformer.training.recipe import Recipe

FREE = ("what", "run.minutes")
"""What may differ between goes of a run without anyone being told."""
HARMLESS = ("model.start", "model.checkpoint_gradients")
"""What of the model may differ: it does not change which weights there are."""


@dataclass(frozen=True)
class Found:
    """A checkpoint and where it lies."""

    path: Path
    checkpoint: Checkpoint


class RunFolder:
    """A folder for checkpoints, a log, the weights at the end, curves for TensorBoard and a summary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.jsonl"
        self.weights = path / "weights.safetensors"
        self.board = path / "tensorboard"
        self.summary = path / "summary.png"

    def last(self, recipe: Recipe, told: Callable[[str], None]) -> Found | None:
        """The checkpoint to go on from, or None in a folder without a run; a run that is not this one's is refused.

        told: takes a sentence for each difference between the recipes that does not matter.
        """
        path = checkpoints.newest(self.checkpoints, told) if self.checkpoints.is_dir() else None
        if path is None:
            self._refuse_leftovers()
            return None
        checkpoint = checkpoints.load(path)
        self._compare(recipe, checkpoint.record, told)
        return Found(path, checkpoint)

    def clear(self) -> None:
        """Make way for a run that starts over: checkpoints, log, weights, curves and summary go, and nothing else."""
        if self.checkpoints.is_dir():
            checkpoints.clear(self.checkpoints)
        for path in (self.log, self.weights, self.summary, *self.board.glob("events.out.tfevents.*")):
            path.unlink(missing_ok=True)

    def made(self) -> "RunFolder":
        """The folder, on the disk."""
        made_folder(self.checkpoints)
        return self

    def _refuse_leftovers(self) -> None:
        found = [path for path in (self.log, self.weights) if path.exists()]
        if self.checkpoints.is_dir():
            found += sorted(self.checkpoints.glob("step-*"))
        if found:
            raise InputError(
                f"{found[0]} is of a run that cannot go on, since it has no whole checkpoint; "
                "choose another folder, or start over with --fresh."
            )

    def _compare(self, recipe: Recipe, record: dict[str, Any], told: Callable[[str], None]) -> None:
        before = Recipe.from_dict(record["recipe"])
        for key in recipe.differences(before):
            now, then = (_at(each.as_dict(), key) for each in (recipe, before))
            if key == "task" or (key.startswith("model.") and key not in HARMLESS):
                raise InputError(
                    f"the run in {self.path} has {key} {then!r}, not {now!r}, so its weights are of another network; "
                    "go on with the same, choose another folder, or start over with --fresh."
                )
            if key not in FREE:
                told(f"{key} is {now!r} from here on, where the run had {then!r}.")


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {"protoformer": __version__, "torch": torch.__version__, "python": platform.python_version()}
