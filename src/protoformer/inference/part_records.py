"""What moves as one in two images: a map of each, and a record of every part."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.geometry import resized, resized_flow, warp_back
from protoformer.geometry.partitions import moved_along
from protoformer.inference.brief import Brief, count_fact, size_fact
from protoformer.inference.moving_parts import moving_parts
from protoformer.inference.prototype_groups import Group, at_pixels, groups_of
from protoformer.metrics.regions import contingency


@dataclass(frozen=True)
class MovingPart:
    """Pixels of the first image that one smooth motion suits.

    part: its number, from 0 by falling size as the network sees the image. pixels, share: of the image's. centre:
    (x, y), pixels, the mean of where they are. mean: of their flow, (u, v), pixels. spread: the root of the mean
    squared distance from that, pixels. prototypes: each one that pixels of it belong to, and how many do, most first.
    """

    part: int
    pixels: int
    share: float
    centre: tuple[float, float]
    mean: tuple[float, ...]
    spread: float
    prototypes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, repr=False)
class MovingParts(Brief):
    """All that move in two images of H x W pixels.

    labels: the part of each pixel of the first, H x W, int64. second: that of each pixel of the second, by moving the
    first's along the flow; -1 where none arrives, as where something has come into view. parts: by number.
    """

    labels: Tensor
    second: Tensor
    parts: tuple[MovingPart, ...]

    def _facts(self) -> tuple[str, ...]:
        return (size_fact(*self.labels.shape), count_fact(len(self.parts), "part"))


def found_parts(
    images: tuple[Tensor, Tensor], labels: Tensor, flow: Tensor, confidence: Tensor | None, seen: tuple[int, int]
) -> MovingParts:
    """From two images (3 x H x W in [0, 1]), the prototypes of the first's pixels (H x W) and its flow (2 x H x W).

    confidence: 1 x H x W in [0, 1], or None; seen: the (height, width) at which parts are looked for, and pixels count.
    """
    size = (labels.shape[0], labels.shape[1])
    sure = torch.ones_like(flow[:1]) if confidence is None else confidence
    known = resized_flow(torch.cat((flow, sure))[None].float().cpu(), seen)[0]
    small = [resized(image[None].cpu(), seen) for image in images]
    found = moving_parts(at_pixels(labels, seen, size, 1), known[:2], known[2:])
    gap = (small[0] - warp_back(small[1], known[None, :2])).abs().mean(dim=1)[0]
    moved = moved_along(found, known[:2], gap)
    whole, arrived = (at_pixels(each, size, seen, 1) for each in (found, moved))
    used, groups = labels.unique(), groups_of(whole, flow)
    shared = contingency(whole, labels)
    records = [_record(group, used, counts) for group, counts in zip(groups, shared, strict=True)]
    return MovingParts(whole, arrived, tuple(records))


def _record(group: Group, used: Tensor, counts: Tensor) -> MovingPart:
    """Of a part's pixels as a group. used: numbers of prototypes, n; counts: how many of these pixels each has, n."""
    order = counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())]
    prototypes = tuple(zip(used[order].tolist(), counts[order].tolist(), strict=True))
    assert group.spread is not None  # as there is a flow
    return MovingPart(group.prototype, group.pixels, group.share, group.centre, group.mean, group.spread, prototypes)
