"""`protoformer evaluate`."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from torch import Tensor
from typer.core import TyperGroup

from protoformer.cli.options import (
    MIRROR_HELP,
    DatasetOption,
    DatasetOptions,
    DeviceOption,
    JsonOption,
    ModelOption,
    PrecisionOption,
    RootOption,
    ScoresFolder,
    SplitOption,
    UpdatesOption,
    WorstOption,
    ZoomOption,
    check_dataset_task,
    parse_crop,
    parse_key_values,
    parse_tile,
    parse_zoom,
    reject_options,
)
from protoformer.cli.terminal import frames_bar, print_json, print_scores, print_written, progress_bar, write_scores
from protoformer.datasets.base import Dataset
from protoformer.datasets.registry import DATASETS, open_dataset
from protoformer.depth.evaluation import (
    RULES,
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
    FlowMethod,
    WorstFlows,
    check_submission,
    evaluate_flow,
    flow_tables,
    scores_csv,
    write_submission,
)
from protoformer.flow.evaluation import predictor_method as flow_method
from protoformer.flow.tiling import PAPER_TILE
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
from protoformer.segmentation.evaluation import (
    SYNTHETIC,
    LabeledClip,
    dataset_clips,
    evaluate_segmentation,
    segmentation_csv,
    segmentation_tables,
    synthetic_clips,
)
from protoformer.segmentation.evaluation import predictor_method as segmentation_method
from protoformer.segmentation.foreground import METHODS as SEGMENTATION_METHODS
from protoformer.segmentation.foreground import check_method
from protoformer.segmentation.result import SegmentationFrame
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
from protoformer.video.types import ImageArray, Video
from protoformer.viz.report import format_count


def _report(
    result: Any,
    tables: Iterable[Table],
    as_json: bool,
    written: list[Path],
    worst_images: list[Path] | None = None,
    notes: Iterable[str] = (),
) -> None:
    """Print the scores as tables or as JSON.

    Args:
        result: Scores of a dataset.
        tables: Tables of the scores.
        as_json: Whether to print JSON.
        written: Files that were written.
        worst_images: Images of the worst samples.
        notes: Lines below the tables.
    """
    if as_json:
        print_json(result, indent=1)
        return
    print_scores(*tables)
    for note in notes:
        print(note)
    print_written(written, worst_images)


def _check_submission_options(output: Path | None) -> None:
    if output is not None:
        raise InputError("a submission has no scores to write; leave out --output or --submission.")


def evaluate_flow_command(
    dataset: DatasetOption,
    root: RootOption,
    split: SplitOption = None,
    option: DatasetOptions = None,
    method: Annotated[str, typer.Option(help=f"model, or a baseline: {', '.join(BASELINES)}.")] = "model",
    model: ModelOption = "flow",
    num_updates: UpdatesOption = None,
    tile: Annotated[
        str | None, typer.Option(help="paper (blended tiles of 432x960) or HEIGHTxWIDTH. [default: whole images]")
    ] = None,
    zoom: ZoomOption = "auto",
    output: ScoresFolder = None,
    worst: WorstOption = 5,
    submission: Annotated[
        Path | None,
        typer.Option(help="Folder for the files to submit to the benchmark, instead of scores (sintel, kitti)."),
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate flow by the rules of a benchmark, next to published scores.

    Example: `protoformer evaluate flow --dataset sintel --root Sintel --method dis -o scores`
    """
    check_dataset_task(dataset, "flow")
    options = parse_key_values(option)
    if submission is not None:
        _check_submission_options(output)
        check_submission(dataset)
        split = split or "test"
    samples = open_dataset(dataset, root, split, **options)
    chosen, label = _flow_method(method, model, num_updates, tile, parse_zoom(zoom), device)
    if submission is not None:
        with progress_bar(f"writing {dataset}", len(samples)) as progress:
            count = write_submission(samples, chosen, dataset, submission, progress)
        if as_json:
            print_json({"written": count, "folder": submission})
        else:
            print(f"wrote {format_count(count, 'flow')} to {submission}")
        return
    if output is not None:
        make_folder(output)
    worst_flows = WorstFlows(worst if output is not None else 0)
    # Published scores include occluded pixels; without them they are not comparable.
    compare = options.get("truth") != "noc"
    with progress_bar(f"{label} on {dataset}", len(samples)) as progress:
        result = evaluate_flow(
            samples,
            chosen,
            names=(dataset, label),
            root=root,
            compare=compare,
            keep=worst_flows.keep,
            progress=progress,
        )
    written = [] if output is None else write_scores(output, "samples.csv", scores_csv(result), result)
    images = [] if output is None else worst_flows.write(output)
    notes = [f"{result.without_truth} pairs without ground truth were skipped"] if result.without_truth else []
    _report(result, flow_tables(result), as_json, written, images, notes)


def _flow_method(
    method: str, model: str, num_updates: int | None, tile: str | None, zoom: float | None, device: str | None
) -> tuple[FlowMethod, str]:
    """Return the method and its label."""
    if method in BASELINES:
        if model != "flow" or any(each is not None for each in (num_updates, tile, zoom, device)):
            raise InputError(f"{method} takes no --model, --num-updates, --tile, --zoom or --device; leave them out.")
        return (lambda first, second: baseline_flow(method, first, second)), method
    if method != "model":
        raise InputError(f"there is no method {method!r}; choose model, {', '.join(BASELINES)}.")
    size = None if tile is None else parse_tile(tile, {"paper": PAPER_TILE})
    loaded = load(model, device, task="flow")
    label = model if loaded.trained else f"{model} (untrained)"
    label += "" if size is None else f", {size[0]}x{size[1]} tiles"
    label += "" if zoom is None else f", zoom {zoom:g}"
    return flow_method(loaded, num_updates, size, zoom), label


MEAN = "mean"


def evaluate_depth_command(
    dataset: DatasetOption,
    root: RootOption,
    split: SplitOption = None,
    option: DatasetOptions = None,
    method: Annotated[
        str, typer.Option(help="model, or mean (a baseline: the mean depth of the dataset at every pixel).")
    ] = "model",
    model: ModelOption = "depth",
    num_updates: UpdatesOption = None,
    mirrored: Annotated[
        bool | None, typer.Option("--mirrored/--no-mirrored", help=f"{MIRROR_HELP} [default: mirrored]")
    ] = None,
    output: ScoresFolder = None,
    worst: WorstOption = 5,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate depth by the rules of a benchmark, next to published scores: metric, median-scaled and aligned.

    Example: `protoformer evaluate depth --dataset nyuv2 --root NYUv2 --split val -o scores`
    """
    check_dataset_task(dataset, "depth")
    samples = open_dataset(dataset, root, split, **parse_key_values(option))
    rules = RULES.get(dataset, DepthRules())
    chosen, label = _depth_method(method, model, num_updates, mirrored, device, samples, rules)
    if output is not None:
        make_folder(output)
    worst_depths = WorstDepths(worst if output is not None else 0)
    with progress_bar(f"{label} on {dataset}", len(samples)) as progress:
        result = evaluate_depth(
            samples, chosen, names=(dataset, label), rules=rules, keep=worst_depths.keep, progress=progress
        )
    written = [] if output is None else write_scores(output, "samples.csv", depth_csv(result), result)
    images = [] if output is None else worst_depths.write(output)
    notes = [f"{result.without_truth} images without ground truth were skipped"] if result.without_truth else []
    _report(result, depth_tables(result), as_json, written, images, notes)


def _depth_method(
    method: str,
    model: str,
    num_updates: int | None,
    mirrored: bool | None,
    device: str | None,
    samples: Dataset[DepthSample],
    rules: DepthRules,
) -> tuple[DepthMethod, str]:
    """Return the method and its label."""
    if method == MEAN:
        if model != "depth" or any(value is not None for value in (num_updates, mirrored, device)):
            raise InputError(f"{MEAN} takes no --model, --num-updates, --mirrored or --device; leave them out.")
        with progress_bar("the mean depth", len(samples)) as progress:
            return constant_method(samples, rules, progress), MEAN
    if method != "model":
        raise InputError(f"there is no method {method!r}; choose model or {MEAN}.")
    loaded = load(model, device, task="depth")
    label = model if loaded.trained else f"{model} (untrained)"
    if mirrored is False:
        return depth_method(loaded, num_updates, mirrored=False), f"{label}, not mirrored"
    return depth_method(loaded, num_updates), label


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
            "--output", "-o", help="Folder for sequences.csv, scores.json, curves.html and the boxes of every frame."
        ),
    ] = None,
    submission: Annotated[
        Path | None, typer.Option(help=".zip file to submit to the benchmark, instead of scores (trackingnet).")
    ] = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate trackers by the rules of a benchmark (one-pass evaluation), next to published scores.

    Example: `protoformer evaluate track --dataset otb --root OTB --method correlation -o scores`
    """
    check_dataset_task(dataset, "track")
    if submission is not None:
        _check_submission_options(output)
        check_track_submission(dataset, check_output(submission))
    samples = open_dataset(dataset, root, split, **parse_key_values(option))
    chosen = load_methods(method or ["model"], model, device, precision)
    methods = {label: each.begin for label, each in chosen.items()}
    if submission is not None:
        if len(methods) > 1:
            raise InputError("a submission has one method; give one --method.")
        (label,) = methods
        with frames_bar(f"{label} on {dataset}") as progress:
            count = write_track_submission(samples, methods[label], submission, progress)
        if as_json:
            print_json({"written": count, "file": submission})
        else:
            print(f"wrote the boxes of {format_count(count, 'sequence')} to {submission}")
        return
    if output is not None:
        make_folder(output)
    with frames_bar(f"{', '.join(methods)} on {dataset}") as progress:
        result = evaluate_track(
            samples,
            methods,
            name=dataset,
            root=root,
            compare=samples.split == DATASETS[dataset].default_split,
            keep=None if output is None else _boxes_writer(output / "boxes"),
            progress=progress,
        )
    _report_track(result, output, as_json)


def _boxes_writer(folder: Path) -> Callable[[TrackSequence, str, Tensor], None]:
    """Return a function that writes the boxes of a sequence to a folder per method."""

    def keep(sequence: TrackSequence, label: str, boxes: Tensor) -> None:
        subfolder = make_folder(folder / re.sub(r"[^\w.-]+", "-", label).strip("-."))
        write_atomically(subfolder / f"{short_name(sequence.name.replace('/', '-'))}.txt", format_boxes(boxes).encode())

    return keep


def _report_track(result: TrackEvaluation, output: Path | None, as_json: bool) -> None:
    """Write the files, and print the scores and the unusable sequences."""
    written: list[Path] = []
    if output is not None:
        written = [*write_scores(output, "sequences.csv", tracks_csv(result), result), output / "curves.html"]
        write_atomically(written[-1], track_page(result).html().encode())
        written.append(output / "boxes")
    notes = []
    if result.without_truth:
        notes.append(f"{result.without_truth} sequences without ground truth after the first frame were skipped")
    if result.unusable:
        notes.append(f"{format_count(len(result.unusable), 'sequence')} could not be used and are in no score:")
        notes += [f"  {each.name}: {each.problem}" for each in result.unusable]
    _report(result, [track_table(result)], as_json, written, notes=notes)


STABILIZATION_METHODS = ("input", "vid.stab", "field", "grid", "online")


def evaluate_stabilize_command(
    root: Annotated[Path, typer.Option(help="Folder of shaky videos, or one in DeepStab's layout.")],
    frames: Annotated[int | None, typer.Option(help="Maximum number of frames of every video.", min=1)] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(STABILIZATION_METHODS)}. Repeat to compare several. [default: all but online]"),
    ] = None,
    crop: Annotated[str, typer.Option(help="auto, none, or the fraction of the sides that is shown.")] = "auto",
    delay: Annotated[int, typer.Option(help="Number of later frames that the method online uses.")] = 15,
    model: ModelOption = STABILIZATION_MODEL,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for clips.csv and scores.json.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate stabilization: cropping, distortion, stability and acceleration, next to published scores.

    Example: `protoformer evaluate stabilize --root shaky --frames 400`
    """
    chosen = list(dict.fromkeys(method or STABILIZATION_METHODS[:-1]))
    for each in chosen:
        if each not in STABILIZATION_METHODS:
            raise InputError(f"there is no method {each!r}; choose one of {', '.join(STABILIZATION_METHODS)}.")
    clips = list_clips(root)
    options = StabilizeOptions(crop=parse_crop(crop))
    missing = vidstab_missing() if "vid.stab" in chosen else ""
    if missing:
        print(f"note: vid.stab is skipped: {missing}", file=sys.stderr)
        chosen.remove("vid.stab")
    if not chosen:
        raise InputError("there is no other method to evaluate; give another --method.")
    if output is not None:
        make_folder(output)
    methods = {each: _stabilization_method(each, options, delay, model, device) for each in chosen}
    with frames_bar(f"{', '.join(methods)} on {len(clips)} videos") as progress:
        result = evaluate_stability(clips, methods, frames, progress)
    written = [] if output is None else write_scores(output, "clips.csv", stability_csv(result), result)
    _report(result, stability_tables(result), as_json, written)


def _stabilization_method(name: str, options: StabilizeOptions, delay: int, model: str, device: str | None) -> Method:
    if name == "input":
        return identity_method
    if name == "vid.stab":
        return run_vidstab
    regressor = live_regressor(model) if name == "online" else name
    loaded = load_stabilizer(model, regressor, device)
    return _stabilize_with(loaded, options.crop, delay if name == "online" else None)


def _stabilize_with(model: StabilizationPredictor, crop: str | float, delay: int | None) -> Method:
    def method(video: Video, frames: int | None) -> Iterator[tuple[ImageArray, ImageArray]]:
        # The end of the span is the time of the first frame that is not used.
        beyond = None if frames is None else next(islice(video.frames(), frames, None), None)
        result = model.stabilize(video, crop=crop, delay=delay, end=None if beyond is None else float(beyond.time))
        for frame in model.frames(video, result):
            yield frame.frame, frame.stabilized

    return method


def evaluate_segment_command(
    dataset: DatasetOption = "davis-2016",
    root: Annotated[
        Path | None, typer.Option(help=f"Folder of the dataset, in its official layout; none for {SYNTHETIC}.")
    ] = None,
    split: SplitOption = None,
    option: DatasetOptions = None,
    method: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SEGMENTATION_METHODS)}. Repeat to compare several.")
    ] = None,
    clips: Annotated[int, typer.Option(help=f"Number of clips of --dataset {SYNTHETIC}.", min=1)] = 6,
    model: ModelOption = "segment",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for sequences.csv, scores.json and the masks.")
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate motion segmentation by the measures of DAVIS (J and F), next to published scores.

    Example: `protoformer evaluate segment --dataset davis-2016 --root DAVIS`

    Example: `protoformer evaluate segment --dataset synthetic --method model --method threshold`
    """
    chosen = list(dict.fromkeys(method or ["model"]))
    for each in chosen:
        check_method(each)
    labeled: Iterable[LabeledClip]
    if dataset == SYNTHETIC:
        reject_options("datasets on disk", SYNTHETIC, root=root, split=split, option=option)
        labeled, compare = synthetic_clips(clips), False
    else:
        check_dataset_task(dataset, "segment")
        if root is None:
            raise InputError(f"{dataset} is a folder on disk; give it as --root.")
        sequences = open_dataset(dataset, root, split, **parse_key_values(option))
        labeled, compare = dataset_clips(sequences), dataset == "davis-2016" and sequences.split == "val"
    if output is not None:
        make_folder(output)
    predictor = load(model, device, task="segment")
    methods = {each: segmentation_method(predictor, each) for each in chosen}

    def keep_masks(clip: str, label: str, result: SegmentationFrame) -> None:
        if output is not None:
            folder = make_folder(output / "masks" / label / short_name(clip))
            result.save(folder / f"{result.number:05d}.png")

    with frames_bar(f"{', '.join(methods)} on {dataset}") as progress:
        result = evaluate_segmentation(labeled, methods, dataset, compare, keep_masks, progress)
    written = []
    if output is not None:
        written = [*write_scores(output, "sequences.csv", segmentation_csv(result), result), output / "masks"]
    _report(result, segmentation_tables(result), as_json, written)


class _Tasks(TyperGroup):
    """A group whose error for an unknown task lists the tasks."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a task."""
        command = super().get_command(ctx, cmd_name)
        if command is None:
            raise InputError(f"{cmd_name!r} cannot be evaluated; evaluate one of {', '.join(self.commands)}.")
        return command


evaluate = typer.Typer(
    help="Evaluate by the rules of a benchmark.",
    no_args_is_help=True,
    cls=_Tasks,
    add_completion=False,
    rich_markup_mode="markdown",
)


@evaluate.callback()
def _by_task() -> None:
    """Evaluate by the rules of a benchmark."""


evaluate.command("flow")(evaluate_flow_command)
evaluate.command("depth")(evaluate_depth_command)
evaluate.command("track")(evaluate_track_command)
evaluate.command("stabilize")(evaluate_stabilize_command)
evaluate.command("segment")(evaluate_segment_command)
