"""What a world makes and a dataset holds: frozen records, the same for both.

Images are float RGB in [0, 1], N x 3 x H x W. A record read from disk has N = 1; records of one size join into a batch.
`names` says where each of the N came from.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

Sample = TypeVar("Sample", "FlowSample", "DepthSample", "TrackPairs", "StabilityWindows")


@dataclass(frozen=True, kw_only=True)
class FlowPair:
    """Two images whose motion is not known, such as a benchmark's test pair."""

    first: Tensor
    second: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FlowSample(FlowPair):
    """Two images and their true motion.

    flow: N x 2 x H x W, pixels, from first to second; 0 where unknown. valid: N x 1 x H x W, bool, where it is known.
    occlusion: N x 1 x H x W, bool, pixels of the first image that the second does not show, or that leave it; None
    where nobody knows.
    """

    flow: Tensor
    valid: Tensor
    occlusion: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class DepthSample:
    """An image and its true depth.

    depth: N x 1 x H x W, meters along the optical axis; 0 where unknown. valid: N x 1 x H x W, bool, where it is known.
    intrinsics: N x 3 x 3, pixels, or None where nobody knows.
    """

    image: Tensor
    depth: Tensor
    valid: Tensor
    intrinsics: Tensor | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrackSequence:
    """A clip and the box of one object in it; images are read when they are asked for.

    frames: T files. boxes: T x 4, float, (x, y, w, h) in pixels, top-left; a pixel i reaches from i to i + 1;
    NaN where unknown. present: T, bool, whether the object is seen in the frame (False: occluded or out of view).
    """

    name: str
    frames: tuple[Path, ...]
    boxes: Tensor
    present: Tensor


@dataclass(frozen=True, kw_only=True)
class StabilityPair:
    """A shaky video and the stable one of the same scene (None: there is none); `frames` is the shorter length."""

    name: str
    unstable: Path
    stable: Path | None
    frames: int


@dataclass(frozen=True, kw_only=True)
class TrackClip:
    """Clips and the box of one object in each, in memory.

    frames: N x T x 3 x H x W. boxes: N x T x 4, (x, y, w, h) in pixels, of the whole object, also where it is hidden or
    beyond the border; NaN where it is out of sight altogether. visible: N x T, the share of it that is seen, 0 to 1.
    """

    frames: Tensor
    boxes: Tensor
    visible: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrackPairs:
    """Targets, and crops in which they are to be found.

    reference: N x 3 x R x R; reference_boxes: N x 4, (x, y, w, h) of the targets in it, pixels; a pixel i reaches from
    i to i + 1. search: N x 3 x S x S; boxes: N x 4, of the same targets there. located: N, bool, whether the target is
    there and its box known. judged: N, bool, whether it is located or surely not there; neither is said of a
    target of which only a little is seen.
    """

    reference: Tensor
    reference_boxes: Tensor
    search: Tensor
    boxes: Tensor
    located: Tensor
    judged: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StabilityClip:
    """Shaky clips and their steady twins, in memory.

    unstable, stable: N x T x 3 x H x W. warp: N x T x 2 x H x W, pixels, from each steady frame to the shaky one of the
    same moment: stable(p) is unstable(p + warp(p)) where `valid`, N x T x 1 x H x W, bool, says that both see it.
    """

    unstable: Tensor
    stable: Tensor
    warp: Tensor
    valid: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StabilityWindows:
    """Two frames of shaky clips that follow one another, each with the trails of the T frames around it.

    unstable: N x 2 x 3 x H x W, the frames; stable: N x 3 x H x W, the steady twin of the first. places: N x 2 x T x
    2 x h x w and trust: N x 2 x T x 1 x h x w, as in `geometry.trails.Trails`. warp: N x 2 x 2 x h x w, pixels, from
    the centers of each steady frame's cells to the shaky one, as in `StabilityClip`; valid: N x 2 x 1 x h x w, bool,
    where it is known.
    """

    unstable: Tensor
    stable: Tensor
    places: Tensor
    trust: Tensor
    warp: Tensor
    valid: Tensor
    names: tuple[str, ...] = ()


def join(samples: list[Sample]) -> Sample:
    """One batch of several samples of one size; what one of them does not know, the batch does not know."""
    kind = type(samples[0])
    fields: dict[str, Tensor | tuple[str, ...] | None] = {}
    for field in kind.__dataclass_fields__:
        values = [getattr(sample, field) for sample in samples]
        if field == "names":
            fields[field] = tuple(name for names in values for name in names)
        else:
            fields[field] = None if any(value is None for value in values) else torch.cat(values)
    return kind(**fields)  # type: ignore[arg-type]
