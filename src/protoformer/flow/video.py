"""Optical flow of videos as a stream, in constant memory."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.flow.drawing import MIN_SCALE, SAMPLED_VECTORS, FlowPainter, frame_scale
from protoformer.flow.engine import FlowEngine, propagate_flow
from protoformer.flow.result import FlowResult
from protoformer.flow.tiling import FlowPlan, TileSize, check_zoom, plan_flow
from protoformer.io.files import PathLike
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.pipeline import PipelineOutcome, save_results
from protoformer.video.types import ImageArray, Video, VideoFrame
from protoformer.viz.report import SummaryRepr, format_time

SAMPLED_PAIRS = 8
"""Pairs, spread over the video, from which the typical motion is estimated."""


@dataclass(frozen=True, repr=False)
class FlowFrame(FlowResult):
    """Optical flow from one video frame to the next selected one.

    Attributes:
        number: index of the first frame in the whole video, from 0.
        time: timestamp of the first frame, seconds, exact.
        until: timestamp of the second frame, seconds, exact.
        frame: the first frame, H x W x 3, uint8, or float in [0, 1] if the source is frames of floats.
    """

    number: int = 0
    time: Fraction = Fraction(0)
    until: Fraction = Fraction(0)
    frame: ImageArray | None = None

    def _repr_parts(self) -> tuple[str, ...]:
        return (format_time(self.number, self.time), *super()._repr_parts())


@dataclass(frozen=True)
class FlowVideoOptions(Span):
    """Selected frames and inference options; see `FlowPredictor.flow_video`."""

    num_updates: int | None = None
    warm_start: bool = False
    tile: TileSize = "auto"
    memory: int | None = None
    batch_size: int | None = None
    precision: Precision = "auto"
    zoom: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_zoom(self.zoom)


class FlowVideo(SummaryRepr):
    """An iterable of the `FlowFrame` of every pair; it can be iterated as often as the source can be read.

    Attributes:
        options: selected frames and inference options.
        plan: inference plan; None until the frame size is known.
        clip: the selected frames.
        video: the open video, or None if the source is an iterable of frames.
        half: whether matrix products run in bfloat16.
    """

    def __init__(
        self, network: ProtoFormer, trained: bool, device: torch.device, source: Source, options: FlowVideoOptions
    ) -> None:
        self.options = options
        self.plan: FlowPlan | None = None
        self.clip = ClipFrames(source, options)
        self.video = self.clip.video
        self.half = use_half_precision(device, options.precision)
        self._network, self._trained, self._device = network, trained, device
        self._engine: FlowEngine | None = None
        if self.video is not None:
            self._prepare(self.video.info.size)

    def _repr_parts(self) -> tuple[str, ...]:
        return (self.clip.name, "computed when it is iterated or saved")

    def __iter__(self) -> Iterator[FlowFrame]:
        frames = iter(self.clip)
        previous = next(frames, None)
        if previous is None:
            raise InputError(f"{self.clip.name} has no frame in this span; flow needs two, so choose another.")
        engine = self._prepare(previous.size)
        (previous_encoded,) = engine.encode([previous.pixels])
        batch_size = 1 if engine.plan.tile or self.clip.live else engine.plan.batch_size
        latest: FlowFrame | None = None
        while batch := list(itertools.islice(frames, batch_size)):
            span = [previous, *batch]
            encoded = [previous_encoded, *engine.encode([frame.pixels for frame in batch])]
            init_flow = self._init_flow(engine.plan, latest, batch[0].time) if self.options.warm_start else None
            for index, output in enumerate(engine.flows(list(itertools.pairwise(encoded)), init_flow)):
                latest = self._make_frame(engine.plan, output, span[index], span[index + 1])
                yield latest
            previous, previous_encoded = span[-1], encoded[-1]
        if latest is None:
            raise InputError(f"{self.clip.name} has one frame in this span; flow needs two, so choose another.")

    def typical_motion(self, progress: ProgressCallback | None = None) -> float:
        """Estimate a color scale for the whole video from a few pairs, without reading all of it.

        Args:
            progress: called after every sampled pair.

        Returns:
            The 99.9th percentile of the motion, pixels; at least 1.

        Raises:
            InputError: if the source is an iterable of frames or a live source, which can be read only once.
        """
        if self.video is None or self.video.live:
            source = "an iterable of frames" if self.video is None else self.video.info.name
            raise InputError(f"{source} can be read only once; open it as a video, or give a scale.")
        instants = self.clip.instants(self.video, SAMPLED_PAIRS, together=2)
        lengths: list[Tensor] = []
        for index, instant in enumerate(instants):
            lengths.extend(self._sample_lengths(self.video, instant))
            if progress:
                progress(index + 1, len(instants))
        if not lengths:
            lengths.extend(self._sample_lengths(self.video, self.options.start))
        return frame_scale(torch.cat(lengths)) if lengths else MIN_SCALE

    def save(
        self,
        path: PathLike,
        *,
        scale: float | None = None,
        side_by_side: bool = False,
        arrows: bool = False,
        format: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> PipelineOutcome:
        """Write the flow as a video, or as a folder with one file per pair.

        Args:
            path: a video, such as motion.mp4, with the times and the audio of the source; or a folder, a name without a
                suffix, with files named by the number of the first frame of each pair.
            scale: motion of fully saturated colors, pixels; None: `typical_motion`, or, for a source that can be read
                only once, the largest 99.9th percentile of all frames so far.
            side_by_side: draw the frame to the left of the colors.
            arrows: draw arrows over the frame.
            format: format of the files in a folder, "flo", "npy", "npz" or "png" (drawn frames); None: "flo".
            progress: called with the number of pairs so far and the estimated total.

        Returns:
            The number of pairs and the run time.
        """
        is_drawn = Path(path).suffix != "" or format == "png"
        if scale is None and is_drawn and self.video is not None and not self.video.live:
            scale = self.typical_motion()
        painter = FlowPainter(scale, side_by_side, arrows)
        return save_results(path, self.clip, self, painter, format, ("flo", "npy", "npz"), progress)

    def _prepare(self, size: tuple[int, int]) -> FlowEngine:
        if self._engine is None or self._engine.plan.size != size:
            options, config = self.options, self._network.config
            limits = (options.tile, options.memory, options.batch_size)
            plan = plan_flow(size, config, self._device, *limits, half=self.half, zoom=options.zoom)
            # With a warm start, pairs depend on each other and cannot share a batch; tiles of one pair can.
            self.plan = replace(plan, batch_size=1) if options.warm_start and plan.tile is None else plan
            self._engine = FlowEngine(self._network, self._device, self.plan, options.num_updates, self.half)
        return self._engine

    def _init_flow(self, plan: FlowPlan, latest: FlowFrame | None, until: Fraction) -> Tensor | None:
        """Warp the latest flow to the next pair, scaled by the ratio of their durations."""
        if latest is None:
            return None
        duration, previous_duration = until - latest.until, latest.until - latest.time
        return propagate_flow(latest.flow, plan.working, self._device) * float(duration / previous_duration)

    def _make_frame(self, plan: FlowPlan, output: Tensor, first: VideoFrame, second: VideoFrame) -> FlowFrame:
        return FlowFrame(
            flow=output[:2],
            confidence=output[2:].clamp(0, 1),
            trained=self._trained,
            input_size=plan.input_size,
            number=first.number,
            time=first.time,
            until=second.time,
            frame=first.image,
        )

    def _sample_lengths(self, video: Video, instant: float | Fraction | None) -> Iterator[Tensor]:
        """Yield some vector lengths, pixels, of the pair at a time in seconds; nothing if there is no such pair."""
        end = self.options.end
        if instant is not None and end is not None and instant >= end:
            return
        pair = list(itertools.islice(self.clip.read(video, instant), 2))
        if len(pair) < 2:
            return
        engine = self._prepare(video.info.size)
        first, second = engine.encode([frame.pixels for frame in pair])
        (output,) = engine.flows([(first, second)])
        lengths = output[:2].norm(dim=0).flatten()
        yield lengths[:: max(1, lengths.numel() // SAMPLED_VECTORS)]
