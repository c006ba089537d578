"""`protoformer evaluate track`."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from protoformer.app.arguments import (
    DatasetOption,
    DatasetOptions,
    DeviceOption,
    JsonScores,
    ModelOption,
    PrecisionOption,
    RootOption,
    SplitOption,
    check_dataset_task,
    key_values,
)
from protoformer.app.plain_json import plain_json
from protoformer.app.progress import frames_bar
from protoformer.app.score_files import print_scores, tell_written, write_scores
from protoformer.app.track_methods import METHODS, MODEL, named_methods
from protoformer.data import DATASETS, open_dataset
from protoformer.errors import InputError
from protoformer.files import checked_output, write_atomically
from protoformer.files.folders import made_folder
from protoformer.files.names import short_name
from protoformer.inference.brief import count_fact
from protoformer.inference.track_evaluation import (
    TrackEvaluation,
    boxes_as_text,
    check_track_submission,
    csv_of_tracks,
    evaluate_track,
    write_track_submission,
)
from protoformer.show.track_evaluation import track_page, track_table
from protoformer.world import TrackSequence


def evaluate_track_command(
    dataset: DatasetOption,
    root: RootOption,
    split: SplitOption = None,
    option: DatasetOptions = None,
    method: Annotated[list[str] | None, typer.Option(help=f"{', '.join(METHODS)}. Repeat to compare several.")] = None,
    model: ModelOption = MODEL,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A folder for sequences.csv, scores.json, curves.html and the boxes of every frame."
        ),
    ] = None,
    submission: Annotated[
        Path | None, typer.Option(help="A .zip for the benchmark's server instead (trackingnet).")
    ] = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    as_json: JsonScores = False,
) -> None:
    """Trackers by a benchmark's rules, one pass from the first box, beside what others score.

    Example: `protoformer evaluate track --dataset otb --root OTB --method correlation -o scores`
    """
    check_dataset_task(dataset, "track")
    if submission is not None:
        if output is not None:
            raise InputError("a submission has no scores to write; leave out --output or --submission.")
        check_track_submission(dataset, checked_output(submission))
    samples = open_dataset(dataset, root, split, **key_values(option))
    chosen = named_methods(method or ["model"], model, device, precision)
    methods = {label: each.begin for label, each in chosen.items()}
    if submission is not None:
        if len(methods) > 1:
            raise InputError("a submission is of one method; give one --method.")
        (label,) = methods
        with frames_bar(f"{label} on {dataset}") as told:
            count = write_track_submission(samples, methods[label], submission, told)
        written = {"written": count, "file": str(submission)}
        many = count_fact(count, "sequence")
        print(json.dumps(written) if as_json else f"wrote the boxes of {many} to {submission}")
        return
    if output is not None:
        made_folder(output)
    with frames_bar(f"{', '.join(methods)} on {dataset}") as told:
        found = evaluate_track(
            samples,
            methods,
            name=dataset,
            root=root,
            compare=samples.split == DATASETS[dataset].default_split,
            keep=None if output is None else _boxes_into(output / "boxes"),
            progress=told,
        )
    _report(found, output, as_json)


def _boxes_into(folder: Path) -> Callable[[TrackSequence, str, Tensor], None]:
    """Write the boxes of every sequence below a folder, by method."""

    def keep(sequence: TrackSequence, label: str, boxes: Tensor) -> None:
        place = made_folder(folder / re.sub(r"[^\w.-]+", "-", label).strip("-."))
        write_atomically(place / f"{short_name(sequence.name.replace('/', '-'))}.txt", boxes_as_text(boxes).encode())

    return keep


def _report(found: TrackEvaluation, output: Path | None, as_json: bool) -> None:
    """Write what was asked for, and print the table or its json."""
    written: list[Path] = []
    if output is not None:
        written = [*write_scores(output, "sequences.csv", csv_of_tracks(found), found), output / "curves.html"]
        write_atomically(written[-1], track_page(found).html().encode())
        written.append(output / "boxes")
    if as_json:
        print(json.dumps(plain_json(found), indent=1))
        return
    print_scores(track_table(found))
    if found.without_truth:
        print(f"{found.without_truth} sequences have no true boxes after the first and were passed over")
    if found.unusable:
        many = count_fact(len(found.unusable), "sequence")
        print(f"{many} could not be used and had no part in any score:")
        for each in found.unusable:
            print(f"  {each.name}: {each.problem}")
    tell_written(written)
