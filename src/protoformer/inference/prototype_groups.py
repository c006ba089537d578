"""Groups of pixels that prototypes stand for: where they are, what they do, and which is which in another image."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.metrics.regions import join_order, owners
from protoformer.model import Prototypes

FAMILIES = 12
"""Families of similar prototypes that still can be told apart at a glance."""


@dataclass(frozen=True)
class Group:
    """The pixels of one prototype.

    prototype: its number, from 0, row by row in the grid it was pooled from. pixels, share: of the image's. centre:
    (x, y), pixels, the mean of where they are. mean: of their values, (u, v) in pixels for a flow, (metres,) for a
    depth; empty where there are none. spread: the root of the mean squared distance from it, in the same unit.
    """

    prototype: int
    pixels: int
    share: float
    centre: tuple[float, float]
    mean: tuple[float, ...] = ()
    spread: float | None = None


@dataclass(frozen=True)
class Match:
    """A prototype of a first image and one of a second, each the other's most similar; similarity: their cosine."""

    first: int
    second: int
    similarity: float


def at_pixels(labels: Tensor, size: tuple[int, int], seen: tuple[int, int], stride: int) -> Tensor:
    """A map of cells, h x w, at the pixels of an image of (H, W) = size: H x W.

    seen: the (height, width) at which the network saw the image. A cell is stride x stride pixels of that.
    """
    places = []
    for length, shown, cells in zip(size, seen, labels.shape, strict=True):
        centres = (torch.arange(length, device=labels.device).float() + 0.5) * (shown / length)
        places.append((centres / stride).long().clamp(max=cells - 1))
    return labels[places[0]][:, places[1]]


def cells_of(found: Prototypes, seen: tuple[int, int], stride: int) -> Tensor:
    """The prototype of each cell of a batch's first image, (height, width) = seen without its padding: h x w, int64."""
    rows, columns = (-(-side // stride) for side in seen)
    return found.owners[0].view(found.size)[:rows, :columns].cpu()


def groups_of(labels: Tensor, values: Tensor | None = None) -> tuple[Group, ...]:
    """Of every prototype that has pixels, in rising order. labels: H x W, int64; values: C x H x W."""
    height, width = labels.shape
    flat = labels.flatten()
    counts = torch.bincount(flat)
    number = torch.arange(height * width, device=labels.device)
    parts = [(number % width).double()[None], torch.div(number, width, rounding_mode="floor").double()[None]]
    if values is not None:
        chosen = values.flatten(1).double().to(labels.device)
        parts += [chosen, chosen.square().sum(dim=0, keepdim=True)]
    stacked = torch.cat(parts)
    sums = torch.zeros(len(counts), len(stacked), dtype=torch.float64, device=labels.device)
    means = (sums.index_add_(0, flat, stacked.T) / counts.clamp_min(1)[:, None]).tolist()
    found = []
    for prototype, pixels in enumerate(counts.tolist()):
        if pixels:
            x, y, *told = means[prototype]
            mean = tuple(told[:-1])
            spread = max(0.0, told[-1] - sum(each**2 for each in mean)) ** 0.5 if told else None
            found.append(Group(prototype, pixels, pixels / flat.numel(), (x, y), mean, spread))
    return tuple(found)


def mutual_matches(first: Tensor, second: Tensor, used: tuple[Tensor, Tensor]) -> tuple[Match, ...]:
    """Prototypes of two images (K x C each) that are each other's most similar by cosine, in rising order of the first.

    used: numbers of those, in each image, that have pixels; the others match nothing.
    """
    cosines = F.normalize(first[used[0]].float(), dim=1) @ F.normalize(second[used[1]].float(), dim=1).T
    to, back = cosines.argmax(dim=1), cosines.argmax(dim=0)
    ours = torch.arange(len(to), device=to.device)
    mutual = back[to] == ours
    return tuple(
        Match(int(used[0][one]), int(used[1][to[one]]), float(cosines[one, to[one]])) for one in ours[mutual].tolist()
    )


def families_of(centres: Tensor, labels: Tensor, count: int) -> Tensor:
    """Prototypes (K x C) joined until `count` are left, those first that point the same way and have few pixels.

    labels: h x w, int64. Returns the lowest number in the family of each: K, int64.
    """
    if count < 1:
        raise InputError(f"prototypes cannot be sorted into {count} families; give a whole number, 1 or more.")
    sizes = torch.bincount(labels.flatten(), minlength=len(centres))
    joins = join_order(F.normalize(centres.float(), dim=1), sizes)
    return owners(len(centres), joins[: max(0, len(centres) - count)])
