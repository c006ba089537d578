"""Depth that does not flicker: what was known of the frame before is carried along the motion and blended in.

A network that sees one frame at a time wavers in two ways: all of a frame is said to be nearer or farther than the one
before, and single surfaces breathe. The first is a number a frame, which a filter of level and trend takes off; the
second is averaged over frames, pixel by pixel, wherever motion, light and depth agree that it is the same surface.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.geometry import Padding, occlusion_by_consistency, pixel_grid, sample
from protoformer.inference.baselines import baseline_flow
from protoformer.inference.flow import FlowModel

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
"""Difference of colour, of [0, 1], at which it has."""
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


def motion_of(model: FlowModel) -> Motion:
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


class SteadyDepth:
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
