"""`protoformer train`."""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from torch import nn

from protoformer.cli.options import check_dataset_task
from protoformer.datasets.registry import open_dataset
from protoformer.datasets.tree import Dataset
from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.image import write_image
from protoformer.models.pretrained import load_weights, packaged_weights, save_weights
from protoformer.models.protoformer import TASKS, ProtoFormer
from protoformer.stabilization.drawing import draw_window
from protoformer.tasks import task_of
from protoformer.tracking.drawing import draw_pair
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.training.distributed import is_first_process
from protoformer.training.loggers import Observer, TensorBoardLogger, TrainingProgress, read_log
from protoformer.training.recipe import Recipe, packaged_recipes, read_recipe
from protoformer.training.run_folder import RunFolder
from protoformer.training.task import Drawing, Example, ValidationResult, Validator
from protoformer.training.trainer import Trainer, TrainingEnd
from protoformer.viz.images import Pixels
from protoformer.viz.plots import training_summary

Scoring = Callable[[nn.Module, Dataset[Any], str, Path], dict[str, float]]
"""From a network, the samples of a dataset, its name and its folder to scores by name."""


@dataclass(frozen=True)
class TaskTools:
    """draw: an example as a picture. caption: of such pictures. score: a network on a dataset, by its rules;
    None of a task that is judged on scenes of the world alone.
    """

    draw: Drawing
    caption: str
    score: Scoring | None


def _flow_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    from protoformer.flow.evaluation import evaluate_flow, predictor_method

    assert isinstance(network, ProtoFormer)
    model = FlowPredictor(network, trained=True, device=next(network.parameters()).device)
    found = evaluate_flow(samples, predictor_method(model, zoom=1), names=(name, "run"), root=root, compare=False)
    several = len(found.groups) > 1
    return {
        f"{group} {metric}" if several else metric: getattr(each, metric)
        for group, each in found.groups.items()
        for metric in ("epe", "fl")
    }


def _depth_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    from protoformer.depth.evaluation import depth_method, evaluate_depth

    assert isinstance(network, ProtoFormer)
    model = DepthPredictor(network, trained=True, device=next(network.parameters()).device)
    found = evaluate_depth(samples, depth_method(model, mirrored=False), names=(name, "run")).table.metric
    return {metric: getattr(found, metric) for metric in ("abs_rel", "rmse", "delta1")}


def _track_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    from protoformer.tracking.evaluation import evaluate_track

    assert isinstance(network, ProtoFormer)
    model = TrackingPredictor(network, trained=True, device=next(network.parameters()).device)
    found = evaluate_track(samples, {"run": model.tracker}, name=name, root=root, compare=False)
    scores = found.methods["run"].scores
    return {figure: getattr(scores, figure) for figure in ("success", "precision", "normalized_precision")}


def _draw_flow(example: Example) -> Pixels:
    from protoformer.flow.evaluation import draw_flow_comparison

    return draw_flow_comparison(example.sample, example.predicted)


def _draw_depth(example: Example) -> Pixels:
    from protoformer.depth.evaluation import draw_depth_comparison

    return draw_depth_comparison(example.sample, example.predicted)


TOOLS: dict[str, TaskTools] = {
    "flow": TaskTools(
        draw=_draw_flow,
        caption="scenes not trained on: image and true motion above, motion found and its error below (white is 10 px)",
        score=_flow_scores,
    ),
    "depth": TaskTools(
        draw=_draw_depth,
        caption="scenes not trained on: image and true depth above, depth found and its error below (white is half)",
        score=_depth_scores,
    ),
    "track": TaskTools(
        draw=lambda example: draw_pair(example.sample, example.predicted),
        caption="targets not trained on: known (white, left); true box (green), found box and score (red, right)",
        score=_track_scores,
    ),
    "stabilize": TaskTools(
        draw=lambda example: draw_window(example.sample, example.predicted),
        caption="frames not trained on: shaky and steady above; moved by the warp found, and how it differs, below",
        score=None,
    ),
}


def dataset_validator(task: str, name: str, root: Path, split: str | None = None) -> Validator:
    """Scores a network of a task on a dataset; split: None is the one that evaluation reads."""
    score = task_scoring(task)
    samples = open_dataset(name, root, split)
    return lambda network: ValidationResult(name, score(network, samples, name, root))


def task_scoring(task: str) -> Scoring:
    """How networks of a task are scored on datasets while they train, if they are."""
    score = TOOLS[task].score
    if score is None:
        raise InputError(f"a run of {task} is judged on scenes of the world and on no dataset; leave the dataset out.")
    return score


class TrainingBar(Observer):
    """A bar on standard error: step, loss, end-point error, samples a second and time left; and notes.

    Where standard error is no terminal there are the notes alone.
    """

    def __init__(self, what: str) -> None:
        self.console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        self.bar = Bar(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(what, total=None, figures="")
        self.steps: int | None = None

    def on_start(self, step: int, steps: int | None) -> None:
        """Show it."""
        self.steps = steps
        self.bar.update(self.task, total=steps, completed=step, figures=f"step {step}")
        self.bar.start()

    def on_log(self, progress: TrainingProgress) -> None:
        """Show the figures."""
        self.bar.update(self.task, completed=progress.step, figures=self.figures(progress))

    def on_message(self, sentence: str) -> None:
        """Print it over the bar."""
        self.console.print("note:", sentence, style="yellow")

    def on_end(self, step: int) -> None:
        """Take the bar away."""
        self.bar.stop()

    def figures(self, progress: TrainingProgress) -> str:
        """The figures, as they stand beside the bar."""
        parts = [f"step {progress.step}" + (f" of {self.steps}" if self.steps else "")]
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.3f}")
            parts.append(_watched(*next(iter(progress.metrics.items()))))
        parts.append(f"{progress.samples_per_second:.1f} pairs/s")
        if progress.skipped_steps or progress.broken_samples:
            parts.append(f"{progress.skipped_steps} steps and {progress.broken_samples} samples skipped")
        if progress.seconds_left is not None:
            parts.append(f"{duration(progress.seconds_left)} left")
        return ", ".join(parts)


def _watched(metric: str, value: float) -> str:
    """The first of a task's metrics, with its unit."""
    return f"EPE {value:.2f} px" if metric == "epe" else f"{metric} {value:.3f}"


class LatestImages(Observer):
    """Keeps the pictures of the last time that any were drawn."""

    def __init__(self) -> None:
        self.step = -1
        self.pictures: list[npt.NDArray[np.uint8]] = []

    def on_image(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """Keep it."""
        if step != self.step:
            self.step, self.pictures = step, []
        self.pictures.append(pixels)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


LOADING = 300
"""Seconds that loading the program may take; a process older than that has done something else before."""

LONG_STEP = 500_000
"""Pixels of a step over which somebody who trains on a CPU should know how long that takes."""

SMALL = '--set data.batch_size=1 --set "data.crop_size=[192, 256]" --set run.validation_scenes=4'
"""What makes a step take seconds on a CPU."""


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name (see --list), or a yaml file of your own.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run's folder. A run that lies there goes on.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many, all saved.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the run in all, those before this call counted.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: optimizer.lr=1e-4. Repeat for several.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    slim: Annotated[
        bool, typer.Option("--slim", help="Checkpoints a quarter smaller; going on from them is not exact.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the run that lies in the folder is lost.")
    ] = False,
    validate: Annotated[
        list[str] | None,
        typer.Option(help="Also score on a dataset, as NAME:ROOT or NAME/SPLIT:ROOT. Repeat for several."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Show the recipes, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print how it ended for programs.")] = False,
) -> None:
    """Train a network by a recipe; the same command resumes a stopped run.

    Example: `protoformer train flow-synthetic -o runs/flow --minutes 60`
    """
    began = _process_began()  # loading the program is part of its minutes
    if list_them:
        _list(as_json)
        return
    if recipe is None or output is None:
        raise InputError("a run needs a recipe and a folder; write protoformer train RECIPE -o FOLDER, or see --list.")
    changes = [f"run.{name}={value}" for name, value in (("steps", steps), ("minutes", minutes)) if value is not None]
    chosen = read_recipe(recipe).changed([*(settings or []), *changes])
    tools = TOOLS[chosen.task]
    validators = tuple(_validator(each, chosen.task) for each in validate or [])
    bar, pictures = TrainingBar(recipe), LatestImages()
    place = RunFolder(output)
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if on == "cpu" and is_first_process():
        _tell_slow(chosen, recipe, bar)
    ended = Trainer(
        chosen,
        task_of(chosen, _start(chosen, place, fresh)),
        output,
        device=on,
        observers=(bar, pictures, TensorBoardLogger(place.board, bar.on_message)),
        validators=validators,
        draw=tools.draw,
        write_weights=lambda network, path: save_weights(cast(ProtoFormer, network), path, trained=True),
        slim=slim,
        fresh=fresh,
        began=began,
    ).run()
    if not is_first_process():
        return
    if ended.weights is not None:
        title = f"{recipe}:  {ended.step} steps in {duration(ended.seconds)}"
        write_image(place.summary, training_summary(read_log(place.log), pictures.pictures, title, tools.caption))
    _report(ended, place, as_json)


def _list(as_json: bool) -> None:
    recipes = {name: read_recipe(name) for name in packaged_recipes()}
    if as_json:
        print(json.dumps({name: each.as_dict() for name, each in recipes.items()}))
        return
    table = Table(box=None)
    for column in ("name", "what"):
        table.add_column(column)
    for name, each in recipes.items():
        table.add_row(name, each.description)
    Console().print(table)


def _report(ended: TrainingEnd, place: RunFolder, as_json: bool) -> None:
    if as_json:
        shown = {
            key: str(value) if isinstance(value, Path) else value for key, value in dataclasses.asdict(ended).items()
        }
        print(json.dumps({**shown, "summary": None if ended.weights is None else str(place.summary)}))
    elif ended.weights is None:
        print(
            f"stopped by {ended.stop_reason} at step {ended.step} and saved {ended.checkpoint}; run it again to go on"
        )
    else:
        print(f"finished after {ended.step} steps ({ended.stop_reason}); wrote {ended.weights}, see {place.summary}")


def _tell_slow(recipe: Recipe, name: str, bar: TrainingBar) -> None:
    """Note that steps take long without a GPU, where they do, and what takes less."""
    batch, (height, width) = recipe.data.batch_size, recipe.data.crop_size
    if batch * height * width < LONG_STEP:
        return
    tiny = "--set model.preset=tiny " if recipe.model.init_weights is None else ""  # which fixes the network's size
    bar.on_message(
        f"this trains without a GPU, and a step of {name}, {batch} samples of {width}x{height} pixels, can take "
        "minutes; --minutes ends a run between two steps, and what was learned is scored after that. To try it out in "
        f"a new folder, add {tiny}{SMALL}."
    )


def _start(recipe: Recipe, place: RunFolder, fresh: bool) -> ProtoFormer | None:
    """The network that the recipe begins with, if it names one and the run is yet to begin."""
    name = recipe.model.init_weights
    if name is None or (place.begun() and not fresh):
        return None
    path = packaged_weights(name) if name in TASKS else Path(name)
    if path is None:
        raise InputError(f"this version brings no weights for {name}; give model.init_weights a .safetensors file.")
    return load_weights(path)


def _process_began() -> float:
    """When this process began, by time.monotonic(), where the system tells and it did nothing else before; else now."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # from the system's start on
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - age if 0 <= age < LOADING else now


def _validator(text: str, task: str) -> Validator:
    """A dataset to score on, from NAME:ROOT, or NAME/SPLIT:ROOT for another split than evaluation reads."""
    task_scoring(task)  # where there is none, no dataset is the right one
    chosen, colon, root = text.partition(":")
    name, _, split = chosen.partition("/")
    if not (name and colon and root):
        raise InputError(f"--validate is {text!r}, but it is a dataset and its folder; write it as sintel:data/Sintel.")
    check_dataset_task(name, task)
    if not Path(root).is_dir():
        raise InputError(f"--validate is {text!r}, but there is no folder {root}; write the one that holds {name}.")
    return dataset_validator(task, name, Path(root), split or None)
