"""The folder of a run: its files, its lock, and the checks before a run starts or resumes there."""

import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from protoformer import __version__
from protoformer.errors import InputError
from protoformer.io.files import make_folder, short_repr, system_reason
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import Checkpoint
from protoformer.training.loggers import read_log
from protoformer.training.recipe import Recipe

UNREPORTED_KEYS = ("description", "run.minutes")
"""Recipe keys that may change between sessions of a run without a note."""
CHANGEABLE_MODEL_KEYS = ("model.init_weights", "model.activation_checkpointing")
"""Keys of the model section that may change, because they do not affect the shapes or the meaning of the weights."""


class RunFolder:
    """Paths in the folder of a run.

    Attributes:
        path: The folder.
        checkpoints: Folder of checkpoints.
        log: Log as JSON lines.
        weights: Averaged weights, written at the end.
        board: Folder of TensorBoard events.
        summary: Image with curves and examples, written at the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.jsonl"
        self.weights = path / "weights.safetensors"
        self.board = path / "tensorboard"
        self.summary = path / "summary.png"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder if needed and lock it against other runs.

        Raises:
            InputError: If the folder holds weights of something else, or another process trains there.
        """
        self._refuse_foreign_weights()
        make_folder(self.checkpoints)
        with ExitStack() as stack:
            try:
                stack.enter_context(checkpoints.lock_folder(self.path))
            except BlockingIOError:
                raise InputError(
                    f"another process trains in {self.path}; wait for it to end, or choose another folder."
                ) from None
            except OSError as error:
                raise InputError(
                    f"the folder {self.path} cannot be read ({system_reason(error)}); choose another."
                ) from None
            yield

    def begun(self) -> bool:
        """Return whether there is an intact checkpoint to resume from."""
        return checkpoints.find_newest(self.checkpoints, lambda _: None) is not None

    def load_last(self, recipe: Recipe, on_message: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
        """Load the checkpoint to resume from.

        Args:
            recipe: Recipe of this session.
            on_message: Called with a sentence for each damaged checkpoint and each changed recipe key.

        Returns:
            Path and content of the checkpoint, or None in a folder without a run.

        Raises:
            InputError: If the run in the folder trains another network, or its checkpoints are all damaged.
        """
        loaded = checkpoints.load_newest(self.checkpoints, on_message)
        if loaded is None:
            self._refuse_leftovers()
            return None
        self._compare_recipes(recipe, loaded[1].record, on_message)
        return loaded

    def clear(self) -> None:
        """Remove the files of a run (checkpoints, log, weights, curves and summary) and nothing else."""
        try:
            for path in (self.log, self.weights, self.summary, *self.board.glob("events.out.tfevents.*")):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(
                f"{path} cannot be removed ({system_reason(error)}); move it away, or choose another folder."
            ) from None
        checkpoints.clear(self.checkpoints)

    def _refuse_foreign_weights(self) -> None:
        """Raise where the run would overwrite weights that no run has written."""
        has_run = self.checkpoints.is_dir() or bool(read_log(self.log))
        if self.weights.is_dir() or (self.weights.exists() and not has_run):
            raise InputError(
                f"{self.weights} does not belong to a run, and a run would write its weights there; move it away, or "
                "choose another folder."
            )

    def _refuse_leftovers(self) -> None:
        """Raise where a run without an intact checkpoint would be lost; one without a step may be overwritten."""
        leftovers = []
        if any(record["step"] > 0 for record in read_log(self.log)):
            leftovers.append(self.log)
        if self.weights.exists():
            leftovers.append(self.weights)
        if any(step > 0 for step in checkpoints.list_steps(self.checkpoints)):
            leftovers.append(self.checkpoints)
        if leftovers:
            raise InputError(
                f"{leftovers[0]} belongs to a run that cannot be resumed, because it has no intact checkpoint; "
                "choose another folder, or start over with --fresh."
            )

    def _compare_recipes(self, recipe: Recipe, record: dict[str, Any], on_message: Callable[[str], None]) -> None:
        """Raise where the run's recipe is of another network, and report its other differences."""
        try:
            previous = Recipe.from_dict(record["recipe"])
        except KeyError:
            raise InputError(
                f"the checkpoint of the run in {self.path} has no recipe; choose another folder, or start over with "
                "--fresh."
            ) from None
        for key in recipe.differences(previous):
            new, old = (_get(each.as_dict(), key) for each in (recipe, previous))
            if key == "task" or (key.startswith("model.") and key not in CHANGEABLE_MODEL_KEYS):
                raise InputError(
                    f"the run in {self.path} has {key} {short_repr(old)}, not {short_repr(new)}, so its weights are of "
                    "another network; resume with the same value, choose another folder, or start over with --fresh."
                )
            if key not in UNREPORTED_KEYS:
                on_message(f"{key} changes from {short_repr(old)} to {short_repr(new)}.")


def _get(values: Any, key: str) -> Any:
    """Return the value at a dotted key, or None."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def versions() -> dict[str, str]:
    """Return the versions of the software that a run uses."""
    return {"protoformer": __version__, "torch": torch.__version__, "python": platform.python_version()}
