"""`protoformer train`."""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from protoformer.app.arguments import check_dataset_task
from protoformer.app.train_tasks import TOOLS, dataset_validator, scoring_of
from protoformer.app.training_bar import LastPictures, TrainingBar, duration
from protoformer.errors import InputError
from protoformer.files import write_image
from protoformer.inference.loading import TASKS
from protoformer.inference.weights import load_weights, packaged_weights, save_weights
from protoformer.show.training_summary import training_summary
from protoformer.training import Ended, Recipe, Trainer, packaged_recipes, read_recipe
from protoformer.training.board import Board
from protoformer.training.checkpoints import parsed_size
from protoformer.training.distributed import is_first_process
from protoformer.training.log import read_log
from protoformer.training.run_folder import RunFolder
from protoformer.training.task import Validator
from protoformer.training.tasks import task_of

LOADING = 300
"""Seconds that loading the program may take; a process older than that has done something else before."""

LONG_STEP = 500_000
"""Pixels of a step over which somebody who trains on a CPU should know how long that takes."""

SMALL = '--set data.batch=1 --set "data.crop=[192, 256]" --set run.validation_scenes=4'
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
        list[str] | None, typer.Option("--set", help="Change the recipe: optimizer.rate=1e-4. Repeat for several.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    parts: Annotated[str | None, typer.Option(help="Split checkpoints into files of at most this size: 15MB.")] = None,
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
    """Train a network by a recipe; stop it with Ctrl-C, and go on with the same command.

    Example: `protoformer train flow-world -o runs/flow --minutes 60`
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
    bar, pictures = TrainingBar(recipe), LastPictures()
    place = RunFolder(output)
    on = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if on == "cpu" and is_first_process():
        _tell_slow(chosen, recipe, bar)
    ended = Trainer(
        chosen,
        task_of(chosen, _start(chosen, place, fresh)),
        output,
        device=on,
        observers=(bar, pictures, Board(place.board, bar.noted)),
        validators=validators,
        draw=tools.draw,
        write_weights=lambda network, path: save_weights(network, path, trained=True, task=chosen.task),
        part_bytes=None if parts is None else parsed_size(parts),
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
        table.add_row(name, each.what)
    Console().print(table)


def _report(ended: Ended, place: RunFolder, as_json: bool) -> None:
    if as_json:
        shown = {
            key: str(value) if isinstance(value, Path) else value for key, value in dataclasses.asdict(ended).items()
        }
        print(json.dumps({**shown, "summary": None if ended.weights is None else str(place.summary)}))
    elif ended.weights is None:
        print(f"stopped by {ended.why} at step {ended.step} and saved {ended.checkpoint}; run it again to go on")
    else:
        print(f"{ended.step} steps done, since the {ended.why} are over; wrote {ended.weights}, see {place.summary}")


def _tell_slow(recipe: Recipe, name: str, bar: TrainingBar) -> None:
    """Note that steps take long without a GPU, where they do, and what takes less."""
    batch, (height, width) = recipe.data.batch, recipe.data.crop
    if batch * height * width < LONG_STEP:
        return
    tiny = "--set model.preset=tiny " if recipe.model.start is None else ""  # which fixes the network's size
    bar.noted(
        f"this trains without a GPU, and a step of {name}, {batch} samples of {width}x{height} pixels, can take "
        "minutes; --minutes ends a run between two steps, and what was learned is scored after that. To try it out in "
        f"a new folder, add {tiny}{SMALL}."
    )


def _start(recipe: Recipe, place: RunFolder, fresh: bool) -> nn.Module | None:
    """The network that the recipe begins with, if it names one and the run is yet to begin."""
    name = recipe.model.start
    if name is None or (place.begun() and not fresh):
        return None
    path = packaged_weights(name) if name in TASKS else Path(name)
    if path is None:
        raise InputError(f"this version brings no weights for {name}; give model.start a .safetensors file.")
    return load_weights(path).network


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
    scoring_of(task)  # where there is none, no dataset is the right one
    chosen, colon, root = text.partition(":")
    name, _, split = chosen.partition("/")
    if not (name and colon and root):
        raise InputError(f"--validate is {text!r}, but it is a dataset and its folder; write it as sintel:data/Sintel.")
    check_dataset_task(name, task)
    if not Path(root).is_dir():
        raise InputError(f"--validate is {text!r}, but there is no folder {root}; write the one that holds {name}.")
    return dataset_validator(task, name, Path(root), split or None)
