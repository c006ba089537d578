"""The depth of a clip: frames are read, estimated, steadied and forgotten one after the other."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from protoformer.depth.camera import Camera, CameraHint, resolve_camera
from protoformer.depth.engine import DepthEngine, Estimate, depth_confidence, enlarge_depth
from protoformer.depth.result import DepthResult, network_range
from protoformer.errors import InputError
from protoformer.flow.baselines import baseline_flow
from protoformer.flow.predictor import FlowPredictor
from protoformer.geometry.resizing import Padding
from protoformer.geometry.warps import occlusion_by_consistency, pixel_grid, sample
from protoformer.models.heads.depth import DepthNetwork
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.video.clip import ClipFrame, ClipFrames, Source, Span
from protoformer.video.image_sequence import ImageSequence
from protoformer.video.types import Video
from protoformer.viz.colormaps import default_depth_range
from protoformer.viz.text import format_time

MEMORY = 4.0
"""How much all frames before weigh at most, where the new one weighs 1."""
LEVEL_GAIN, TREND_GAIN = 0.3, 0.05
"""How much of a change of the whole frame's level is believed at once, and how much of it as the beginning of a trend
(a camera that walks): with a trend, a steady approach is followed without lag."""
LARGEST_STEP = math.log(1.25)
"""A larger change of the whole level is believed beyond this: it is no flicker."""
LIKE_DEPTH = 0.1
"""Difference of log depth at which a carried depth has lost half of its weight."""
LIKE_LIGHT = 0.1
"""Difference of color, of [0, 1], at which it has."""
LEAST_TRUSTED = 0.2
"""Share of the frame that must be seen in both, or the scene is another one and nothing is carried."""
MOST_DEPARTURE = LIKE_DEPTH * MEMORY / (2 * math.sqrt(MEMORY + 1))
"""How far, in log depth, blending can take a pixel from what the frame itself says at the common level: 9 %."""
LEAST_SEARCHED = 16
"""Pixels of a side; dense inverse search fails on smaller images, and on those much wider than high."""
WIDEST = 8
"""Frames so many times as wide as high, which no camera takes, are left as they are."""

SCALES = (-5.0, 5.0)
"""Logarithms between which the scale of an error is taken to lie: from the least that a network says to knowing
nothing. Precisions then stay far from the ends of what a float holds, where shares of them are 0 / 0."""

Motion = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Images 3 x h x w in [0, 1] to the flow from the first to the second, 2 x h x w, pixels, and to what of the first the
second does not show, 1 x h x w, bool."""


def classical_motion(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """By dense inverse search, both ways."""
    _, height, width = first.shape
    if width > WIDEST * max(height, LEAST_SEARCHED):
        return torch.zeros(2, height, width), torch.ones(1, height, width, dtype=torch.bool)
    bottom, right = max(LEAST_SEARCHED, width // 2) - height, LEAST_SEARCHED - width
    padding = Padding(height, width, max(0, bottom), max(0, right))
    first, second = (padding.pad(image[None])[0] for image in (first, second))
    there, back = (padding.crop(baseline_flow("dis-fast", *pair)[None]) for pair in ((first, second), (second, first)))
    return there[0], occlusion_by_consistency(there, back)[0]


def estimate_motion(model: FlowPredictor) -> Motion:
    """By a flow model."""

    def motion(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        found = model.flow(first, second, occlusion=True, tile="auto", zoom=1)
        assert found.occlusion is not None
        return found.flow, found.occlusion

    return motion


@dataclass(frozen=True, eq=False)
class _Known:
    """Of the frame before: its image, 3 x h x w; log depth and precision of it, 1 x h x w; log change a frame."""

    image: Tensor
    log: Tensor
    precision: Tensor
    trend: float


class TemporalFilter:
    """Follows one clip; hand it every frame in its order."""

    def __init__(self, motion: Motion = classical_motion) -> None:
        self._motion = motion
        self._before: _Known | None = None

    def follow(self, image: Tensor, log: Tensor, log_scale: Tensor) -> Tensor:
        """The steady log depth of the next frame, 1 x h x w.

        image: 3 x h x w in [0, 1]; log: of the frame's own depth, 1 x h x w; log_scale: of its error, 1 x h x w. A
        frame with a value that is not finite is handed back as it is, and the next one starts anew.
        """
        if not bool(log.isfinite().all() and log_scale.isfinite().all()):
            self._before = None
            return log
        precision = torch.exp(-2 * log_scale.clamp(*SCALES))
        before = self._before
        known = None
        if before is not None and before.log.shape == log.shape:
            known = self._followed(before, image, log, precision)
        self._before = known or _Known(image, log, precision, trend=0.0)
        return self._before.log

    def _followed(self, before: _Known, image: Tensor, log: Tensor, precision: Tensor) -> _Known | None:
        """What is known of a frame by itself and the one before; None where nothing can be carried."""
        flow, hidden = self._motion(image, before.image)
        carried, carried_precision, seen = self._carried(before, flow)
        light = (seen - image).abs().mean(dim=0, keepdim=True)
        trust = (~hidden) / (1 + (light / LIKE_LIGHT).square())
        sure = trust > 0.5
        if float(sure.float().mean()) < LEAST_TRUSTED:
            return None
        carried = carried + before.trend
        step = float((log - carried)[sure].median().clamp(-LARGEST_STEP, LARGEST_STEP))
        level, carried = log - (1 - LEVEL_GAIN) * step, carried + LEVEL_GAIN * step
        trend = before.trend + TREND_GAIN * step
        gap = carried - level
        kept = torch.minimum(carried_precision, MEMORY * precision) * trust / (1 + (gap / LIKE_DEPTH).square())
        share = kept / (kept + precision)
        return _Known(image, level + share * gap, kept + precision, trend)

    @staticmethod
    def _carried(before: _Known, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log depth, precision and image of the frame before as the new one should show them, by the flow to it."""
        _, height, width = before.log.shape
        positions = (pixel_grid(height, width) + flow)[None]
        joined = torch.cat((before.log, before.precision, before.image))[None]
        # Beyond the border nothing is known; `sample` says zero there, and the flow's occlusion says so as well.
        log, precision, image = sample(joined, positions)[0].split((1, 1, 3))
        return log, precision, image


SAMPLED_FRAMES = 8
"""Frames, spread over the clip, that tell how deep it is."""
SAMPLED_DEPTHS = 20_000
"""Depths of each of these that are looked at."""


@dataclass(frozen=True, repr=False)
class DepthFrame(DepthResult):
    """The depth of one frame of a clip.

    number: of the frame, from 0 in the whole clip. time: seconds at which it is shown, exact. image: the frame, 3 x H x
    W, uint8, or float in [0, 1]. confidence is that of the frame by itself, also where the depth was steadied.
    """

    number: int = 0
    time: Fraction = Fraction(0)
    image: Tensor | None = None

    def _facts(self) -> tuple[str, ...]:
        return (format_time(self.number, self.time), *super()._facts())


@dataclass(frozen=True)
class DepthVideoOptions(Span):
    """What of a clip is taken, and how its depth is computed; see `DepthModel.depth_video`."""

    camera: CameraHint = field(default_factory=CameraHint)
    range: tuple[float, float] | None = None
    steady: bool = True
    flow: FlowPredictor | None = None
    updates: int | None = None
    mirrored: bool = False
    batch: int | None = None
    precision: Precision = "auto"


class DepthVideo:
    """Iterate over it for the `DepthStep` of every frame, as often as the source can be read.

    clip: its frames. movie: the open clip, or None where frames were handed in. trained: whether the
    weights were.
    """

    def __init__(
        self, network: DepthNetwork, trained: bool, device: torch.device, source: Source, options: DepthVideoOptions
    ) -> None:
        self.options = options
        self.half = use_half_precision(device, options.precision)
        self.clip = ClipFrames(source, options)
        self.movie = self.clip.movie
        self.trained = trained
        self._network, self._device = network, device
        self._engine: DepthEngine | None = None
        self._camera: Camera | None = None
        if self.movie is not None:
            self._prepared(self.movie.info.size)

    def __iter__(self) -> Iterator[DepthFrame]:
        frames, found = iter(self.clip), False
        motion = classical_motion if self.options.flow is None else estimate_motion(self.options.flow)
        steady = TemporalFilter(motion) if self.options.steady else None
        at_once = 1
        while group := list(itertools.islice(frames, at_once)):
            engine, camera = self._prepared(group[0].size)
            at_once, found = engine.batch, True
            estimates = engine.estimates([frame.pixels for frame in group])
            for frame, estimate in zip(group, estimates, strict=True):
                yield self._step(engine, camera, frame, estimate, steady)
        if not found:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")

    def typical_range(self, progress: ProgressCallback | None = None) -> tuple[float, float]:
        """The meters between which 96 of 100 depths lie in a few frames all over the clip, for one scale of colors.

        Found without reading or keeping all of it. For a clip that was opened.
        """
        if self.movie is None:
            raise InputError("frames that are handed in are seen once; open them as a clip, or give a range.")
        instants = self.clip.instants(self.movie, SAMPLED_FRAMES)
        depths: list[Tensor] = []
        for place, instant in enumerate(instants):
            depths.extend(self._depths(self.movie, instant))
            if progress:
                progress(place + 1, len(instants))
        if not depths:
            depths.extend(self._depths(self.movie, self.options.start))
        if not depths:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")
        return default_depth_range(torch.cat(depths).numpy())

    @property
    def camera(self) -> Camera | None:
        """The camera that meters are computed for; None until the size of the frames is known."""
        return self._camera

    def _prepared(self, size: tuple[int, int]) -> tuple[DepthEngine, Camera]:
        if self._engine is None or self._camera is None or self._engine.size != size:
            options = self.options
            first = self.movie.info.paths[0] if isinstance(self.movie, ImageSequence) else None
            self._camera = resolve_camera(size, options.camera, first)
            self._engine = DepthEngine(
                self._network,
                self._device,
                size,
                self._camera,
                *(options.updates, self.half, options.batch, options.mirrored),
            )
        return self._engine, self._camera

    def _bounds(self, engine: DepthEngine) -> tuple[float, float]:
        return self.options.range or network_range(self._network.config, engine.focal)

    def _step(
        self, engine: DepthEngine, camera: Camera, frame: ClipFrame, estimate: Estimate, steady: TemporalFilter | None
    ) -> DepthFrame:
        log = engine.metric_log(estimate)
        if steady is not None:
            log = steady.follow(engine.seen(frame.pixels), log, estimate.log_scale)
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
            image=frame.pixels,
        )

    def _depths(self, movie: Video, instant: float | Fraction | None) -> Iterator[Tensor]:
        """Some depths, meters, of the frame at an instant; nothing where there is none."""
        end = self.options.end
        if instant is not None and end is not None and instant >= end:
            return
        for frame in itertools.islice(self.clip.read(movie, instant), 1):
            engine, _ = self._prepared(frame.size)
            (estimate,) = engine.estimates([frame.pixels])
            depths = engine.metric_log(estimate).exp().clamp(*self._bounds(engine)).flatten()
            yield depths[:: max(1, depths.numel() // SAMPLED_DEPTHS)]
