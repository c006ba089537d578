"""Optical flow of many videos, the library call behind `protoformer batch flow`."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from protoformer.batch.jobs import FLOWS, VIDEO, JobFunction
from protoformer.batch.ledger import list_jobs
from protoformer.batch.running import Batch, BatchCallback, BatchResult, run_batch
from protoformer.batch.workers import TimeLimit
from protoformer.errors import InputError
from protoformer.flow.drawing import draw_flow_frame
from protoformer.flow.engine import check_num_updates
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.tiling import MEMORY_FRACTION, TileSize
from protoformer.flow.video import FlowFrame, FlowVideoOptions
from protoformer.io.files import open_input
from protoformer.io.memory import free_bytes
from protoformer.loading import load
from protoformer.models.pretrained import packaged_weights
from protoformer.video.pipeline import ResultFolder, run_pipeline
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter
from protoformer.viz.colormaps import Pixels


@dataclass(frozen=True)
class FlowOptions:
    """Options of a batch of flow videos; they are those of `FlowPredictor.flow_video` and `draw_flow_frame`."""

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

    def __post_init__(self) -> None:
        FlowVideoOptions(frame_step=self.frame_step, zoom=self.zoom)
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise InputError(f"colors cannot be saturated at {self.scale:g} pixels; give a scale over 0.")
        check_num_updates(self.num_updates)

    def recorded(self) -> dict[str, Any]:
        """Return the options as JSON values for the ledger, with a hash of the weights instead of their path."""
        path = Path(self.model) if self.model.endswith(".safetensors") else packaged_weights(self.model)
        if path is None:
            weights = self.model
        else:
            with open_input(path) as file:
                weights = hashlib.sha256(file.read()).hexdigest()
        tile = list(self.tile) if isinstance(self.tile, tuple) else self.tile
        return {**asdict(self), "model": weights, "tile": tile}


@dataclass(frozen=True)
class FlowSetup:
    """Prepares a worker that computes flow."""

    options: FlowOptions
    device: str | None = None

    def prepare(self, sharing: int) -> JobFunction:
        """Load the model."""
        model = load(self.options.model, self.device, task="flow")
        memory = self.options.memory
        if memory is None and sharing > 1:
            free = free_bytes(model.device)
            memory = None if free is None else int(MEMORY_FRACTION * free / sharing)
        return partial(_write_flow, model, self.options, memory)


def batch_flow(
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
    """Write the flow of many videos to a folder; videos that are finished there with the same options are skipped.

    Args:
        videos: Files, and patterns such as "videos/**/*.mp4".
        output: Folder to write to.
        workers: Number of processes on this machine, or of actors on the cluster; None: as many as fit.
        device: "cpu" or "cuda"; None: a GPU if there is one.
        cluster: Ray cluster with access to the same files, "auto" or "ray://HOST:PORT".
        max_minutes_per_video: Time limit per video; a slower video fails.
        callback: Callbacks for progress and notes.
        options: Fields of `FlowOptions`.

    Returns:
        The reports of all videos; failures of single videos are not raised.
    """
    sources = [videos] if isinstance(videos, str | os.PathLike) else list(videos)
    model = os.fspath(options.pop("model", "flow"))
    if model.endswith(".safetensors"):
        model = str(Path(model).absolute())  # a worker may have another working folder
    flow_options = FlowOptions(model, **options)
    folder, recorded = Path(output), flow_options.recorded()
    suffixes = (VIDEO, FLOWS) if flow_options.save_flo else (VIDEO,)
    return run_batch(
        folder,
        lambda ledger: list_jobs(sources, folder, suffixes, recorded, ledger),
        FlowSetup(flow_options, device),
        Batch(workers, device, cluster, TimeLimit(max_minutes_per_video)),
        callback or BatchCallback(),
    )


def _write_flow(
    model: FlowPredictor, options: FlowOptions, memory: int | None, video: Path, targets: tuple[Path, ...]
) -> int:
    """Write the flow of a video as a video and, to a second target, as .flo files; return the number of frames."""
    source = open_video(video)
    flows = model.flow_video(
        source,
        frame_step=options.frame_step,
        num_updates=options.num_updates,
        tile=options.tile,
        memory=memory,
        zoom=options.zoom,
    )
    folders = [ResultFolder(target, ".flo") for target in targets[1:]]

    def save(result: FlowFrame, _: Pixels | None) -> None:
        for folder in folders:
            folder.save(result)

    outcome = run_pipeline(
        flows,
        partial(
            draw_flow_frame,
            scale=options.scale or flows.typical_motion(),
            side_by_side=options.side_by_side,
            arrows=options.arrows,
        ),
        VideoWriter(targets[0], source, source.info.fps / options.frame_step),
        on_result=save,
    )
    return outcome.num_frames
