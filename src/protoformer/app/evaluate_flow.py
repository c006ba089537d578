"""`protoformer evaluate flow`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import (
    DatasetOption,
    DatasetOptions,
    DeviceOption,
    JsonScores,
    ModelOption,
    RootOption,
    ScoresFolder,
    SplitOption,
    UpdatesOption,
    WorstOption,
    ZoomOption,
    check_dataset_task,
    key_values,
    tile_sides,
    zoom_choice,
)
from protoformer.app.plain_json import plain_json
from protoformer.app.progress import progress_bar
from protoformer.app.score_files import print_scores, tell_written, write_scores
from protoformer.data import open_dataset
from protoformer.errors import InputError
from protoformer.files.folders import made_folder
from protoformer.inference import load
from protoformer.inference.baselines import BASELINES, baseline_flow
from protoformer.inference.evaluation import (
    FlowEvaluation,
    FlowMethod,
    check_submission,
    csv_of,
    evaluate_flow,
    model_method,
    write_submission,
)
from protoformer.inference.tiles import LEAST_OVERLAP, PAPER_TILE
from protoformer.show.evaluation import WorstPictures, evaluation_tables


def evaluate_flow_command(
    dataset: DatasetOption,
    root: RootOption,
    split: SplitOption = None,
    option: DatasetOptions = None,
    method: Annotated[str, typer.Option(help=f"model, or a baseline: {', '.join(BASELINES)}.")] = "model",
    model: ModelOption = "flow",
    updates: UpdatesOption = None,
    tile: Annotated[
        str | None, typer.Option(help="'paper' (432x960 windows, blended) or HEIGHTxWIDTH; by default whole images.")
    ] = None,
    zoom: ZoomOption = "auto",
    output: ScoresFolder = None,
    worst: WorstOption = 5,
    submission: Annotated[
        Path | None,
        typer.Option(help="A folder for the benchmark's upload files instead (sintel, kitti)."),
    ] = None,
    device: DeviceOption = None,
    as_json: JsonScores = False,
) -> None:
    """Flow by a benchmark's rules, beside what others score.

    Example: `protoformer evaluate flow --dataset sintel --root Sintel --method dis -o scores`
    """
    check_dataset_task(dataset, "flow")
    options = key_values(option)
    if submission is not None:
        if output is not None:
            raise InputError("a submission has no scores to write; leave out --output or --submission.")
        check_submission(dataset)
        split = split or "test"
    samples = open_dataset(dataset, root, split, **options)
    chosen, label = _method(method, model, updates, tile, zoom_choice(zoom), device)
    if submission is not None:
        with progress_bar(f"writing {dataset}", len(samples)) as told:
            count = write_submission(samples, chosen, dataset, submission, told)
        written = {"written": count, "folder": str(submission)}
        print(json.dumps(written) if as_json else f"wrote the flow to {submission}: {count} in all")
        return
    if output is not None:
        made_folder(output)
    pictures = WorstPictures(worst if output is not None else 0)
    # Others were measured on all known pixels; without occluded ones the figures are not comparable.
    compare = options.get("truth") != "noc"
    with progress_bar(f"{label} on {dataset}", len(samples)) as told:
        found = evaluate_flow(
            samples, chosen, names=(dataset, label), root=root, compare=compare, keep=pictures.keep, progress=told
        )
    _report(found, pictures, output, as_json)


def _report(found: FlowEvaluation, pictures: WorstPictures, output: Path | None, as_json: bool) -> None:
    """Write what was asked for, and print the table or its json."""
    written = [] if output is None else write_scores(output, "samples.csv", csv_of(found), found)
    drawn = [] if output is None else pictures.write(output)
    if as_json:
        print(json.dumps(plain_json(found), indent=1))
        return
    print_scores(*evaluation_tables(found))
    if found.without_truth:
        print(f"{found.without_truth} pairs have no true flow and were passed over")
    tell_written(written, drawn)


def _method(
    method: str, model: str, updates: int | None, tile: str | None, zoom: float | None, device: str | None
) -> tuple[FlowMethod, str]:
    """The method to run and what to call it."""
    if method in BASELINES:
        if model != "flow" or any(each is not None for each in (updates, tile, zoom, device)):
            raise InputError(f"{method} takes no --model, --updates, --tile, --zoom or --device; leave them out.")
        return (lambda first, second: baseline_flow(method, first, second)), method
    if method != "model":
        raise InputError(f"there is no method {method!r}; choose model, {', '.join(BASELINES)}.")
    size, loaded = _tile(tile), load(model, device, task="flow")
    label = model if loaded.trained else f"{model} (untrained)"
    label += "" if size is None else f", {size[0]}x{size[1]} tiles"
    label += "" if zoom is None else f", zoom {zoom:g}"
    return model_method(loaded, updates, size, zoom), label


def _tile(text: str | None) -> tuple[int, int] | None:
    if text is None or text == "paper":
        return None if text is None else PAPER_TILE
    sides = tile_sides(text)
    if sides is None:
        raise InputError(
            f"a tile is 'paper' or HEIGHTxWIDTH with sides over {LEAST_OVERLAP} pixels, such as 432x960, not {text!r}; "
            "give one of these."
        )
    return sides
