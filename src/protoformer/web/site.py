"""What every tab of the page is given: where files go, what is allowed, and the sentence for what went wrong."""

import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError, UntrainedWarning
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.memory import is_out_of_memory
from protoformer.loading import load
from protoformer.web.examples import Examples, render_examples
from protoformer.web.limits import Limits
from protoformer.web.results import RECENT_SECONDS, Results, Sweeper

KEEP_SECONDS = 1800
"""How long uploads and results are kept at most, while the page runs; all go when it ends."""
NO_MEMORY = "The memory of this machine ran out; give smaller images."
GONE = "This result was deleted in the meantime; compute it again."


@dataclass(frozen=True)
class Site:
    """One running page.

    model: the name of the flow model, as given. folder: the only one it writes to. limits: of what people may ask for.
    depth_model: the name of the depth model, as given.
    track_model: the name of the model that follows boxes, as given.
    stabilize_model: the name of the stabilizing model, as given.
    """

    model: str
    folder: Path
    limits: Limits
    depth_model: str = "depth"
    track_model: str = "track"
    stabilize_model: str = "stabilize"

    @property
    def served(self) -> Path:
        """The one folder from which files go out: uploads and downloads."""
        return self.folder / "served"

    @cached_property
    def flow(self) -> FlowPredictor:
        """The flow model, loaded once for all tabs."""
        model: FlowPredictor = _loaded(self.model, "flow")
        return model

    @cached_property
    def depth(self) -> DepthPredictor:
        """The depth model, loaded once for all tabs."""
        model: DepthPredictor = _loaded(self.depth_model, "depth")
        return model

    @cached_property
    def examples(self) -> Examples:
        """Scenes for tabs of motion, rendered once."""
        return render_examples(self.folder / "examples")

    @cached_property
    def results(self) -> Results:
        """The folders of results."""
        return Results(self.folder / "results", self.limits.jobs)

    def sweeper(self) -> Sweeper:
        """What deletes old results and uploads while the page runs."""
        keep = max(KEEP_SECONDS, self.limits.seconds + RECENT_SECONDS)  # a computation may need its upload to the end
        return Sweeper(self.results, self.served, keep, self.limits.total_bytes)

    def new_result(self) -> Path:
        """An empty folder for a result that is computed from now on; `finish` or `forget` ends that."""
        return self.results.begin()

    def finish(self, result: Path, replaced: Path | None) -> None:
        """Keep a result that is computed, and delete the one that it replaces; both go if its client is gone."""
        self.results.finish(result)
        self.results.delete(replaced)

    def forget(self, result: Path | None) -> None:
        """Delete a result's folder; it may be gone already."""
        self.results.delete(result)


def _loaded(name: str, task: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)  # the page itself says so
        return load(name, task=task)


def user_message(error: InputError, paths: Sequence[Path] = ()) -> str:
    """What an error says, by the names that people gave their files: where they lie here is nobody's business."""
    text = str(error)
    if not text.startswith(tuple(str(path) for path in paths)):
        text = text[:1].upper() + text[1:]
    for path in paths:
        text = text.replace(str(path), path.name)
    return text


def error_message(error: Exception, paths: Sequence[Path] = ()) -> str:
    """The sentence for what people can do something about; any other error is raised again."""
    if isinstance(error, InputError):
        return user_message(error, paths)
    if is_out_of_memory(error):
        return NO_MEMORY
    raise error


def notice(text: str, kind: str = "error") -> str:
    """A sentence as html; nothing for none. kind: error, or note."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="pf-{kind}" role="{role}">{escape(text)}</p>' if text else ""


CLIP_CELLS = 2**18
"""Numbers of each frame of a clip that the viewer gets; see `flow_view` and `depth_view`."""


def save_view(folder: Path, place: int, view: dict[str, Any]) -> None:
    """Keep a view under its number, from 0."""
    _file(folder, place).write_text(json.dumps(view))


def load_view(folder: Path, place: int) -> dict[str, Any]:
    """The view of a number; FileNotFoundError where there is none. The folder counts as used now."""
    view: dict[str, Any] = json.loads(_file(folder, place).read_text())
    with suppress(OSError):
        os.utime(folder)
    return view


def _file(folder: Path, place: int) -> Path:
    return folder / f"{place:06d}.json"
