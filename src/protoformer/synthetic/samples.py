"""Sample dataclasses shared by the synthetic scenes and the datasets.

Images are float RGB in [0, 1], N x 3 x H x W. A sample read from disk has N = 1; samples of one size are joined into a
batch by `join`. `names` identifies the source of each of the N samples.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

Sample = TypeVar("Sample", "FlowSample", "DepthSample", "TrackPairs", "StabilityWindows")


@dataclass(frozen=True, kw_only=True)
class FlowPair:
    """Two images without ground-truth flow, such as a benchmark's test pair.

    Attributes:
        first: N x 3 x H x W.
        second: N x 3 x H x W.
        names: N names.
    """

    first: Tensor
    second: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FlowSample(FlowPair):
    """Two images and their ground-truth flow.

    Attributes:
        flow: N x 2 x H x W, pixels, from first to second; 0 where not valid.
        valid: N x 1 x H x W, bool, where the flow is given.
        occlusion: N x 1 x H x W, bool, pixels of the first image that are occluded in the second or leave it; None if
            not available.
        instances: N x 1 x H x W, int64, index of the object of each pixel of the first image, 0 for the static
            background; None if not available.
    """

    flow: Tensor
    valid: Tensor
    occlusion: Tensor | None = None
    instances: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class DepthSample:
    """An image and its ground-truth depth.

    Attributes:
        image: N x 3 x H x W.
        depth: N x 1 x H x W, meters along the optical axis; 0 where not valid.
        valid: N x 1 x H x W, bool, where the depth is given.
        intrinsics: N x 3 x 3, pixels; None if not available.
        instances: N x 1 x H x W, int64, index of the object of each pixel, 0 for the static background; None if not
            available.
        names: N names.
    """

    image: Tensor
    depth: Tensor
    valid: Tensor
    intrinsics: Tensor | None = None
    instances: Tensor | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrackSequence:
    """A clip on disk and the box of one object in it; images are read on demand.

    Attributes:
        name: Name of the sequence.
        frames: T files.
        boxes: T x 4, float, (x, y, w, h) in pixels, top-left; pixel i covers i to i + 1. NaN where not annotated.
        present: T, bool, whether the object is visible in the frame (False: occluded or out of view).
    """

    name: str
    frames: tuple[Path, ...]
    boxes: Tensor
    present: Tensor


@dataclass(frozen=True, kw_only=True)
class StabilityPair:
    """A shaky video and a stable video of the same scene.

    Attributes:
        name: Name of the pair.
        unstable: The shaky video.
        stable: The stable video; None if there is none.
        frames: Number of frames of the shorter video.
    """

    name: str
    unstable: Path
    stable: Path | None
    frames: int


@dataclass(frozen=True, kw_only=True)
class TrackClip:
    """Clips in memory and the box of one object in each.

    Attributes:
        frames: N x T x 3 x H x W.
        boxes: N x T x 4, (x, y, w, h) in pixels, of the whole object, including parts that are occluded or outside the
            image; NaN where it is entirely out of view.
        visible: N x T, visible fraction of the object, 0 to 1.
        names: N names.
    """

    frames: Tensor
    boxes: Tensor
    visible: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrackPairs:
    """Target templates and search regions.

    Attributes:
        reference: N x 3 x R x R, the templates.
        reference_boxes: N x 4, (x, y, w, h) of the targets in them, pixels; pixel i covers i to i + 1.
        search: N x 3 x S x S, the search regions.
        boxes: N x 4, of the same targets in them.
        located: N, bool, whether the target is present and its box is given.
        judged: N, bool, whether the target is located or certainly absent; False for targets that are barely visible.
        names: N names.
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
    """Shaky clips and their steady versions, in memory.

    Attributes:
        unstable: N x T x 3 x H x W.
        stable: N x T x 3 x H x W.
        warp: N x T x 2 x H x W, pixels, from each steady frame to the shaky frame of the same moment: stable(p) =
            unstable(p + warp(p)) where `valid`.
        valid: N x T x 1 x H x W, bool, where both frames show the same point.
        names: N names.
    """

    unstable: Tensor
    stable: Tensor
    warp: Tensor
    valid: Tensor
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StabilityWindows:
    """Two consecutive frames of shaky clips, each with trajectories through the T frames around it.

    Attributes:
        unstable: N x 2 x 3 x H x W, the two frames.
        stable: N x 3 x H x W, the steady version of the first.
        displacements: N x 2 x T x 2 x h x w, as in `geometry.motion_fields.Trajectories`.
        confidence: N x 2 x T x 1 x h x w, as in `geometry.motion_fields.Trajectories`.
        warp: N x 2 x 2 x h x w, pixels, from the cell centers of each steady frame to the shaky one, as in
            `StabilityClip`.
        valid: N x 2 x 1 x h x w, bool, where the warp is given.
        names: N names.
    """

    unstable: Tensor
    stable: Tensor
    displacements: Tensor
    confidence: Tensor
    warp: Tensor
    valid: Tensor
    names: tuple[str, ...] = ()


def join(samples: list[Sample]) -> Sample:
    """Concatenate samples of one size into a batch; a field that is None in one sample is None in the batch."""
    kind = type(samples[0])
    fields: dict[str, Tensor | tuple[str, ...] | None] = {}
    for field in kind.__dataclass_fields__:
        values = [getattr(sample, field) for sample in samples]
        if field == "names":
            fields[field] = tuple(name for names in values for name in names)
        else:
            fields[field] = None if any(value is None for value in values) else torch.cat(values)
    return kind(**fields)  # type: ignore[arg-type]
