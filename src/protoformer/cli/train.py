"""`protoformer train`."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
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

from protoformer.cli.options import JsonOption, check_dataset_task
from protoformer.cli.terminal import make_console, print_json
from protoformer.datasets.base import Dataset
from protoformer.datasets.registry import open_dataset
from protoformer.depth.predictor import DepthPredictor
from protoformer.errors import InputError
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.image import write_image
from protoformer.models.config import TASKS
from protoformer.models.pretrained import packaged_weights
from protoformer.models.protoformer import ProtoFormer
from protoformer.stabilization.drawing import draw_window
from protoformer.tasks import task_of
from protoformer.tracking.drawing import draw_pair
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.training.distributed import import_fabric, is_first_process
from protoformer.training.preflight import check_own_samples, check_step_memory
from protoformer.training.recipe import Recipe, packaged_recipes, read_recipe
from protoformer.training.run_folder import Observer, RunFolder, TensorBoardLogger, TrainingProgress, read_log
from protoformer.training.task import Drawing, Example, ValidationResult, Validator
from protoformer.training.trainer import Trainer, TrainingEnd
from protoformer.viz.colormaps import Pixels
from protoformer.viz.plots import training_summary

Scoring = Callable[[nn.Module, Dataset[Any], str, Path], dict[str, float]]
"""Maps a network, the samples of a dataset, its name and its folder to scores by name."""


@dataclass(frozen=True)
class TaskTools:
    """Functions of a task that training uses.

    Attributes:
        draw: Draws a validation example.
        caption: Caption of the drawn examples.
        score: Evaluates a network on a dataset; None if the task is only validated on synthetic scenes.
    """

    draw: Drawing
    caption: str
    score: Scoring | None


def _flow_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    from protoformer.flow.evaluation import evaluate_flow, predictor_method

    assert isinstance(network, ProtoFormer)
    model = FlowPredictor(network, trained=True, device=next(network.parameters()).device)
    result = evaluate_flow(samples, predictor_method(model, zoom=1), names=(name, "run"), root=root, compare=False)
    several = len(result.groups) > 1
    return {
        f"{group} {metric}" if several else metric: getattr(each, metric)
        for group, each in result.groups.items()
        for metric in ("epe", "fl")
    }


def _depth_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    from protoformer.depth.evaluation import depth_method, evaluate_depth

    assert isinstance(network, ProtoFormer)
    model = DepthPredictor(network, trained=True, device=next(network.parameters()).device)
    table = evaluate_depth(samples, depth_method(model, mirrored=False), names=(name, "run")).table.metric
    return {metric: getattr(table, metric) for metric in ("abs_rel", "rmse", "delta1")}


def _track_scores(network: nn.Module, samples: Dataset[Any], name: str, root: Path) -> dict[str, float]:
    from protoformer.tracking.evaluation import evaluate_track

    assert isinstance(network, ProtoFormer)
    model = TrackingPredictor(network, trained=True, device=next(network.parameters()).device)
    result = evaluate_track(samples, {"run": model.tracker}, name=name, root=root, compare=False)
    scores = result.methods["run"].scores
    return {metric: getattr(scores, metric) for metric in ("success", "precision", "normalized_precision")}


def _draw_flow(example: Example) -> Pixels:
    from protoformer.flow.evaluation import draw_flow_comparison

    return draw_flow_comparison(example.sample, example.predicted)


def _draw_depth(example: Example) -> Pixels:
    from protoformer.depth.evaluation import draw_depth_comparison

    return draw_depth_comparison(example.sample, example.predicted)


TOOLS: dict[str, TaskTools] = {
    "flow": TaskTools(
        draw=_draw_flow,
        caption="validation scenes: image and true flow above, predicted flow and its error below (white is 10 px)",
        score=_flow_scores,
    ),
    "depth": TaskTools(
        draw=_draw_depth,
        caption="validation scenes: image and true depth above, predicted depth and its error below (white is 50 %)",
        score=_depth_scores,
    ),
    "track": TaskTools(
        draw=lambda example: draw_pair(example.sample, example.predicted),
        caption="validation targets: reference (white, left); true box (green), predicted box and score (red, right)",
        score=_track_scores,
    ),
    "stabilize": TaskTools(
        draw=lambda example: draw_window(example.sample, example.predicted),
        caption="validation frames: unstable and stable above; warped by the prediction, and its error, below",
        score=None,
    ),
}


def dataset_validator(task: str, name: str, root: Path, split: str | None = None) -> Validator:
    """Return a validator on a dataset; without a split, the one that is usually evaluated is used."""
    score = task_scoring(task)
    samples = open_dataset(name, root, split)
    return lambda network: ValidationResult(name, score(network, samples, name, root))


def task_scoring(task: str) -> Scoring:
    """Return the function that scores networks of a task on datasets, or raise `InputError` if there is none."""
    score = TOOLS[task].score
    if score is None:
        raise InputError(f"{task} is validated on synthetic scenes only; leave the dataset out.")
    return score


class TrainingBar(Observer):
    """Progress bar with step, loss, first metric, samples per second and time left, and notes above it.

    Without a terminal only the notes are printed.
    """

    def __init__(self, label: str) -> None:
        self.console = make_console()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
        self.bar = Bar(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(label, total=None, status="")
        self.steps: int | None = None

    def on_start(self, step: int, steps: int | None) -> None:
        """Show the bar."""
        self.steps = steps
        self.bar.update(self.task, total=steps, completed=step, status=f"step {step}")
        self.bar.start()

    def on_log(self, progress: TrainingProgress) -> None:
        """Update the bar."""
        self.bar.update(self.task, completed=progress.step, status=self.format_status(progress))

    def on_message(self, sentence: str) -> None:
        """Print a note above the bar."""
        self.console.print("note:", sentence, style="yellow")

    def on_end(self, step: int) -> None:
        """Remove the bar."""
        self.bar.stop()

    def format_status(self, progress: TrainingProgress) -> str:
        """Format the text next to the bar."""
        parts = [f"step {progress.step}" + (f" of {self.steps}" if self.steps else "")]
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.3f}")
            parts.append(_format_metric(*next(iter(progress.metrics.items()))))
        parts.append(f"{progress.samples_per_second:.1f} pairs/s")
        if progress.skipped_steps or progress.broken_samples:
            parts.append(f"{progress.skipped_steps} steps and {progress.broken_samples} samples skipped")
        if progress.seconds_left is not None:
            parts.append(f"{duration(progress.seconds_left)} left")
        return ", ".join(parts)


def _format_metric(metric: str, value: float) -> str:
    """Format a metric with its unit."""
    return f"EPE {value:.2f} px" if metric == "epe" else f"{metric} {value:.3f}"


class LatestImages(Observer):
    """Keeps the most recent validation images."""

    def __init__(self) -> None:
        self.step = -1
        self.images: list[npt.NDArray[np.uint8]] = []

    def on_image(self, step: int, name: str, pixels: npt.NDArray[np.uint8]) -> None:
        """Keep an image."""
        if step != self.step:
            self.step, self.images = step, []
        self.images.append(pixels)


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


MAX_LOADING_SECONDS = 300
"""Maximum time to load the program; an older process has done something else before."""

SLOW_STEP_PIXELS = 500_000
"""Pixels per step above which a note says that training on a CPU is slow."""

FAST_SETTINGS = '--set data.batch_size=1 --set "data.crop_size=[192, 256]" --set run.validation_scenes=4'
"""Options with which a step takes seconds on a CPU."""


def train(
    recipe: Annotated[str | None, typer.Argument(help="Name of a recipe (see --list), or a yaml file.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run; an existing run continues.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time, minutes, with a checkpoint.")] = None,
    steps: Annotated[int | None, typer.Option(help="Total number of steps of the run.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a value of the recipe: optimizer.lr=1e-4. Repeat for several."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your own data, for the recipes flow-own, depth-own and track-own: a folder or a manifest."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda if there is a GPU]")] = None,
    slim: Annotated[
        bool,
        typer.Option("--slim", help="Make checkpoints a quarter smaller; resuming is then not bit-exact."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an existing run in the folder is deleted.")
    ] = False,
    validate: Annotated[
        list[str] | None,
        typer.Option(help="Also validate on a dataset, as NAME:ROOT or NAME/SPLIT:ROOT. Repeat for several."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the recipes, and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network by a recipe; the same command resumes a stopped run.

    Example: `protoformer train flow-synthetic -o runs/flow --minutes 60`

    Example: `protoformer train flow-own --data pairs -o runs/own --steps 500`
    """
    start_time = _process_start()  # --minutes includes the time to load the program
    if list_them:
        _list(as_json)
        return
    if recipe is None or output is None:
        raise InputError("a run needs a recipe and a folder; write protoformer train RECIPE -o FOLDER, or see --list.")
    changes = [f"run.{name}={value}" for name, value in (("steps", steps), ("minutes", minutes)) if value is not None]
    chosen = read_recipe(recipe)
    if data is not None:
        chosen = chosen.with_data(data)
    chosen = chosen.changed([*(settings or []), *changes])
    tools = TOOLS[chosen.task]
    validators = tuple(_validator(each, chosen.task) for each in validate or [])
    bar, images = TrainingBar(recipe), LatestImages()
    folder = RunFolder(output)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    import_fabric()  # before samples are read
    if is_first_process():
        check_own_samples(chosen)
    if device == "cpu" and is_first_process():
        check_step_memory(chosen, recipe)
        _note_slow_training(chosen, recipe, bar)
    ended = Trainer(
        chosen,
        task_of(chosen, _start(chosen, folder, fresh)),
        output,
        device=device,
        observers=(bar, images, TensorBoardLogger(folder.board, bar.on_message)),
        validators=validators,
        draw=tools.draw,
        write_weights=lambda network, path: cast(ProtoFormer, network).save_weights(path, trained=True),
        slim=slim,
        fresh=fresh,
        began=start_time,
    ).run()
    if not is_first_process():
        return
    if ended.weights is not None:
        title = f"{recipe}:  {ended.step} steps in {duration(ended.seconds)}"
        write_image(folder.summary, training_summary(read_log(folder.log), images.images, title, tools.caption))
    _report(ended, folder, as_json)


def _list(as_json: bool) -> None:
    recipes = {name: read_recipe(name) for name in packaged_recipes()}
    if as_json:
        print_json({name: each.as_dict() for name, each in recipes.items()})
        return
    table = Table(box=None)
    for column in ("name", "description"):
        table.add_column(column)
    for name, each in recipes.items():
        table.add_row(name, each.description)
    Console().print(table)


def _report(ended: TrainingEnd, folder: RunFolder, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(ended), "summary": None if ended.weights is None else folder.summary})
    elif ended.weights is None:
        print(
            f"stopped by {ended.stop_reason} at step {ended.step} and saved {ended.checkpoint}; repeat the command to "
            "continue"
        )
    else:
        print(f"finished after {ended.step} steps ({ended.stop_reason}); wrote {ended.weights}, see {folder.summary}")


def _note_slow_training(recipe: Recipe, name: str, bar: TrainingBar) -> None:
    """Print a note if steps are slow without a GPU, with options that are faster."""
    batch, (height, width) = recipe.data.batch_size, recipe.data.crop_size
    if batch * height * width < SLOW_STEP_PIXELS:
        return
    # Initial weights fix the size of the network.
    tiny = "--set model.preset=tiny " if recipe.model.init_weights is None else ""
    bar.on_message(
        f"training without a GPU: a step of {name}, {batch} samples of {width}x{height} pixels, can take minutes; "
        "--minutes ends a run between two steps, followed by a validation. To try training in a new folder, add "
        f"{tiny}{FAST_SETTINGS}."
    )


def _start(recipe: Recipe, folder: RunFolder, fresh: bool) -> ProtoFormer | None:
    """Load the network that the recipe starts with; None if it names none or the run exists."""
    name = recipe.model.init_weights
    if name is None or (folder.begun() and not fresh):
        return None
    path = packaged_weights(name) if name in TASKS else Path(name)
    if path is None:
        raise InputError(f"the package has no weights for {name}; give model.init_weights a .safetensors file.")
    return ProtoFormer.load_weights(path)


def _process_start() -> float:
    """Return when this process started, by `time.monotonic`; now if the system does not provide it."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # since boot
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - age if 0 <= age < MAX_LOADING_SECONDS else now


def _validator(text: str, task: str) -> Validator:
    """Parse NAME:ROOT or NAME/SPLIT:ROOT to a validator on that dataset."""
    task_scoring(task)  # raises if the task has none
    chosen, colon, root = text.partition(":")
    name, _, split = chosen.partition("/")
    if not (name and colon and root):
        raise InputError(f"--validate is {text!r}, but it takes NAME:ROOT; write it such as sintel:data/Sintel.")
    check_dataset_task(name, task)
    if not Path(root).is_dir():
        raise InputError(f"--validate is {text!r}, but there is no folder {root}; give the folder of {name}.")
    return dataset_validator(task, name, Path(root), split or None)
