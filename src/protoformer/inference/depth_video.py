"""The depth of a clip: frames are read, estimated, steadied and forgotten one after the other."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.files import Movie
from protoformer.files.depth_color import usual_range
from protoformer.files.movie_images import ImageMovie
from protoformer.inference.brief import moment_fact
from protoformer.inference.cameras import Camera, CameraHint, camera_of
from protoformer.inference.clip_frames import ClipFrame, ClipFrames, Source, Span
from protoformer.inference.depth_engine import (
    DepthEngine,
    Estimate,
    confidence_in_depth,
    enlarged,
)
from protoformer.inference.depth_range import network_range
from protoformer.inference.depth_results import DepthResult
from protoformer.inference.flow import FlowModel
from protoformer.inference.flow_windows import Precision, takes_half
from protoformer.inference.steady_depth import SteadyDepth, classical_motion, motion_of
from protoformer.model.depth import DepthNetwork
from protoformer.model.flow_decoder import Progress

SAMPLED_FRAMES = 8
"""Frames, spread over the clip, that tell how deep it is."""
SAMPLED_DEPTHS = 20_000
"""Depths of each of these that are looked at."""


@dataclass(frozen=True, repr=False)
class DepthStep(DepthResult):
    """The depth of one frame of a clip.

    number: of the frame, from 0 in the whole clip. time: seconds at which it is shown, exact. image: the frame, 3 x H x
    W, uint8, or float in [0, 1]. confidence is that of the frame by itself, also where the depth was steadied.
    """

    number: int = 0
    time: Fraction = Fraction(0)
    image: Tensor | None = None

    def _facts(self) -> tuple[str, ...]:
        return (moment_fact(self.number, self.time), *super()._facts())


@dataclass(frozen=True)
class DepthVideoOptions(Span):
    """What of a clip is taken, and how its depth is computed; see `DepthModel.depth_video`."""

    camera: CameraHint = field(default_factory=CameraHint)
    range: tuple[float, float] | None = None
    steady: bool = True
    flow: FlowModel | None = None
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
        self.half = takes_half(device, options.precision)
        self.clip = ClipFrames(source, options)
        self.movie = self.clip.movie
        self.trained = trained
        self._network, self._device = network, device
        self._engine: DepthEngine | None = None
        self._camera: Camera | None = None
        if self.movie is not None:
            self._prepared(self.movie.info.size)

    def __iter__(self) -> Iterator[DepthStep]:
        frames, found = iter(self.clip), False
        motion = classical_motion if self.options.flow is None else motion_of(self.options.flow)
        steady = SteadyDepth(motion) if self.options.steady else None
        at_once = 1
        while group := list(itertools.islice(frames, at_once)):
            engine, camera = self._prepared(group[0].size)
            at_once, found = engine.batch, True
            estimates = engine.estimates([frame.pixels for frame in group])
            for frame, estimate in zip(group, estimates, strict=True):
                yield self._step(engine, camera, frame, estimate, steady)
        if not found:
            raise InputError(f"{self.clip.name} has no frame in this span; choose another.")

    def typical_range(self, progress: Progress | None = None) -> tuple[float, float]:
        """The metres between which 96 of 100 depths lie in a few frames all over the clip, for one scale of colours.

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
        return usual_range(torch.cat(depths).numpy())

    @property
    def camera(self) -> Camera | None:
        """The camera that metres are computed for; None until the size of the frames is known."""
        return self._camera

    def _prepared(self, size: tuple[int, int]) -> tuple[DepthEngine, Camera]:
        if self._engine is None or self._camera is None or self._engine.size != size:
            options = self.options
            first = self.movie.info.paths[0] if isinstance(self.movie, ImageMovie) else None
            self._camera = camera_of(size, options.camera, first)
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
        self, engine: DepthEngine, camera: Camera, frame: ClipFrame, estimate: Estimate, steady: SteadyDepth | None
    ) -> DepthStep:
        log = engine.metric_log(estimate)
        if steady is not None:
            log = steady.follow(engine.seen(frame.pixels), log, estimate.log_scale)
        bounds = self._bounds(engine)
        return DepthStep(
            depth=enlarged(log, engine.size).exp().clamp(*bounds),
            confidence=enlarged(confidence_in_depth(estimate.log_scale), engine.size),
            range=bounds,
            intrinsics=camera.intrinsics,
            camera=camera.source,
            trained=self.trained,
            number=frame.number,
            time=frame.time,
            image=frame.pixels,
        )

    def _depths(self, movie: Movie, instant: float | Fraction | None) -> Iterator[Tensor]:
        """Some depths, metres, of the frame at an instant; nothing where there is none."""
        end = self.options.end
        if instant is not None and end is not None and instant >= end:
            return
        for frame in itertools.islice(self.clip.read(movie, instant), 1):
            engine, _ = self._prepared(frame.size)
            (estimate,) = engine.estimates([frame.pixels])
            depths = engine.metric_log(estimate).exp().clamp(*self._bounds(engine)).flatten()
            yield depths[:: max(1, depths.numel() // SAMPLED_DEPTHS)]
