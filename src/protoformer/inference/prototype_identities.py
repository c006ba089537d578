"""Which prototype of a frame is which of the frame before."""

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry import pixel_grid
from protoformer.inference.prototype_groups import families_of

LEAST_SCORE = 0.6
"""Of cosine plus overlap, which reach 2 together: with less a prototype is a new one."""
NOBODY = -1
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

    def follow(self, centres: Tensor, labels: Tensor, flow: Tensor | None = None) -> Tensor:
        """The identity of each prototype of a frame: K, int64, NOBODY for those without pixels.

        centres: K x C; labels: h x w, int64, the prototype of each cell; flow: 2 x h x w, cells, from the frame before
        to this one; None in the first frame.
        """
        count = len(centres)
        used = torch.bincount(labels.flatten(), minlength=count) > 0
        if self._before is None or flow is None:
            identities = torch.where(used, torch.arange(count), NOBODY)
            self._next = max(self._next, count)
        else:
            score = scores(self._before[:2], (centres, labels), flow)
            identities = self._continued(score, self._before[2], used)
        self._sort(centres, labels, identities)
        self._before = (centres, labels, identities)
        return identities

    def _sort(self, centres: Tensor, labels: Tensor, identities: Tensor) -> None:
        """Find the family of each prototype."""
        if self._count is None:
            self.families = identities
            return
        known = self._family_of
        names = identities.tolist()
        old = [place for place, name in enumerate(names) if name in known]
        if old:
            cosines = F.normalize(centres.float(), dim=1) @ F.normalize(centres[old].float(), dim=1).T
            likest = [names[old[place]] for place in cosines.argmax(dim=1).tolist()]
            families = [known[name if name in known else like] for name, like in zip(names, likest, strict=True)]
        else:
            families = families_of(centres, labels, self._count).tolist()
        self.families = torch.where(identities == NOBODY, NOBODY, torch.tensor(families))
        self._family_of = {name: family for name, family in zip(names, families, strict=True) if name != NOBODY}

    def _continued(self, score: Tensor, before: Tensor, used: Tensor) -> Tensor:
        """Pair off prototypes, the best score first. used: K, bool, which have pixels."""
        identities = torch.full((score.shape[1],), NOBODY)
        free = set(range(len(score)))
        values, order = score.flatten().sort(descending=True, stable=True)
        for value, place in zip(values.tolist(), order.tolist(), strict=True):
            one, other = divmod(place, score.shape[1])
            if value < LEAST_SCORE or not free:
                break
            if one in free and identities[other] == NOBODY:
                identities[other] = before[one]
                free.discard(one)
        fresh = (used & (identities == NOBODY)).nonzero().flatten()
        identities[fresh] = torch.arange(self._next, self._next + len(fresh))
        self._next += len(fresh)
        return identities


def scores(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], flow: Tensor) -> Tensor:
    """How well each prototype of a frame continues each of the frame before: K x K, at most 2.

    The cosine of the two, plus how much their pixels overlap, as intersection over union, once those of the frame
    before have moved along the flow (2 x h x w, cells). before, after: centres (K x C) and labels (h x w) of each.
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
