"""Depth of videos as a stream, with temporal filtering, in constant memory."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from protoformer.depth.camera import Camera, CameraHint, resolve_camera
from protoformer.depth.drawing import DepthPainter
from protoformer.depth.engine import DepthEngine, Estimate, depth_confidence, enlarge_depth
from protoformer.depth.result import DepthResult, network_range
from protoformer.errors import InputError
from protoformer.flow.baselines import baseline_flow
from protoformer.flow.predictor import FlowPredictor
from protoformer.geometry.warps import Padding, occlusion_by_consistency, pixel_grid, sample
from protoformer.io.files import PathLike
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.video.clip import ClipFrames, Source, Span
from protoformer.video.image_sequence import ImageSequence
from protoformer.video.pipeline import PipelineOutcome, save_results
from protoformer.video.types import ImageArray, Video, VideoFrame
from protoformer.viz.depth_colors import default_depth_range
from protoformer.viz.report import SummaryRepr, format_time

MAX_HISTORY_WEIGHT = 4.0
"""Largest weight of all previous frames together, relative to the new one."""
LEVEL_GAIN, TREND_GAIN = 0.3, 0.05
"""Gains of the double exponential filter of the frame's depth level; the trend follows a moving camera without lag."""
MAX_LEVEL_STEP = math.log(1.25)
"""Larger changes of the depth level are not treated as flicker: the excess passes unfiltered."""
DEPTH_SIGMA = 0.1
"""Difference of log depth at which a propagated depth loses half of its weight."""
COLOR_SIGMA = 0.1
"""Difference of color, in [0, 1], at which a propagated depth loses half of its weight."""
MIN_OVERLAP = 0.2
"""Smallest fraction of consistent pixels; below it the frame is treated as a scene cut."""
MAX_DEPARTURE = DEPTH_SIGMA * MAX_HISTORY_WEIGHT / (2 * math.sqrt(MAX_HISTORY_WEIGHT + 1))
"""Largest change of log depth by blending, relative to the frame's own prediction at the filtered level: 9 %."""
MIN_DIS_SIDE = 16
"""Smallest image side, pixels, for dense inverse search, which also fails on images much wider than high."""
MAX_ASPECT = 8
"""Frames with a larger aspect ratio are not filtered."""

LOG_SCALE_BOUNDS = (-5.0, 5.0)
"""Limits of the predicted log scale, which keep precisions and their ratios finite in float32."""

Motion = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps two images, 3 x h x w in [0, 1], to the flow from the first to the second, 2 x h x w, pixels, and to the
occlusion mask of the first, 1 x h x w, bool."""


def classical_motion(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Compute flow and occlusion by OpenCV's dense inverse search, forward and backward; see `Motion`."""
    _, height, width = first.shape
    if width > MAX_ASPECT * max(height, MIN_DIS_SIDE):
        return torch.zeros(2, height, width), torch.ones(1, height, width, dtype=torch.bool)
    bottom, right = max(MIN_DIS_SIDE, width // 2) - height, MIN_DIS_SIDE - width
    padding = Padding(height, width, max(0, bottom), max(0, right))
    first, second = (padding.pad(image[None])[0] for image in (first, second))
    forward, backward = (
        padding.crop(baseline_flow("dis-fast", *pair)[None]) for pair in ((first, second), (second, first))
    )
    return forward[0], occlusion_by_consistency(forward, backward)[0]


def estimate_motion(model: FlowPredictor) -> Motion:
    """Return a function that computes flow and occlusion with a flow predictor; see `Motion`."""

    def motion(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        result = model.flow(first, second, occlusion=True, tile="auto", zoom=1)
        assert result.occlusion is not None
        return result.flow, result.occlusion

    return motion


@dataclass(frozen=True, eq=False)
class _FilterState:
    """State of the temporal filter after a frame.

    Attributes:
        image: 3 x h x w in [0, 1].
        log: filtered log depth, 1 x h x w.
        precision: precision of the log depth, 1 x h x w.
        trend: change of the log depth level per frame.
    """

    image: Tensor
    log: Tensor
    precision: Tensor
    trend: float


class TemporalFilter:
    """Reduces depth flicker of one video by filtering along the optical flow.

    Frames must be passed in order.

    Args:
        motion: computes flow and occlusion between two images.
    """

    def __init__(self, motion: Motion = classical_motion) -> None:
        self._motion = motion
        self._state: _FilterState | None = None

    def follow(self, image: Tensor, log: Tensor, log_scale: Tensor) -> Tensor:
        """Filter the log depth of the next frame.

        A frame with a value that is not finite is returned unchanged, and the filter restarts after it.

        Args:
            image: 3 x h x w in [0, 1].
            log: predicted log depth of the frame, 1 x h x w.
            log_scale: logarithm of the Laplace scale of its error, 1 x h x w.

        Returns:
            Filtered log depth, 1 x h x w.
        """
        if not bool(log.isfinite().all() and log_scale.isfinite().all()):
            self._state = None
            return log
        precision = torch.exp(-2 * log_scale.clamp(*LOG_SCALE_BOUNDS))
        previous = self._state
        state = None
        if previous is not None and previous.log.shape == log.shape:
            state = self._update(previous, image, log, precision)
        self._state = state or _FilterState(image, log, precision, trend=0.0)
        return self._state.log

    def _update(self, previous: _FilterState, image: Tensor, log: Tensor, precision: Tensor) -> _FilterState | None:
        """Combine a frame with the previous state; None if too little of the frame is consistent with it."""
        flow, occlusion = self._motion(image, previous.image)
        warped, warped_precision, warped_image = self._warp(previous, flow)
        color_error = (warped_image - image).abs().mean(dim=0, keepdim=True)
        weight = (~occlusion) / (1 + (color_error / COLOR_SIGMA).square())
        consistent = weight > 0.5
        if float(consistent.float().mean()) < MIN_OVERLAP:
            return None
        warped = warped + previous.trend
        step = float((log - warped)[consistent].median().clamp(-MAX_LEVEL_STEP, MAX_LEVEL_STEP))
        leveled, warped = log - (1 - LEVEL_GAIN) * step, warped + LEVEL_GAIN * step
        trend = previous.trend + TREND_GAIN * step
        residual = warped - leveled
        history_precision = (
            torch.minimum(warped_precision, MAX_HISTORY_WEIGHT * precision)
            * weight
            / (1 + (residual / DEPTH_SIGMA).square())
        )
        gain = history_precision / (history_precision + precision)
        return _FilterState(image, leveled + gain * residual, history_precision + precision, trend)

    @staticmethod
    def _warp(previous: _FilterState, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Warp log depth, precision and image of the previous state to the new frame."""
        _, height, width = previous.log.shape
        positions = (pixel_grid(height, width) + flow)[None]
        stacked = torch.cat((previous.log, previous.precision, previous.image))[None]
        # Outside the image `sample` returns zero precision; the occlusion mask excludes these pixels, too.
        log, precision, image = sample(stacked, positions)[0].split((1, 1, 3))
        return log, precision, image


SAMPLED_FRAMES = 8
"""Frames, spread over the video, from which the typical depth range is estimated."""
SAMPLED_DEPTHS = 20_000
"""Depths that are used of each sampled frame."""


@dataclass(frozen=True, repr=False)
class DepthFrame(DepthResult):
    """Depth of one video frame. The confidence is that of the unfiltered prediction.

    Attributes:
        number: index of the frame in the whole video, from 0.
        time: timestamp of the frame, seconds, exact.
        frame: the frame, H x W x 3, uint8, or float in [0, 1] if the source is frames of floats.
    """

    number: int = 0
    time: Fraction = Fraction(0)
    frame: ImageArray | None = None

    def _repr_parts(self) -> tuple[str, ...]:
        return (format_time(self.number, self.time), *super()._repr_parts())


@dataclass(frozen=True)
class DepthVideoOptions(Span):
    """Selected frames and inference options; see `DepthPredictor.depth_video`."""

    camera: CameraHint = field(default_factory=CameraHint)
    range: tuple[float, float] | None = None
    steady: bool = True
    flow: FlowPredictor | None = None
    num_updates: int | None = None
    mirrored: bool = False
    batch_size: int | None = None
    precision: Precision = "auto"


class DepthVideo(SummaryRepr):
    """An iterable of the `DepthFrame` of every frame; it can be iterated as often as the source can be read.

    Attributes:
        options: selected frames and inference options.
        half: whether matrix products run in bfloat16.
        clip: the selected frames.
        video: the open video, or None if the source is an iterable of frames.
        trained: whether the network has trained weights.
    """

    def __init__(
        self, network: ProtoFormer, trained: bool, device: torch.device, source: Source, options: DepthVideoOptions
    ) -> None:
        self.options = options
        self.half = use_half_precision(device, options.precision)
        self.clip = ClipFrames(source, options)
        self.video = self.clip.video
        self.trained = trained
        self._network, self._device = network, device
        self._engine: DepthEngine | None = None
        self._camera: Camera | None = None
        if self.video is not None:
            self._prepare(self.video.info.size)

    def _repr_parts(self) -> tuple[str, ...]:
        return (self.clip.name, "computed when it is iterated or saved")

    def __iter__(self) -> Iterator[DepthFrame]:
        frames, has_frames = iter(self.clip), False
        motion = classical_motion if self.options.flow is None else estimate_motion(self.options.flow)
        temporal_filter = TemporalFilter(motion) if self.options.steady else None
        batch_size = 1
        while batch := list(itertools.islice(frames, batch_size)):
            engine, camera = self._prepare(batch[0].size)
            batch_size, has_frames = 1 if self.clip.live else engine.batch_size, True
            estimates = engine.predict_frames([frame.pixels for frame in batch])
            for frame, estimate in zip(batch, estimates, strict=True):
                yield self._make_frame(engine, camera, frame, estimate, temporal_filter)
        if not has_frames:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")

    def typical_range(self, progress: ProgressCallback | None = None) -> tuple[float, float]:
        """Estimate a color range for the whole video from a few frames, without reading all of it.

        Args:
            progress: called after every sampled frame.

        Returns:
            The 2nd and 98th percentile of the depth, meters.

        Raises:
            InputError: if the source is an iterable of frames or a live source, which can be read only once, or has no
                frames.
        """
        if self.video is None or self.video.live:
            source = "an iterable of frames" if self.video is None else self.video.info.name
            raise InputError(f"{source} can be read only once; open it as a video, or give a range.")
        instants = self.clip.instants(self.video, SAMPLED_FRAMES)
        depths: list[Tensor] = []
        for index, instant in enumerate(instants):
            depths.extend(self._sample_depths(self.video, instant))
            if progress:
                progress(index + 1, len(instants))
        if not depths:
            depths.extend(self._sample_depths(self.video, self.options.start))
        if not depths:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")
        return default_depth_range(torch.cat(depths).numpy())

    def save(
        self,
        path: PathLike,
        *,
        colors: tuple[float, float] | None = None,
        side_by_side: bool = False,
        format: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> PipelineOutcome:
        """Write the depth as a video, or as a folder with one file per frame.

        Args:
            path: a video, such as depth.mp4, with the times and the audio of the source; or a folder, a name without a
                suffix, with files named by the number of the frame.
            colors: depths of the first and the last color, meters; None: `typical_range`, or, for a source that can be
                read only once, the widest range of all frames so far.
            side_by_side: draw the frame to the left of the colors.
            format: format of the files in a folder, "npy", "npz" or "png" (drawn frames); None: "npy".
            progress: called with the number of frames so far and the estimated total.

        Returns:
            The number of frames and the run time.
        """
        is_drawn = Path(path).suffix != "" or format == "png"
        if colors is None and is_drawn and self.video is not None and not self.video.live:
            colors = self.typical_range()
        painter = DepthPainter(colors, side_by_side)
        return save_results(path, self.clip, self, painter, format, ("npy", "npz"), progress)

    @property
    def camera(self) -> Camera | None:
        """Camera for which the depth is computed; None until the frame size is known."""
        return self._camera

    def _prepare(self, size: tuple[int, int]) -> tuple[DepthEngine, Camera]:
        if self._engine is None or self._camera is None or self._engine.size != size:
            options = self.options
            first = self.video.info.paths[0] if isinstance(self.video, ImageSequence) else None
            self._camera = resolve_camera(size, options.camera, first)
            self._engine = DepthEngine(
                self._network,
                self._device,
                size,
                self._camera,
                *(options.num_updates, self.half, options.batch_size, options.mirrored),
            )
        return self._engine, self._camera

    def _bounds(self, engine: DepthEngine) -> tuple[float, float]:
        return self.options.range or network_range(self._network.config, engine.focal)

    def _make_frame(
        self,
        engine: DepthEngine,
        camera: Camera,
        frame: VideoFrame,
        estimate: Estimate,
        temporal_filter: TemporalFilter | None,
    ) -> DepthFrame:
        log = engine.to_metric_log(estimate)
        if temporal_filter is not None:
            log = temporal_filter.follow(engine.resize_frame(frame.pixels), log, estimate.log_scale)
        bounds = self._bounds(engine)
        return DepthFrame(
            depth=enlarge_depth(log, engine.size).exp().clamp(*bounds),
            confidence=enlarge_depth(depth_confidence(estimate.log_scale), engine.size),
            range=bounds,
            intrinsics=camera.intrinsics,
            camera=camera.source,
            trained=self.trained,
            number=frame.number,
            time=frame.time,
            frame=frame.image,
        )

    def _sample_depths(self, video: Video, instant: float | Fraction | None) -> Iterator[Tensor]:
        """Yield some depths, meters, of the frame at a time in seconds; nothing if there is no such frame."""
        end = self.options.end
        if instant is not None and end is not None and instant >= end:
            return
        for frame in itertools.islice(self.clip.read(video, instant), 1):
            engine, _ = self._prepare(frame.size)
            (estimate,) = engine.predict_frames([frame.pixels])
            depths = engine.to_metric_log(estimate).exp().clamp(*self._bounds(engine)).flatten()
            yield depths[:: max(1, depths.numel() // SAMPLED_DEPTHS)]
