"""`protoformer evaluate`."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor
from typer.core import TyperGroup

from protoformer.cli.options import (
    DatasetOption,
    DatasetOptions,
    DeviceOption,
    JsonScores,
    MirrorOption,
    ModelOption,
    PrecisionOption,
    RootOption,
    ScoresFolder,
    SplitOption,
    UpdatesOption,
    WorstOption,
    ZoomOption,
    check_dataset_task,
    parse_key_values,
    parse_tile_sides,
    parse_zoom,
)
from protoformer.cli.stabilize import parse_crop
from protoformer.cli.terminal import frames_bar, print_scores, progress_bar, report_written, to_json, write_scores
from protoformer.datasets.registry import DATASETS, open_dataset
from protoformer.datasets.tree import Dataset
from protoformer.depth.evaluation import (
    RULES,
    DepthEvaluation,
    DepthMethod,
    DepthRules,
    WorstDepths,
    constant_method,
    depth_csv,
    depth_method,
    depth_tables,
    evaluate_depth,
)
from protoformer.errors import InputError
from protoformer.flow.baselines import BASELINES, baseline_flow
from protoformer.flow.evaluation import (
    FlowEvaluation,
    FlowMethod,
    WorstFlows,
    check_submission,
    evaluate_flow,
    flow_tables,
    predictor_method,
    scores_csv,
    write_submission,
)
from protoformer.flow.tiling import LEAST_OVERLAP, PAPER_TILE
from protoformer.io.files import check_output, make_folder, short_name, write_atomically
from protoformer.loading import (
    STABILIZATION_MODEL,
    TRACKING_METHODS,
    TRACKING_MODEL,
    live_regressor,
    load,
    load_methods,
    load_stabilizer,
)
from protoformer.stabilization.evaluation import (
    Method,
    evaluate_stability,
    identity_method,
    list_clips,
    run_vidstab,
    stability_csv,
    stability_tables,
    vidstab_missing,
)
from protoformer.stabilization.predictor import StabilizationPredictor, StabilizeOptions
from protoformer.synthetic.samples import DepthSample, TrackSequence
from protoformer.tracking.evaluation import (
    TrackEvaluation,
    check_track_submission,
    evaluate_track,
    format_boxes,
    track_page,
    track_table,
    tracks_csv,
    write_track_submission,
)
from protoformer.video.clip import ClipFrames, Span
from protoformer.video.types import ImageArray, Video, VideoFrame
from protoformer.viz.text import format_count


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
    options = parse_key_values(option)
    if submission is not None:
        if output is not None:
            raise InputError("a submission has no scores to write; leave out --output or --submission.")
        check_submission(dataset)
        split = split or "test"
    samples = open_dataset(dataset, root, split, **options)
    chosen, label = _flow_method(method, model, updates, tile, parse_zoom(zoom), device)
    if submission is not None:
        with progress_bar(f"writing {dataset}", len(samples)) as told:
            count = write_submission(samples, chosen, dataset, submission, told)
        written = {"written": count, "folder": str(submission)}
        print(json.dumps(written) if as_json else f"wrote the flow to {submission}: {count} in all")
        return
    if output is not None:
        make_folder(output)
    pictures = WorstFlows(worst if output is not None else 0)
    # Others were measured on all known pixels; without occluded ones the figures are not comparable.
    compare = options.get("truth") != "noc"
    with progress_bar(f"{label} on {dataset}", len(samples)) as told:
        found = evaluate_flow(
            samples, chosen, names=(dataset, label), root=root, compare=compare, keep=pictures.keep, progress=told
        )
    _report_flow(found, pictures, output, as_json)


def _report_flow(found: FlowEvaluation, pictures: WorstFlows, output: Path | None, as_json: bool) -> None:
    """Write what was asked for, and print the table or its json."""
    written = [] if output is None else write_scores(output, "samples.csv", scores_csv(found), found)
    drawn = [] if output is None else pictures.write(output)
    if as_json:
        print(json.dumps(to_json(found), indent=1))
        return
    print_scores(*flow_tables(found))
    if found.without_truth:
        print(f"{found.without_truth} pairs have no true flow and were passed over")
    report_written(written, drawn)


def _flow_method(
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
    return predictor_method(loaded, updates, size, zoom), label


def _tile(text: str | None) -> tuple[int, int] | None:
    if text is None or text == "paper":
        return None if text is None else PAPER_TILE
    sides = parse_tile_sides(text)
    if sides is None:
        raise InputError(
            f"a tile is 'paper' or HEIGHTxWIDTH with sides over {LEAST_OVERLAP} pixels, such as 432x960, not {text!r}; "
            "give one of these."
        )
    return sides


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
    samples = open_dataset(dataset, root, split, **parse_key_values(option))
    rules = RULES.get(dataset, DepthRules())
    chosen, label = _depth_method(method, model, updates, mirror, device, samples, rules)
    if output is not None:
        make_folder(output)
    pictures = WorstDepths(worst if output is not None else 0)
    with progress_bar(f"{label} on {dataset}", len(samples)) as told:
        found = evaluate_depth(samples, chosen, names=(dataset, label), rules=rules, keep=pictures.keep, progress=told)
    _report_depth(found, pictures, output, as_json)


def _depth_method(
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


def _report_depth(found: DepthEvaluation, pictures: WorstDepths, output: Path | None, as_json: bool) -> None:
    """Write what was asked for, and print the table or its json."""
    written = [] if output is None else write_scores(output, "samples.csv", depth_csv(found), found)
    drawn = [] if output is None else pictures.write(output)
    if as_json:
        print(json.dumps(to_json(found), indent=1))
        return
    print_scores(*depth_tables(found))
    if found.without_truth:
        print(f"{found.without_truth} images have no true depth that counts and were passed over")
    report_written(written, drawn)


def evaluate_track_command(
    dataset: DatasetOption,
    root: RootOption,
    split: SplitOption = None,
    option: DatasetOptions = None,
    method: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(TRACKING_METHODS)}. Repeat to compare several.")
    ] = None,
    model: ModelOption = TRACKING_MODEL,
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
        check_track_submission(dataset, check_output(submission))
    samples = open_dataset(dataset, root, split, **parse_key_values(option))
    chosen = load_methods(method or ["model"], model, device, precision)
    methods = {label: each.begin for label, each in chosen.items()}
    if submission is not None:
        if len(methods) > 1:
            raise InputError("a submission is of one method; give one --method.")
        (label,) = methods
        with frames_bar(f"{label} on {dataset}") as told:
            count = write_track_submission(samples, methods[label], submission, told)
        written = {"written": count, "file": str(submission)}
        many = format_count(count, "sequence")
        print(json.dumps(written) if as_json else f"wrote the boxes of {many} to {submission}")
        return
    if output is not None:
        make_folder(output)
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
    _report_track(found, output, as_json)


def _boxes_into(folder: Path) -> Callable[[TrackSequence, str, Tensor], None]:
    """Write the boxes of every sequence below a folder, by method."""

    def keep(sequence: TrackSequence, label: str, boxes: Tensor) -> None:
        place = make_folder(folder / re.sub(r"[^\w.-]+", "-", label).strip("-."))
        write_atomically(place / f"{short_name(sequence.name.replace('/', '-'))}.txt", format_boxes(boxes).encode())

    return keep


def _report_track(found: TrackEvaluation, output: Path | None, as_json: bool) -> None:
    """Write what was asked for, and print the table or its json."""
    written: list[Path] = []
    if output is not None:
        written = [*write_scores(output, "sequences.csv", tracks_csv(found), found), output / "curves.html"]
        write_atomically(written[-1], track_page(found).html().encode())
        written.append(output / "boxes")
    if as_json:
        print(json.dumps(to_json(found), indent=1))
        return
    print_scores(track_table(found))
    if found.without_truth:
        print(f"{found.without_truth} sequences have no true boxes after the first and were passed over")
    if found.unusable:
        many = format_count(len(found.unusable), "sequence")
        print(f"{many} could not be used and had no part in any score:")
        for each in found.unusable:
            print(f"  {each.name}: {each.problem}")
    report_written(written)


STABILIZATION_METHODS = ("input", "vid.stab", "field", "grid", "online")


def evaluate_stabilize_command(
    root: Annotated[Path, typer.Option(help="A folder of shaky clips, or one in DeepStab's layout.")],
    frames: Annotated[int | None, typer.Option(help="Take the first so many of every clip.", min=1)] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(STABILIZATION_METHODS)}. Repeat to compare several. [default: all but online]"),
    ] = None,
    crop: Annotated[str, typer.Option(help="auto, none, or the share of the sides that is shown.")] = "auto",
    delay: Annotated[int, typer.Option(help="Of online: frames it may look ahead.")] = 15,
    model: ModelOption = STABILIZATION_MODEL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for clips.csv and scores.json.")
    ] = None,
    device: DeviceOption = None,
    as_json: JsonScores = False,
) -> None:
    """Cropping, distortion, stability and acceleration of clips made steady, beside what others make of them.

    Example: `protoformer evaluate stabilize --root shaky --frames 400`
    """
    chosen = list(dict.fromkeys(method or STABILIZATION_METHODS[:-1]))
    for each in chosen:
        if each not in STABILIZATION_METHODS:
            raise InputError(f"there is no method {each!r}; choose among {', '.join(STABILIZATION_METHODS)}.")
    clips = list_clips(root)
    options = StabilizeOptions(crop=parse_crop(crop))
    missing = vidstab_missing() if "vid.stab" in chosen else ""
    if missing:
        print(f"note: vid.stab is left out: {missing}", file=sys.stderr)
        chosen.remove("vid.stab")
    if not chosen:
        raise InputError("there is no method left to measure; give another --method.")
    if output is not None:
        make_folder(output)
    methods = {each: _stabilization_method(each, options, delay, model, device) for each in chosen}
    with frames_bar(f"{', '.join(methods)} on {len(clips)} clips") as told:
        found = evaluate_stability(clips, methods, frames, told)
    written = [] if output is None else write_scores(output, "clips.csv", stability_csv(found), found)
    if as_json:
        print(json.dumps(to_json(found), indent=1))
        return
    print_scores(*stability_tables(found))
    report_written(written)


def _stabilization_method(name: str, options: StabilizeOptions, delay: int, model: str, device: str | None) -> Method:
    if name == "input":
        return identity_method
    if name == "vid.stab":
        return run_vidstab
    regressor = live_regressor(model) if name == "online" else name
    loaded = load_stabilizer(model, regressor, device)
    return _by(loaded, options.crop, delay if name == "online" else None)


def _by(model: StabilizationPredictor, crop: str | float, delay: int | None) -> Method:
    def steady(movie: Video, frames: int | None) -> Iterator[tuple[ImageArray, ImageArray]]:
        end = _end(movie, frames)
        result = model.stabilize(movie, crop=crop, delay=delay, end=end)
        for _, before, after in model.frames(movie, result):
            yield before, after

    return steady


def _end(movie: Video, frames: int | None) -> float | None:
    """The time of the first frame that is not taken; None if all are."""
    if frames is None:
        return None
    beyond: VideoFrame | None = next(islice(ClipFrames(movie, Span()), frames, None), None)
    return None if beyond is None else float(beyond.time)


class _Tasks(TyperGroup):
    """A task that is not there is one sentence."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a task."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            raise InputError(f"{cmd_name!r} cannot be evaluated; evaluate one of {', '.join(self.commands)}.")
        return found


evaluate = typer.Typer(help="Evaluate by a benchmark's rules.", no_args_is_help=True, cls=_Tasks, add_completion=False)


@evaluate.callback()
def _by_task() -> None:
    """Evaluate by a benchmark's rules."""


evaluate.command("flow")(evaluate_flow_command)
evaluate.command("depth")(evaluate_depth_command)
evaluate.command("track")(evaluate_track_command)
evaluate.command("stabilize")(evaluate_stabilize_command)
