"""Batches of every task, the library call behind `protoformer batch`: options, and the job function of each."""

import csv
import hashlib
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from protoformer.batch.jobs import CSV, FLOWS, MASKS, NPY, PAGE, VIDEO, Job, JobFunction
from protoformer.batch.ledger import list_jobs
from protoformer.batch.running import Batch, BatchCallback, BatchResult, run_batch
from protoformer.batch.workers import TimeLimit
from protoformer.depth.camera import CameraHint
from protoformer.depth.drawing import draw_depth_frame
from protoformer.depth.predictor import DepthPredictor
from protoformer.depth.result import DepthRange, check_depth_range
from protoformer.errors import InputError
from protoformer.explain.drawing import draw_prototype_frame
from protoformer.explain.groups import FAMILIES
from protoformer.flow.drawing import draw_flow_frame
from protoformer.flow.engine import check_num_updates
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.tiling import MEMORY_FRACTION, TileSize
from protoformer.flow.video import FlowVideoOptions
from protoformer.io.files import (
    TableWriter,
    UnfitFileError,
    check_input,
    open_input,
    read_small_file,
    short_repr,
)
from protoformer.io.memory import free_bytes
from protoformer.loading import (
    STABILIZATION_MODEL,
    TRACKING_METHODS,
    TRACKING_MODEL,
    NamedMethod,
    live_regressor,
    load,
    load_method,
    load_stabilizer,
)
from protoformer.models.pretrained import packaged_weights
from protoformer.models.runtime import Precision
from protoformer.segmentation.foreground import check_method
from protoformer.segmentation.predictor import SegmentationPredictor
from protoformer.segmentation.result import SegmentationFrame
from protoformer.stabilization.drawing import path_page
from protoformer.stabilization.predictor import Crop, StabilizationPredictor, StabilizeOptions
from protoformer.stabilization.result import draw_stabilized
from protoformer.tracking.drawing import draw_targets
from protoformer.tracking.result import HEAD, Box, parse_boxes, table_rows
from protoformer.tracking.video import TrackFrame, track_frames
from protoformer.video.clip import Span
from protoformer.video.pipeline import ResultFolder, run_pipeline
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter
from protoformer.viz.colormaps import Pixels


@dataclass(frozen=True)
class BatchTask(ABC):
    """Options of the batches of one task, as those of the command of that name for a single video.

    Attributes:
        model: Name of the weights, or a .safetensors file.
    """

    model: str

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the outputs of a video; the first one is that of the drawn video."""
        return (VIDEO,)

    def recorded(self) -> dict[str, Any]:
        """Return the options as JSON values for the ledger, with a hash of the weights instead of their path."""
        return {**asdict(self), "model": _hash_weights(self.model)}

    def complete(self, jobs: list[Job]) -> list[Job]:
        """Add what a task needs of each video to its job, or the reason why it cannot be processed."""
        return jobs

    @abstractmethod
    def prepare(self, device: str | None, sharing: int) -> JobFunction:
        """Load the model in a worker; `sharing` workers share the memory of the machine."""


@dataclass(frozen=True)
class FlowBatch(BatchTask):
    """Options of `FlowPredictor.flow_video` and `draw_flow_frame`."""

    model: str = "flow"
    side_by_side: bool = False
    arrows: bool = False
    save_flo: bool = False
    frame_step: int = 1
    scale: float | None = None
    num_updates: int | None = None
    tile: TileSize = "auto"
    memory: int | None = None
    zoom: float | None = None
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        FlowVideoOptions(frame_step=self.frame_step, zoom=self.zoom)
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise InputError(f"colors cannot be saturated at {self.scale:g} pixels; give a scale over 0.")
        check_num_updates(self.num_updates)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The video and, on request, a folder of .flo files."""
        return (VIDEO, FLOWS) if self.save_flo else (VIDEO,)

    def recorded(self) -> dict[str, Any]:
        """Return the options as JSON values, which have no tuples."""
        return {**super().recorded(), "tile": list(self.tile) if isinstance(self.tile, tuple) else self.tile}

    def prepare(self, device: str | None, sharing: int) -> JobFunction:
        """Load the flow network; workers that share a machine divide its free memory."""
        model, memory = load(self.model, device, task="flow"), self.memory
        if memory is None and sharing > 1:
            free = free_bytes(model.device)
            memory = None if free is None else int(MEMORY_FRACTION * free / sharing)
        return partial(self._write, model, memory)

    def _write(self, model: FlowPredictor, memory: int | None, job: Job, targets: tuple[Path, ...]) -> int:
        video = open_video(job.video)
        flows = model.flow_video(
            video,
            frame_step=self.frame_step,
            num_updates=self.num_updates,
            tile=self.tile,
            memory=memory,
            zoom=self.zoom,
            precision=self.precision,
        )
        scale = self.scale or flows.typical_motion()
        return run_pipeline(
            flows,
            partial(draw_flow_frame, scale=scale, side_by_side=self.side_by_side, arrows=self.arrows),
            VideoWriter(targets[0], video, video.info.fps / self.frame_step),
            on_result=_save_to(ResultFolder(target, FLOWS) for target in targets[1:]),
        ).num_frames


@dataclass(frozen=True)
class DepthBatch(BatchTask):
    """Options of `DepthPredictor.depth_video` and `draw_depth_frame`; `colors` has the depths of the color range."""

    model: str = "depth"
    side_by_side: bool = False
    save_npy: bool = False
    frame_step: int = 1
    focal: float | None = None
    fov: float | None = None
    range: DepthRange = None
    colors: tuple[float, float] | None = None
    steady: bool = True
    num_updates: int | None = None
    mirrored: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        Span(frame_step=self.frame_step)
        CameraHint(focal=self.focal, fov=self.fov)
        check_depth_range(self.range)
        check_depth_range(self.colors)
        check_num_updates(self.num_updates)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The video and, on request, a folder of .npy files in meters."""
        return (VIDEO, NPY) if self.save_npy else (VIDEO,)

    def recorded(self) -> dict[str, Any]:
        """Return the options as JSON values, with ranges as numbers."""
        ranges = {name: check_depth_range(getattr(self, name)) for name in ("range", "colors")}
        return {**super().recorded(), **{name: None if each is None else list(each) for name, each in ranges.items()}}

    def prepare(self, device: str | None, sharing: int) -> JobFunction:
        """Load the depth network."""
        return partial(self._write, load(self.model, device, task="depth"))

    def _write(self, model: DepthPredictor, job: Job, targets: tuple[Path, ...]) -> int:
        video = open_video(job.video)
        depths = model.depth_video(
            video,
            frame_step=self.frame_step,
            focal=self.focal,
            fov=self.fov,
            range=self.range,
            steady=self.steady,
            num_updates=self.num_updates,
            mirrored=self.mirrored,
            precision=self.precision,
        )
        colors = self.colors or depths.typical_range()
        return run_pipeline(
            depths,
            partial(draw_depth_frame, colors=colors, side_by_side=self.side_by_side),
            VideoWriter(targets[0], video, video.info.fps / self.frame_step),
            on_result=_save_to(ResultFolder(target, NPY) for target in targets[1:]),
        ).num_frames


@dataclass(frozen=True)
class TrackBatch(BatchTask):
    """Options of `track_frames`; each video also gets a table of its boxes.

    Attributes:
        boxes: File with the first boxes of all videos, for `read_boxes_file`; None: a file NAME.boxes.csv beside each.
        method: A name of `TRACKING_METHODS`.
        frame_step: Frame step.
    """

    model: str = TRACKING_MODEL
    boxes: str | None = None
    method: str = "model"
    frame_step: int = 1
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        Span(frame_step=self.frame_step)
        if self.method not in TRACKING_METHODS:
            raise InputError(f"there is no method {self.method!r}; choose one of {', '.join(TRACKING_METHODS)}.")

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The video and the table."""
        return VIDEO, CSV

    def recorded(self) -> dict[str, Any]:
        """Return the options as JSON values, without the file of boxes, whose content is in the jobs."""
        return {name: value for name, value in super().recorded().items() if name != "boxes"}

    def complete(self, jobs: list[Job]) -> list[Job]:
        """Add the first boxes of each video, on which its outputs depend."""
        path = None if self.boxes is None else Path(self.boxes)
        table = {} if path is None else read_boxes_file(path)
        completed = []
        for job in jobs:
            try:
                boxes = read_sidecar(job.video) if path is None else find_boxes(table, job.video, path)
                completed.append(replace(job, options={**job.options, "boxes": [list(box) for box in boxes]}))
            except InputError as error:
                completed.append(replace(job, unread=job.unread or str(error)))
        return completed

    def prepare(self, device: str | None, sharing: int) -> JobFunction:
        """Load the tracker."""
        precision = None if self.precision == "auto" else self.precision
        return partial(self._write, load_method(self.method, self.model, device, precision))

    def _write(self, method: NamedMethod, job: Job, targets: tuple[Path, ...]) -> int:
        video, table = open_video(job.video), TableWriter(targets[1], HEAD)

        def save(result: TrackFrame, _: Pixels | None) -> None:
            for row in table_rows(result.number, result.time, result.targets):
                table.write(*row)

        return run_pipeline(
            track_frames(video, job.options["boxes"], method.begin, frame_step=self.frame_step),
            lambda result: draw_targets(result.frame, result.targets),
            VideoWriter(targets[0], video, video.info.fps / self.frame_step),
            outputs=[table],
            on_result=save,
        ).num_frames


@dataclass(frozen=True)
class StabilizeBatch(BatchTask):
    """Options of `StabilizationPredictor.stabilize`.

    Attributes:
        regressor: Regressor of the network; None: that of the model, or "grid" with a delay.
        side_by_side: Whether frames are drawn next to the stabilized ones.
        save_path: Whether a page with the camera path is written.
    """

    model: str = STABILIZATION_MODEL
    strength: float = 1.0
    crop: Crop = "auto"
    tripod: bool = False
    delay: int | None = None
    regressor: str | None = None
    side_by_side: bool = False
    save_path: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        StabilizeOptions(self.strength, self.crop, self.tripod, self.delay)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The video and, on request, a page."""
        return (VIDEO, PAGE) if self.save_path else (VIDEO,)

    def recorded(self) -> dict[str, Any]:
        """Return the options as JSON values; the packaged weights of the regressor "grid" are a file of their own."""
        is_packaged_grid = self.model == STABILIZATION_MODEL and self._chosen_regressor == "grid"
        return {**super().recorded(), **({"model": _hash_weights(f"{self.model}-grid")} if is_packaged_grid else {})}

    @property
    def _chosen_regressor(self) -> str | None:
        is_live = self.regressor is None and self.delay is not None
        return live_regressor(self.model) if is_live else self.regressor

    def prepare(self, device: str | None, sharing: int) -> JobFunction:
        """Load the stabilization and flow networks."""
        return partial(self._write, load_stabilizer(self.model, self._chosen_regressor, device))

    def _write(self, model: StabilizationPredictor, job: Job, targets: tuple[Path, ...]) -> int:
        video = open_video(job.video)
        result = model.stabilize(
            video,
            strength=self.strength,
            crop=self.crop,
            tripod=self.tripod,
            delay=self.delay,
            precision=self.precision,
        )
        writer = VideoWriter(targets[0], video, video.info.fps)
        outcome = run_pipeline(model.frames(video, result), draw_stabilized(self.side_by_side), writer)
        for target in targets[1:]:
            target.write_text(path_page(job.video.name, result).html(), encoding="utf-8")
        return outcome.num_frames


@dataclass(frozen=True)
class ExplainBatch(BatchTask):
    """Options of `FlowPredictor.explain_video`; `families` is 0 for one color per prototype."""

    model: str = "flow"
    layer: str | None = None
    families: int = FAMILIES
    frame_step: int = 1
    num_updates: int | None = None

    def __post_init__(self) -> None:
        Span(frame_step=self.frame_step)
        check_num_updates(self.num_updates)
        if self.families < 0:
            raise InputError(f"prototypes cannot be sorted into {self.families} families; give 0 or more.")

    def prepare(self, device: str | None, sharing: int) -> JobFunction:
        """Load the flow network."""
        return partial(self._write, load(self.model, device, task="flow"))

    def _write(self, model: FlowPredictor, job: Job, targets: tuple[Path, ...]) -> int:
        video = open_video(job.video)
        results = model.explain_video(
            video,
            layer=self.layer,
            families=self.families or None,
            frame_step=self.frame_step,
            num_updates=self.num_updates,
        )
        writer = VideoWriter(targets[0], video, video.info.fps / self.frame_step)
        return run_pipeline(results, draw_prototype_frame, writer).num_frames


@dataclass(frozen=True)
class SegmentBatch(BatchTask):
    """Options of `SegmentationPredictor.segment`."""

    model: str = "segment"
    side_by_side: bool = False
    save_masks: bool = False
    frame_step: int = 1
    method: str = "model"
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        Span(frame_step=self.frame_step)
        check_method(self.method)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The video and, on request, a folder of indexed .png files."""
        return (VIDEO, MASKS) if self.save_masks else (VIDEO,)

    def recorded(self) -> dict[str, Any]:
        """Return the options as JSON values, with a hash of the flow weights, which this task uses."""
        return {**super().recorded(), "model": _hash_weights("flow" if self.model == "segment" else self.model)}

    def prepare(self, device: str | None, sharing: int) -> JobFunction:
        """Load the flow network."""
        return partial(self._write, load(self.model, device, task="segment"))

    def _write(self, model: SegmentationPredictor, job: Job, targets: tuple[Path, ...]) -> int:
        video = open_video(job.video)
        results = model.segment(video, frame_step=self.frame_step, method=self.method, precision=self.precision)
        return run_pipeline(
            results,
            partial(SegmentationFrame.draw, side_by_side=self.side_by_side),
            VideoWriter(targets[0], video, video.info.fps / self.frame_step),
            on_result=_save_to(ResultFolder(target, MASKS) for target in targets[1:]),
        ).num_frames


BATCH_TASKS: dict[str, type[BatchTask]] = {
    "flow": FlowBatch,
    "depth": DepthBatch,
    "track": TrackBatch,
    "stabilize": StabilizeBatch,
    "explain": ExplainBatch,
    "segment": SegmentBatch,
}
"""The options of each task, by the name of its command."""


@dataclass(frozen=True)
class TaskSetup:
    """Prepares a worker for a task."""

    options: BatchTask
    device: str | None = None

    def prepare(self, sharing: int) -> JobFunction:
        """Load the model."""
        return self.options.prepare(self.device, sharing)


def batch_videos(
    task: str,
    videos: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    workers: int | None = None,
    device: str | None = None,
    cluster: str | None = None,
    max_minutes_per_video: float | None = None,
    callback: BatchCallback | None = None,
    **options: Any,
) -> BatchResult:
    """Process many videos and write the results to a folder; videos that are finished there are skipped.

    Args:
        task: "flow", "depth", "track", "stabilize", "explain" or "segment".
        videos: Files, and patterns such as "videos/**/*.mp4".
        output: Folder to write to, one for each task.
        workers: Number of processes on this machine, or of actors on the cluster; None: as many as fit.
        device: "cpu" or "cuda"; None: a GPU if there is one.
        cluster: Ray cluster with access to the same files, "auto" or "ray://HOST:PORT".
        max_minutes_per_video: Time limit per video; a slower video fails.
        callback: Callbacks for progress and notes.
        **options: Fields of the task's class in `BATCH_TASKS`.

    Returns:
        The reports of all videos; failures of single videos are not raised.

    Raises:
        InputError: If an option is not valid, there are no videos, or no worker can be started.
    """
    sources = [videos] if isinstance(videos, str | os.PathLike) else list(videos)
    chosen, folder = _make_task(task, options), Path(output)
    recorded = {"task": task, **chosen.recorded()}
    return run_batch(
        folder,
        lambda ledger: chosen.complete(list_jobs(sources, folder, chosen.suffixes, recorded, ledger)),
        TaskSetup(chosen, device),
        Batch(workers, device, cluster, TimeLimit(max_minutes_per_video)),
        callback or BatchCallback(),
    )


def batch_flow(
    videos: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], output: str | os.PathLike[str], **options: Any
) -> BatchResult:
    """Write the flow of many videos to a folder: `batch_videos` with the task "flow"."""
    return batch_videos("flow", videos, output, **options)


def _make_task(task: str, options: Mapping[str, Any]) -> BatchTask:
    if task not in BATCH_TASKS:
        raise InputError(f"there is no batch of {short_repr(task)}; choose one of {', '.join(BATCH_TASKS)}.")
    names = [field.name for field in fields(BATCH_TASKS[task])]
    for name in options:
        if name not in names:
            raise InputError(f"a batch of {task} has no option {short_repr(name)}; its options are {', '.join(names)}.")
    # A worker may have another working folder.
    paths = {
        name: str(Path(value).absolute())
        for name, value in options.items()
        if (name == "boxes" and value is not None) or (name == "model" and os.fspath(value).endswith(".safetensors"))
    }
    return BATCH_TASKS[task](**{**options, **paths})


def _hash_weights(model: str) -> str:
    """Return the SHA-256 of a file of weights, or the name of a model without one."""
    path = Path(model) if model.endswith(".safetensors") else packaged_weights(model)
    if path is None:
        return model
    with open_input(path) as file:
        return hashlib.sha256(file.read()).hexdigest()


def _save_to(folders: Iterable[ResultFolder]) -> Callable[[Any, Pixels | None], None]:
    """Return a function that saves each result to some folders."""
    opened = list(folders)

    def save(result: Any, _: Pixels | None) -> None:
        for folder in opened:
            folder.save(result)

    return save


BOX_COLUMNS = ("video", "x", "y", "w", "h")
"""Columns of a file for many videos; a file beside a video has all but the first."""
SIDECAR = ".boxes.csv"
"""Ending of a file beside a video: the boxes of clip.mp4 are in clip.boxes.csv."""
MAX_BOXES_BYTES = 2**24
"""Maximum size of a file of boxes, which has less than a hundred bytes per box."""


def read_boxes_file(path: Path) -> dict[str, tuple[Box, ...]]:
    """Read the boxes of many videos.

    Args:
        path: A .csv file with the header video,x,y,w,h and one row per target; or a .json file that maps videos to a
            box [x, y, w, h] or a list of boxes. Boxes are in pixels of the first frame, from the top-left corner.

    Returns:
        The boxes by the name of the video, as written in the file.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".json"):
        raise InputError(f"{path} does not end in .csv or .json; give a file of boxes of one of these kinds.")
    text = _read_text(path)
    entries: dict[str, Any] = _parse_json(text, path) if suffix == ".json" else {}
    if suffix == ".csv":
        for line, row in _parse_csv(text, path):
            if len(row) != len(BOX_COLUMNS):
                raise InputError(f"line {line} of {path} is not {','.join(BOX_COLUMNS)}; correct it.")
            entries.setdefault(row[0], []).append(row[1:])
    if not entries:
        raise InputError(f"{path} has no boxes; add a row {','.join(BOX_COLUMNS)} for each target.")
    return {name: _check_boxes(boxes, f"the boxes of {short_repr(name)} in {path}") for name, boxes in entries.items()}


def read_sidecar(video: Path) -> tuple[Box, ...]:
    """Read the boxes in the file beside a video, one x,y,w,h per line, with or without a header."""
    path = video.with_name(video.stem + SIDECAR)
    if not path.exists():
        raise InputError(
            f"there are no boxes for {video}; write x,y,w,h of each target in its first frame to {path.name} beside "
            "it, or give a file with --boxes."
        )
    return _check_boxes([row for _, row in _parse_csv(_read_text(path), path)], f"the boxes in {path}")


def find_boxes(boxes: Mapping[str, tuple[Box, ...]], video: Path, path: Path) -> tuple[Box, ...]:
    """Return the boxes of a video, which a file of boxes names by its path or by the last parts of it.

    Args:
        boxes: Boxes by name, from `read_boxes_file`.
        video: Absolute path of the video.
        path: The file of boxes, for the error.
    """
    for first in range(len(video.parts)):  # the whole path is the most specific name
        video_boxes = boxes.get(str(PurePath(*video.parts[first:])))
        if video_boxes is not None:
            return video_boxes
    raise InputError(f"there are no boxes for {video} in {path}; add a row {video.name},x,y,w,h.")


def _read_text(path: Path) -> str:
    try:
        return read_small_file(check_input(path).resolve(), MAX_BOXES_BYTES).decode("utf-8-sig")
    except UnfitFileError as error:
        raise InputError(f"{path} is not a file of boxes, because {error}; give another.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file in UTF-8; save it again.") from None


def _parse_csv(text: str, path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each line that is neither empty nor the header."""
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{path} is not a csv file ({error}); save it with commas.") from None
    has_header = rows and [cell.lower() for cell in rows[0][1]] in ([*BOX_COLUMNS], [*BOX_COLUMNS[1:]])
    return rows[1:] if has_header else rows


def _parse_json(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a json file; correct it.") from None
    if not isinstance(content, dict) or not all(isinstance(boxes, list) for boxes in content.values()):
        raise InputError(f'{path} does not map videos to boxes; write {{"clip.mp4": [[x, y, w, h]]}}.')
    return content


def _check_boxes(boxes: list[Any], what: str) -> tuple[Box, ...]:
    try:
        return parse_boxes(boxes)
    except InputError as error:
        raise InputError(f"{what} cannot be used: {error}") from None
    except OverflowError:  # an integer of JSON that is no float
        raise InputError(f"{what} have a number that is too large; correct it.") from None
