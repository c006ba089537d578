"""The motion of many videos, as a library call: what the command `protoformer batch flow` does."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protoformer.batch.jobs import FLOWS, VIDEO, JobFunction
from protoformer.batch.ledger import list_jobs
from protoformer.batch.running import Batch, BatchCallback, BatchResult, run_batch
from protoformer.batch.workers import TimeLimit
from protoformer.errors import InputError
from protoformer.flow.drawing import draw_flow_frame
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.tiling import MEMORY_FRACTION, TileSize
from protoformer.flow.video import FlowVideoOptions
from protoformer.io.files import make_folder, open_input
from protoformer.io.memory import free_bytes
from protoformer.loading import load
from protoformer.models.pretrained import packaged_weights
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter


@dataclass(frozen=True)
class FlowOptions:
    """What the motion of a video depends on, besides the video; as the options of `protoformer flow`."""

    model: str = "flow"
    side_by_side: bool = False
    arrows: bool = False
    save_flo: bool = False
    frame_step: int = 1
    scale: float | None = None
    updates: int | None = None
    tile: TileSize = "auto"
    memory: int | None = None
    zoom: float | None = None

    def __post_init__(self) -> None:
        FlowVideoOptions(frame_step=self.frame_step, zoom=self.zoom)
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise InputError(f"colors cannot be full at {self.scale:g} pixels; give a scale over 0.")
        if self.updates is not None and self.updates < 1:
            raise InputError(f"{self.updates} updates cannot be run; give a whole number, 1 or more.")

    def recorded(self) -> dict[str, Any]:
        """For the ledger, as json holds it: with the weights by what is in them, not by their path."""
        stored = Path(self.model) if self.model.endswith(".safetensors") else packaged_weights(self.model)
        if stored is None:
            weights = self.model
        else:
            with open_input(stored) as file:
                weights = hashlib.sha256(file.read()).hexdigest()
        tile = list(self.tile) if isinstance(self.tile, tuple) else self.tile
        return {**asdict(self), "model": weights, "tile": tile}


@dataclass(frozen=True)
class FlowWork:
    """What a worker is sent."""

    options: FlowOptions
    device: str | None = None

    def prepare(self, sharing: int) -> JobFunction:
        """The model, loaded, and what it does with a video."""
        model = load(self.options.model, self.device, task="flow")
        memory = self.options.memory
        if memory is None and sharing > 1:
            free = free_bytes(model.device)
            memory = None if free is None else int(MEMORY_FRACTION * free / sharing)
        return lambda video, targets: _motion(model, video, targets, self.options, memory)


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
    """Write the motion of many videos into a folder; what is finished there, with the same options, is not done again.

    videos: files, and patterns such as "videos/**/*.mp4". workers: processes of this machine, or of the cluster (None:
    as many as fit). cluster: "auto" or "ray://HOST:PORT", a Ray cluster whose machines see the same files.
    max_minutes_per_video: a video that takes longer has failed (None: there is no limit). callback: receives
    progress and notes. options: the fields of `FlowOptions`. A video that fails is no exception: it is in the result.
    """
    named = [videos] if isinstance(videos, str | os.PathLike) else list(videos)
    model = os.fspath(options.pop("model", "flow"))
    if model.endswith(".safetensors"):
        model = str(Path(model).absolute())  # a worker may be elsewhere
    flow_options = FlowOptions(model, **options)
    folder, recorded = Path(output), flow_options.recorded()
    suffixes = (VIDEO, FLOWS) if flow_options.save_flo else (VIDEO,)
    return run_batch(
        folder,
        lambda ledger: list_jobs(named, folder, suffixes, recorded, ledger),
        FlowWork(flow_options, device),
        Batch(workers, device, cluster, TimeLimit(max_minutes_per_video)),
        callback or BatchCallback(),
    )


def _motion(
    model: FlowPredictor, video: Path, targets: tuple[Path, ...], options: FlowOptions, memory: int | None
) -> int:
    """Write the motion of one video, as a video and, to a second target, as .flo files; how many flows there were."""
    movie = open_video(video)
    prediction = model.flow_video(
        movie,
        frame_step=options.frame_step,
        num_updates=options.updates,
        tile=options.tile,
        memory=memory,
        zoom=options.zoom,
    )
    scale = options.scale or prediction.typical_motion()
    with VideoWriter(targets[0], movie, movie.info.fps / options.frame_step) as writer:
        for step in prediction:
            writer.write(draw_flow_frame(step, scale, options.side_by_side, options.arrows), step.time)
            for flows in targets[1:]:
                step.save(make_folder(flows) / f"{step.number:06d}.flo")
        return writer.frames
