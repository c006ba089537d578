"""Pixel groups of prototypes: regions, motion, and matching between frames."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.regions import join_order, owners
from protoformer.geometry.warps import pixel_grid
from protoformer.models.prototyping import Prototypes

FAMILIES = 12
"""Families of similar prototypes that still can be told apart at a glance."""


@dataclass(frozen=True)
class Group:
    """The pixels of one prototype.

    prototype: its number, from 0, row by row in the grid it was pooled from. pixels, share: of the image's. center:
    (x, y), pixels, the mean of where they are. mean: of their values, (u, v) in pixels for a flow, (meters,) for a
    depth; empty where there are none. spread: the root of the mean squared distance from it, in the same unit.
    """

    prototype: int
    pixels: int
    share: float
    center: tuple[float, float]
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
        centers = (torch.arange(length, device=labels.device).float() + 0.5) * (shown / length)
        places.append((centers / stride).long().clamp(max=cells - 1))
    return labels[places[0]][:, places[1]]


def group_cells(found: Prototypes, seen: tuple[int, int], stride: int) -> Tensor:
    """The prototype of each cell of a batch's first image, (height, width) = seen without its padding: h x w, int64."""
    rows, columns = (-(-side // stride) for side in seen)
    return found.owners[0].view(found.size)[:rows, :columns].cpu()


def extract_groups(labels: Tensor, values: Tensor | None = None) -> tuple[Group, ...]:
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


def cluster_groups(centers: Tensor, labels: Tensor, count: int) -> Tensor:
    """Prototypes (K x C) joined until `count` are left, those first that point the same way and have few pixels.

    labels: h x w, int64. Returns the lowest number in the family of each: K, int64.
    """
    if count < 1:
        raise InputError(f"prototypes cannot be sorted into {count} families; give a whole number, 1 or more.")
    sizes = torch.bincount(labels.flatten(), minlength=len(centers))
    joins = join_order(F.normalize(centers.float(), dim=1), sizes)
    return owners(len(centers), joins[: max(0, len(centers) - count)])


LEAST_SCORE = 0.6
"""Of cosine plus overlap, which reach 2 together: with less a prototype is a new one."""
NO_MATCH = -1
"""The identity, and the family, of a prototype without pixels."""


class Identities:
    """Follows prototypes through a clip: hand it every frame's in turn, and it says which they are.

    Prototypes of the first frame are called by their number; one that continues none of those before gets a number
    that nobody had. One without pixels has no identity. Nothing is drawn by chance, so a clip gives the same numbers
    every time; who is gone is forgotten, so memory does not grow with the clip.

    count: into how many families of similar prototypes those of the first frame are sorted; None: none. families: of
    the latest frame, the number of each prototype's family, K, int64; a new one joins the most similar that continues,
    and where none continues, as after a cut, all are sorted as in a first frame.
    """

    def __init__(self, count: int | None = None) -> None:
        self.families = torch.empty(0, dtype=torch.int64)
        self._count = count
        self._family_of: dict[int, int] = {}
        self._before: tuple[Tensor, Tensor, Tensor] | None = None
        self._next = 0

    def follow(self, centers: Tensor, labels: Tensor, flow: Tensor | None = None) -> Tensor:
        """The identity of each prototype of a frame: K, int64, NOBODY for those without pixels.

        centers: K x C; labels: h x w, int64, the prototype of each cell; flow: 2 x h x w, cells, from the frame before
        to this one; None in the first frame.
        """
        count = len(centers)
        used = torch.bincount(labels.flatten(), minlength=count) > 0
        if self._before is None or flow is None:
            identities = torch.where(used, torch.arange(count), NO_MATCH)
            self._next = max(self._next, count)
        else:
            score = match_scores(self._before[:2], (centers, labels), flow)
            identities = self._continued(score, self._before[2], used)
        self._sort(centers, labels, identities)
        self._before = (centers, labels, identities)
        return identities

    def _sort(self, centers: Tensor, labels: Tensor, identities: Tensor) -> None:
        """Find the family of each prototype."""
        if self._count is None:
            self.families = identities
            return
        known = self._family_of
        names = identities.tolist()
        old = [place for place, name in enumerate(names) if name in known]
        if old:
            cosines = F.normalize(centers.float(), dim=1) @ F.normalize(centers[old].float(), dim=1).T
            likest = [names[old[place]] for place in cosines.argmax(dim=1).tolist()]
            families = [known[name if name in known else like] for name, like in zip(names, likest, strict=True)]
        else:
            families = cluster_groups(centers, labels, self._count).tolist()
        self.families = torch.where(identities == NO_MATCH, NO_MATCH, torch.tensor(families))
        self._family_of = {name: family for name, family in zip(names, families, strict=True) if name != NO_MATCH}

    def _continued(self, score: Tensor, before: Tensor, used: Tensor) -> Tensor:
        """Pair off prototypes, the best score first. used: K, bool, which have pixels."""
        identities = torch.full((score.shape[1],), NO_MATCH)
        free = set(range(len(score)))
        values, order = score.flatten().sort(descending=True, stable=True)
        for value, place in zip(values.tolist(), order.tolist(), strict=True):
            one, other = divmod(place, score.shape[1])
            if value < LEAST_SCORE or not free:
                break
            if one in free and identities[other] == NO_MATCH:
                identities[other] = before[one]
                free.discard(one)
        fresh = (used & (identities == NO_MATCH)).nonzero().flatten()
        identities[fresh] = torch.arange(self._next, self._next + len(fresh))
        self._next += len(fresh)
        return identities


def match_scores(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], flow: Tensor) -> Tensor:
    """How well each prototype of a frame continues each of the frame before: K x K, at most 2.

    The cosine of the two, plus how much their pixels overlap, as intersection over union, once those of the frame
    before have moved along the flow (2 x h x w, cells). before, after: centers (K x C) and labels (h x w) of each.
    Prototypes without pixels continue nothing and nothing continues them: their score is -inf.
    """
    (old, old_labels), (new, new_labels) = before, after
    height, width = new_labels.shape
    target = (pixel_grid(height, width) + flow).round().long()
    lands = (target[0] >= 0) & (target[0] < width) & (target[1] >= 0) & (target[1] < height)
    met = new_labels[target[1][lands], target[0][lands]]
    shared = torch.bincount(old_labels[lands] * len(new) + met, minlength=len(old) * len(new)).view(len(old), len(new))
    moved = torch.bincount(old_labels[lands], minlength=len(old))
    there = torch.bincount(new_labels.flatten(), minlength=len(new))
    overlap = shared.float() / (moved[:, None] + there - shared).clamp_min(1)
    cosines = F.normalize(old.float(), dim=1) @ F.normalize(new.float(), dim=1).T
    alive = (torch.bincount(old_labels.flatten(), minlength=len(old)) > 0)[:, None] & (there > 0)
    return torch.where(alive, cosines + overlap, -torch.inf)
