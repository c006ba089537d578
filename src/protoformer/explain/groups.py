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
"""Default number of families of similar prototypes, few enough to tell their colors apart."""


@dataclass(frozen=True)
class Group:
    """The pixels of one prototype.

    Attributes:
        prototype: Its index, in row-major order of the grid that it was pooled from.
        pixels: Number of pixels.
        share: Fraction of the image's pixels.
        center: Mean position (x, y), pixels.
        mean: Mean value: flow (u, v) in pixels, or depth in meters; empty without values.
        spread: Root mean squared distance of the values from their mean, in the same unit.
    """

    prototype: int
    pixels: int
    share: float
    center: tuple[float, float]
    mean: tuple[float, ...] = ()
    spread: float | None = None


@dataclass(frozen=True)
class Match:
    """A prototype of the first image and one of the second that match each other best, and their cosine."""

    first: int
    second: int
    similarity: float


def cells_to_pixels(cells: Tensor, size: tuple[int, int], input_size: tuple[int, int], stride: int) -> Tensor:
    """Upsample a map of cells, h x w, to the pixels of an image by nearest neighbor.

    Args:
        cells: h x w; a cell is stride x stride pixels of the network's input.
        size: (H, W) of the image.
        input_size: (height, width) of the network's input, a resized version of the image.
        stride: Side of a cell.

    Returns:
        H x W.
    """
    indices = []
    for length, input_length, count in zip(size, input_size, cells.shape, strict=True):
        centers = (torch.arange(length, device=cells.device).float() + 0.5) * (input_length / length)
        indices.append((centers / stride).long().clamp(max=count - 1))
    return cells[indices[0]][:, indices[1]]


def assignment_map(prototypes: Prototypes, input_size: tuple[int, int], stride: int) -> Tensor:
    """Return the prototype of each cell of the first image of a batch, without padding: h x w, int64, on the CPU."""
    rows, columns = (-(-side // stride) for side in input_size)
    return prototypes.owners[0].view(prototypes.size)[:rows, :columns].cpu()


def extract_groups(labels: Tensor, values: Tensor | None = None) -> tuple[Group, ...]:
    """Describe the groups of all labels with pixels, in ascending order; labels: H x W, int64; values: C x H x W."""
    height, width = labels.shape
    flat = labels.flatten()
    counts = torch.bincount(flat)
    index = torch.arange(height * width, device=labels.device)
    terms = [(index % width).double()[None], torch.div(index, width, rounding_mode="floor").double()[None]]
    if values is not None:
        flat_values = values.flatten(1).double().to(labels.device)
        terms += [flat_values, flat_values.square().sum(dim=0, keepdim=True)]
    stacked = torch.cat(terms)
    sums = torch.zeros(len(counts), len(stacked), dtype=torch.float64, device=labels.device)
    means = (sums.index_add_(0, flat, stacked.T) / counts.clamp_min(1)[:, None]).tolist()
    groups = []
    for prototype, pixels in enumerate(counts.tolist()):
        if pixels:
            x, y, *moments = means[prototype]
            mean = tuple(moments[:-1])
            spread = max(0.0, moments[-1] - sum(value**2 for value in mean)) ** 0.5 if moments else None
            groups.append(Group(prototype, pixels, pixels / flat.numel(), (x, y), mean, spread))
    return tuple(groups)


def mutual_matches(
    first: Tensor, second: Tensor, used: tuple[Tensor, Tensor], scores: Tensor | None = None
) -> tuple[Match, ...]:
    """Match prototypes of two images that are each other's best, in ascending order of the first.

    Args:
        first: K x C.
        second: K x C.
        used: Indices of the prototypes with pixels in each image; only these are matched.
        scores: K x K, such as `match_scores`; None: cosine similarity.
    """
    cosines = F.normalize(first.float(), dim=1) @ F.normalize(second.float(), dim=1).T
    shown = (cosines if scores is None else scores)[used[0]][:, used[1]]
    forward, backward = shown.argmax(dim=1), shown.argmax(dim=0)
    index = torch.arange(len(forward), device=forward.device)
    pairs = [(int(used[0][one]), int(used[1][forward[one]])) for one in index[backward[forward] == index].tolist()]
    return tuple(Match(one, other, float(cosines[one, other])) for one, other in pairs)


def cluster_groups(centers: Tensor, labels: Tensor, count: int) -> Tensor:
    """Join prototypes to `count` families, those of similar direction and few pixels first.

    Args:
        centers: K x C.
        labels: h x w, int64.
        count: Number of families.

    Returns:
        The lowest index in the family of each prototype: K, int64.
    """
    if count < 1:
        raise InputError(f"prototypes cannot be sorted into {count} families; give a whole number, 1 or more.")
    sizes = torch.bincount(labels.flatten(), minlength=len(centers))
    joins = join_order(F.normalize(centers.float(), dim=1), sizes)
    return owners(len(centers), joins[: max(0, len(centers) - count)])


MIN_SCORE = 0.6
"""Smallest of the `match_scores`, at most 2, at which a prototype continues one of the previous frame."""
NO_MATCH = -1
"""Identity and family of a prototype without pixels."""


class PrototypeTracker:
    """Assigns identities to the prototypes of a clip, frame by frame.

    In the first frame the identity of a prototype is its index. One that continues a prototype of the previous frame
    keeps its identity, any other gets a new one, and one without pixels has none. Results are deterministic, and memory
    does not grow with the clip.

    Args:
        num_families: Number of families of similar prototypes in the first frame; None: one for each prototype. A new
            prototype joins the family of the most similar one that continues; if none continues, as after a cut,
            families are computed as in a first frame.
    """

    def __init__(self, num_families: int | None = None) -> None:
        self.families = torch.empty(0, dtype=torch.int64)
        """Family of each prototype of the latest frame: K, int64."""
        self._num_families = num_families
        self._family_of: dict[int, int] = {}
        self._previous: tuple[Tensor, Tensor, Tensor] | None = None
        self._next_identity = 0

    def update(self, centers: Tensor, labels: Tensor, flow: Tensor | None = None) -> Tensor:
        """Return the identity of each prototype of the next frame: K, int64, `NO_MATCH` for those without pixels.

        Args:
            centers: K x C.
            labels: h x w, int64, the prototype of each cell.
            flow: 2 x h x w, cells, from the previous frame to this one; None in the first frame.
        """
        count = len(centers)
        used = torch.bincount(labels.flatten(), minlength=count) > 0
        if self._previous is None or flow is None:
            identities = torch.where(used, torch.arange(count), NO_MATCH)
            self._next_identity = max(self._next_identity, count)
        else:
            score = match_scores(self._previous[:2], (centers, labels), flow)
            identities = self._match(score, self._previous[2], used)
        self._update_families(centers, labels, identities)
        self._previous = (centers, labels, identities)
        return identities

    def _update_families(self, centers: Tensor, labels: Tensor, identities: Tensor) -> None:
        if self._num_families is None:
            self.families = identities
            return
        family_of = self._family_of
        names = identities.tolist()
        continued = [index for index, name in enumerate(names) if name in family_of]
        if continued:
            cosines = F.normalize(centers.float(), dim=1) @ F.normalize(centers[continued].float(), dim=1).T
            similar = [names[continued[index]] for index in cosines.argmax(dim=1).tolist()]
            families = [
                family_of[name if name in family_of else other] for name, other in zip(names, similar, strict=True)
            ]
        else:
            families = cluster_groups(centers, labels, self._num_families).tolist()
        self.families = torch.where(identities == NO_MATCH, NO_MATCH, torch.tensor(families))
        self._family_of = {name: family for name, family in zip(names, families, strict=True) if name != NO_MATCH}

    def _match(self, score: Tensor, previous: Tensor, used: Tensor) -> Tensor:
        """Match prototypes greedily, the highest score first; used: K, bool, those with pixels."""
        identities = torch.full((score.shape[1],), NO_MATCH)
        free = set(range(len(score)))
        values, order = score.flatten().sort(descending=True, stable=True)
        for value, index in zip(values.tolist(), order.tolist(), strict=True):
            one, other = divmod(index, score.shape[1])
            if value < MIN_SCORE or not free:
                break
            if one in free and identities[other] == NO_MATCH:
                identities[other] = previous[one]
                free.discard(one)
        new = (used & (identities == NO_MATCH)).nonzero().flatten()
        identities[new] = torch.arange(self._next_identity, self._next_identity + len(new))
        self._next_identity += len(new)
        return identities


def match_scores(previous: tuple[Tensor, Tensor], current: tuple[Tensor, Tensor], flow: Tensor) -> Tensor:
    """Score how well each prototype of a frame continues each of the previous frame.

    The score is the cosine plus the overlap of their pixels (intersection over union), those of the previous frame
    moved along the flow. It is -inf for prototypes without pixels.

    Args:
        previous: Centers (K x C) and labels (h x w) of the previous frame.
        current: The same of the current frame.
        flow: 2 x h x w, cells.

    Returns:
        K x K, at most 2.
    """
    (old, old_labels), (new, new_labels) = previous, current
    height, width = new_labels.shape
    target = (pixel_grid(height, width) + flow).round().long()
    inside = (target[0] >= 0) & (target[0] < width) & (target[1] >= 0) & (target[1] < height)
    new_at_target = new_labels[target[1][inside], target[0][inside]]
    pairs = old_labels[inside] * len(new) + new_at_target
    shared = torch.bincount(pairs, minlength=len(old) * len(new)).view(len(old), len(new))
    moved = torch.bincount(old_labels[inside], minlength=len(old))
    sizes = torch.bincount(new_labels.flatten(), minlength=len(new))
    overlap = shared.float() / (moved[:, None] + sizes - shared).clamp_min(1)
    cosines = F.normalize(old.float(), dim=1) @ F.normalize(new.float(), dim=1).T
    have_pixels = (torch.bincount(old_labels.flatten(), minlength=len(old)) > 0)[:, None] & (sizes > 0)
    return torch.where(have_pixels, cosines + overlap, -torch.inf)
