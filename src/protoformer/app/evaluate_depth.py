"""`protoformer evaluate depth`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from protoformer.app.arguments import (
    DatasetOption,
    DatasetOptions,
    DeviceOption,
    JsonScores,
    MirrorOption,
    ModelOption,
    RootOption,
    ScoresFolder,
    SplitOption,
    UpdatesOption,
    WorstOption,
    check_dataset_task,
    key_values,
)
from protoformer.app.plain_json import plain_json
from protoformer.app.progress import progress_bar
from protoformer.app.score_files import print_scores, tell_written, write_scores
from protoformer.data import open_dataset
from protoformer.data.tree import Dataset
from protoformer.errors import InputError
from protoformer.files.folders import made_folder
from protoformer.inference import load
from protoformer.inference.depth_evaluation import (
    RULES,
    DepthEvaluation,
    DepthMethod,
    DepthRules,
    constant_method,
    depth_csv,
    depth_method,
    evaluate_depth,
)
from protoformer.show.depth_evaluation import WorstDepths, depth_tables
from protoformer.world import DepthSample

MEAN = "mean"


def evaluate_depth_command(
    dataset: DatasetOption,
    root: RootOption,
    split: SplitOption = None,
    option: DatasetOptions = None,
    method: Annotated[
        str, typer.Option(help="model, or mean: the dataset's mean depth at every pixel, to compare with.")
    ] = "model",
    model: ModelOption = "depth",
    updates: UpdatesOption = None,
    mirror: MirrorOption = None,
    output: ScoresFolder = None,
    worst: WorstOption = 5,
    device: DeviceOption = None,
    as_json: JsonScores = False,
) -> None:
    """Depth by a benchmark's rules, beside what others score: metric, median-scaled and aligned.

    Example: `protoformer evaluate depth --dataset nyuv2 --root NYUv2 --split val -o scores`
    """
    check_dataset_task(dataset, "depth")
    samples = open_dataset(dataset, root, split, **key_values(option))
    rules = RULES.get(dataset, DepthRules())
    chosen, label = _method(method, model, updates, mirror, device, samples, rules)
    if output is not None:
        made_folder(output)
    pictures = WorstDepths(worst if output is not None else 0)
    with progress_bar(f"{label} on {dataset}", len(samples)) as told:
        found = evaluate_depth(samples, chosen, names=(dataset, label), rules=rules, keep=pictures.keep, progress=told)
    _report(found, pictures, output, as_json)


def _method(
    method: str,
    model: str,
    updates: int | None,
    mirror: bool | None,
    device: str | None,
    samples: Dataset[DepthSample],
    rules: DepthRules,
) -> tuple[DepthMethod, str]:
    """The method to run and what to call it."""
    if method == MEAN:
        if model != "depth" or any(given is not None for given in (updates, mirror, device)):
            raise InputError(f"{MEAN} takes no --model, --updates, --mirror or --device; leave them out.")
        with progress_bar("the mean depth", len(samples)) as told:
            return constant_method(samples, rules, told), MEAN
    if method != "model":
        raise InputError(f"there is no method {method!r}; choose model or {MEAN}.")
    loaded = load(model, device, task="depth")
    named = model if loaded.trained else f"{model} (untrained)"
    if mirror is False:
        return depth_method(loaded, updates, mirrored=False), f"{named}, not mirrored"
    return depth_method(loaded, updates), named


def _report(found: DepthEvaluation, pictures: WorstDepths, output: Path | None, as_json: bool) -> None:
    """Write what was asked for, and print the table or its json."""
    written = [] if output is None else write_scores(output, "samples.csv", depth_csv(found), found)
    drawn = [] if output is None else pictures.write(output)
    if as_json:
        print(json.dumps(plain_json(found), indent=1))
        return
    print_scores(*depth_tables(found))
    if found.without_truth:
        print(f"{found.without_truth} images have no true depth that counts and were passed over")
    tell_written(written, drawn)
