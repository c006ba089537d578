"""The motion of a clip: frames are read, encoded and forgotten one after the other."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.flow.engine import TiledFlow, propagate_flow
from protoformer.flow.result import FlowResult
from protoformer.flow.tiling import FlowPlan, TileSize, check_zoom, plan_flow
from protoformer.models.heads.flow import FlowNetwork
from protoformer.models.runtime import Precision, ProgressCallback, use_half_precision
from protoformer.video.clip import ClipFrame, ClipFrames, Source, Span
from protoformer.video.types import Video
from protoformer.viz.text import format_time

SAMPLED_PAIRS = 8
"""Pairs, spread over the clip, that tell how fast it moves."""
SAMPLED_LENGTHS = 20_000
"""Vectors of each of these that are looked at."""
TYPICAL = 0.99
LEAST_SCALE = 1.0
"""Pixels: a still clip stays pale, and its noise is not painted as motion."""


@dataclass(frozen=True, repr=False)
class FlowFrame(FlowResult):
    """The motion from one frame of a clip to the next that was taken.

    number: of the first frame, from 0 in the whole clip. time, until: seconds at which the two frames are shown, exact.
    image: the first frame, 3 x H x W, uint8, or float in [0, 1].
    """

    number: int = 0
    time: Fraction = Fraction(0)
    until: Fraction = Fraction(0)
    image: Tensor | None = None

    def _facts(self) -> tuple[str, ...]:
        return (format_time(self.number, self.time), *super()._facts())


@dataclass(frozen=True)
class FlowVideoOptions(Span):
    """What of a clip is taken, and how its flow is computed; see `FlowModel.flow_video`."""

    updates: int | None = None
    warm_start: bool = False
    tile: TileSize = "auto"
    memory: int | None = None
    batch: int | None = None
    precision: Precision = "auto"
    zoom: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_zoom(self.zoom)


class FlowVideo:
    """Iterate over it for the `FlowStep` of every pair, as often as the source can be read.

    clip: its frames. movie: the open clip, or None where frames were handed in. plan: how the flow is computed; None
    until the size of the frames is known.
    """

    def __init__(
        self, network: FlowNetwork, trained: bool, device: torch.device, source: Source, options: FlowVideoOptions
    ) -> None:
        self.options = options
        self.plan: FlowPlan | None = None
        self.clip = ClipFrames(source, options)
        self.movie = self.clip.movie
        self.half = use_half_precision(device, options.precision)
        self._network, self._trained, self._device = network, trained, device
        self._engine: TiledFlow | None = None
        if self.movie is not None:
            self._prepared(self.movie.info.size)

    def __iter__(self) -> Iterator[FlowFrame]:
        frames = iter(self.clip)
        before = next(frames, None)
        if before is None:
            raise InputError(f"{self.clip.name} has no frame in this span; flow needs two, so choose another.")
        engine = self._prepared(before.size)
        (seen,) = engine.encode([before.pixels])
        at_once = 1 if engine.plan.tile else engine.plan.batch
        latest: FlowFrame | None = None
        while group := list(itertools.islice(frames, at_once)):
            steps = [before, *group]
            encoded = [seen, *engine.encode([frame.pixels for frame in group])]
            start = self._start(engine.plan, latest, group[0].time) if self.options.warm_start else None
            for place, found in enumerate(engine.flows(list(itertools.pairwise(encoded)), start)):
                latest = self._step(engine.plan, found, steps[place], steps[place + 1])
                yield latest
            before, seen = steps[-1], encoded[-1]
        if latest is None:
            raise InputError(f"{self.clip.name} has one frame in this span; flow needs two, so choose another.")

    def typical_motion(self, progress: ProgressCallback | None = None) -> float:
        """The length, in pixels, under which 99 of 100 vectors lie in a few pairs all over the clip; at least 1.

        One scale for all colors of a clip, found without reading or keeping all of it. For a clip that was opened.
        """
        if self.movie is None:
            raise InputError("frames that are handed in are seen once; open them as a clip, or give a scale.")
        instants = self.clip.instants(self.movie, SAMPLED_PAIRS, together=2)
        lengths: list[Tensor] = []
        for place, instant in enumerate(instants):
            lengths.extend(self._lengths(self.movie, instant))
            if progress:
                progress(place + 1, len(instants))
        if not lengths:
            lengths.extend(self._lengths(self.movie, self.options.start))
        return max(LEAST_SCALE, float(torch.cat(lengths).quantile(TYPICAL))) if lengths else LEAST_SCALE

    def _prepared(self, size: tuple[int, int]) -> TiledFlow:
        if self._engine is None or self._engine.plan.size != size:
            options, config = self.options, self._network.config
            limits = (options.tile, options.memory, options.batch)
            plan = plan_flow(size, config, self._device, *limits, half=self.half, zoom=options.zoom)
            # A pair that begins with the one before has to wait for it; windows of one pair need not.
            self.plan = replace(plan, batch=1) if options.warm_start and plan.tile is None else plan
            self._engine = TiledFlow(self._network, self._device, self.plan, options.updates, self.half)
        return self._engine

    def _start(self, plan: FlowPlan, latest: FlowFrame | None, until: Fraction) -> Tensor | None:
        """The latest flow carried on; where frames are not evenly spaced, for as long as the next pair takes."""
        if latest is None:
            return None
        span, before = until - latest.until, latest.until - latest.time
        return propagate_flow(latest.flow, plan.seen, self._device) * float(span / before)

    def _step(self, plan: FlowPlan, found: Tensor, first: ClipFrame, second: ClipFrame) -> FlowFrame:
        return FlowFrame(
            flow=found[:2],
            confidence=found[2:],
            trained=self._trained,
            seen=plan.other_size,
            number=first.number,
            time=first.time,
            until=second.time,
            image=first.pixels,
        )

    def _lengths(self, movie: Video, instant: float | Fraction | None) -> Iterator[Tensor]:
        """Some lengths of vectors, in pixels, of the pair at an instant; nothing where there is none."""
        end = self.options.end
        if instant is not None and end is not None and instant >= end:
            return
        pair = list(itertools.islice(self.clip.read(movie, instant), 2))
        if len(pair) < 2:
            return
        engine = self._prepared(movie.info.size)
        one, two = engine.encode([frame.pixels for frame in pair])
        (found,) = engine.flows([(one, two)])
        lengths = found[:2].norm(dim=0).flatten()
        yield lengths[:: max(1, lengths.numel() // SAMPLED_LENGTHS)]
