"""The folder of a run: what lies where, and whether a run begins there, goes on, or must not be touched."""

import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from protoformer import __version__
from protoformer.errors import InputError
from protoformer.io.files import make_folder, shown, system_reason
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import FoundCheckpoint
from protoformer.training.loggers import read_log
from protoformer.training.recipe import Recipe

FREE = ("what", "run.minutes")
"""What may differ between goes of a run without anyone being told."""
HARMLESS = ("model.start", "model.checkpoint_gradients")
"""What of the model may differ: it does not change which weights there are."""


class RunFolder:
    """A folder for checkpoints, a log, the weights at the end, curves for TensorBoard and a summary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.jsonl"
        self.weights = path / "weights.safetensors"
        self.board = path / "tensorboard"
        self.summary = path / "summary.png"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The folder, made if need be and held against other runs; what is not of a run is not touched."""
        self._refuse_foreign()
        make_folder(self.checkpoints)
        with self._held():
            yield

    def begun(self) -> bool:
        """Whether there is a whole checkpoint to go on from."""
        return checkpoints.find_newest(self.checkpoints, lambda _: None) is not None

    def last(self, recipe: Recipe, told: Callable[[str], None]) -> FoundCheckpoint | None:
        """The checkpoint to go on from, or None in a folder without a run; a run that is not this one's is refused.

        told: takes a sentence for each difference between the recipes that does not matter.
        """
        found = checkpoints.load_newest(self.checkpoints, told)
        if found is None:
            self._refuse_leftovers()
            return None
        self._compare(recipe, found.checkpoint.record, told)
        return found

    def clear(self) -> None:
        """Make way for a run that starts over: checkpoints, log, weights, curves and summary go, and nothing else."""
        try:
            for path in (self.log, self.weights, self.summary, *self.board.glob("events.out.tfevents.*")):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(
                f"{path} cannot be removed ({system_reason(error)}); move it away, or choose another folder."
            ) from None
        checkpoints.clear(self.checkpoints)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(checkpoints.held(self.path))
            except BlockingIOError:
                raise InputError(
                    f"another process trains in {self.path}; wait for it, or choose another folder."
                ) from None
            except OSError as error:
                raise InputError(
                    f"the folder {self.path} cannot be read ({system_reason(error)}); choose another."
                ) from None
            yield

    def _refuse_foreign(self) -> None:
        """A run writes weights, and only over its own."""
        of_a_run = self.checkpoints.is_dir() or bool(read_log(self.log))
        if self.weights.is_dir() or (self.weights.exists() and not of_a_run):
            raise InputError(
                f"{self.weights} is not of a run, and a run would write its weights there; move it away, or choose "
                "another folder."
            )

    def _refuse_leftovers(self) -> None:
        """What a run leaves before its first step is nothing that could be lost."""
        found = []
        if any(record["step"] > 0 for record in read_log(self.log)):
            found.append(self.log)
        if self.weights.exists():
            found.append(self.weights)
        if any(step > 0 for step in checkpoints.list_steps(self.checkpoints)):
            found.append(self.checkpoints)
        if found:
            raise InputError(
                f"{found[0]} is of a run that cannot go on, since it has no whole checkpoint; "
                "choose another folder, or start over with --fresh."
            )

    def _compare(self, recipe: Recipe, record: dict[str, Any], told: Callable[[str], None]) -> None:
        try:
            before = Recipe.from_dict(record["recipe"])
        except KeyError:
            raise InputError(
                f"the checkpoint of the run in {self.path} does not say its recipe; choose another folder, or start "
                "over with --fresh."
            ) from None
        for key in recipe.differences(before):
            now, then = (_at(each.as_dict(), key) for each in (recipe, before))
            if key == "task" or (key.startswith("model.") and key not in HARMLESS):
                raise InputError(
                    f"the run in {self.path} has {key} {shown(then)}, not {shown(now)}, so its weights are of another "
                    "network; go on with the same, choose another folder, or start over with --fresh."
                )
            if key not in FREE:
                told(f"{key} is {shown(now)} from here on, where the run had {shown(then)}.")


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {"protoformer": __version__, "torch": torch.__version__, "python": platform.python_version()}
