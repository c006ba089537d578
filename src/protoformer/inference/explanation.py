"""What a network grouped in an image, layer by layer and step by step: frozen records that answer questions."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.inference.brief import Brief, count_fact, size_fact, training_fact
from protoformer.inference.part_records import MovingParts, found_parts
from protoformer.inference.prototype_groups import (
    FAMILIES,
    Group,
    Match,
    at_pixels,
    families_of,
    groups_of,
    mutual_matches,
)
from protoformer.model.convergence import Convergence, log_likelihood, measure_convergence
from protoformer.model.tracing import LayerTrace

Task = Literal["flow", "depth"]


@dataclass(frozen=True, eq=False, repr=False)
class LayerExplanation(Brief):
    """What one layer of the encoder did with an image of (H, W) = size pixels.

    seen: (height, width) at which the network saw the image. trace: its work, of one image. A cell of the layer's map
    is `trace.stride` pixels of what was seen, each way. Steps count from 0, the pooled start, to N, the last of EM and
    the one by which the network itself went; -1 is the last.
    """

    size: tuple[int, int]
    seen: tuple[int, int]
    trace: LayerTrace

    @property
    def name(self) -> str:
        """Stage and block, both from 1, such as "2.1"."""
        return f"{self.trace.stage}.{self.trace.block}"

    @property
    def count(self) -> int:
        """K, how many prototypes there are; some may have no pixels."""
        return self.trace.centres[-1].shape[1]

    @property
    def steps(self) -> int:
        """N, the steps of EM."""
        return len(self.trace.centres) - 1

    @cached_property
    def maps(self) -> Tensor:
        """The prototype that each cell is given after every step: (N + 1) x h x w, int64, every cell one."""
        rows, columns = (-(-side // self.trace.stride) for side in self.seen)
        whole = [each[0].view(self.trace.size)[:rows, :columns] for each in self.trace.assignments]
        return torch.stack(whole).cpu()

    @property
    def assignment(self) -> Tensor:
        """The prototype that the network gave each cell: h x w, int64."""
        return self.maps.select(0, -1)

    def labels(self, step: int = -1) -> Tensor:
        """The prototype of each pixel of the image after a step: H x W, int64."""
        return at_pixels(self.maps[step], self.size, self.seen, self.trace.stride)

    def centres(self, step: int = -1) -> Tensor:
        """The prototypes after a step: K x C."""
        return self.trace.centres[step][0].float().cpu()

    @property
    def used(self) -> Tensor:
        """Numbers of the prototypes that have pixels, rising."""
        return self.maps[-1].flatten().bincount(minlength=self.count).nonzero().flatten()

    @property
    def changed(self) -> tuple[float, ...]:
        """The share of cells that each step of EM gave another prototype: N."""
        return tuple(float((after != before).float().mean()) for before, after in pairwise(self.maps))

    @property
    def moved(self) -> tuple[float, ...]:
        """How far each step of EM moved the prototypes, on average, as a share of their length before it: N."""
        centres = [self.centres(step) for step in range(self.steps + 1)]
        return tuple(
            float((after - before).norm(dim=1).mean() / before.norm(dim=1).mean().clamp_min(1e-12))
            for before, after in pairwise(centres)
        )

    @cached_property
    def log_likelihood(self) -> tuple[float, ...]:
        """Per step, nats a pixel, as in `model.convergence`: N + 1; empty where there is no EM."""
        if not self.steps:
            return ()
        with torch.no_grad():
            keys, _ = self.trace.prototyping.keys_and_values(self.trace.tokens)
        return tuple(log_likelihood(self.trace.prototyping, each, keys) for each in self.trace.centres)

    @torch.no_grad()
    def membership(self, prototype: int) -> Tensor:
        """How much of each cell belongs to a prototype, by EM's expectation, averaged over heads: h x w in [0, 1]."""
        self._check(prototype)
        rows, columns = self.assignment.shape
        if not self.steps:
            return (self.assignment == prototype).float()
        keys, _ = self.trace.prototyping.keys_and_values(self.trace.tokens)
        soft = self.trace.prototyping.memberships(self.trace.centres[-1], keys, self.trace.size)
        return soft[0, :, prototype].mean(dim=0).view(self.trace.size)[:rows, :columns].float().cpu()

    def nearest(self, prototype: int, count: int = 5) -> tuple[tuple[float, float], ...]:
        """Where those of a prototype's cells are whose features are most similar to it: (x, y), pixels, best first."""
        self._check(prototype)
        rows, columns = self.assignment.shape
        tokens = self.trace.tokens[0].view(*self.trace.size, -1)[:rows, :columns].flatten(0, 1)
        cosines = F.cosine_similarity(tokens.float(), self.trace.centres[-1][0, prototype].float()[None], dim=1)
        own = (self.assignment.flatten() == prototype).to(cosines.device)
        cosines = torch.where(own, cosines, -torch.inf)
        best = cosines.topk(min(count, int(own.sum()))).indices.tolist()
        down, across = (length / shown * self.trace.stride for length, shown in zip(self.size, self.seen, strict=True))
        return tuple(((place % columns + 0.5) * across - 0.5, (place // columns + 0.5) * down - 0.5) for place in best)

    def convergence(self, steps: int = 40, likelihood: bool = True) -> Convergence | None:
        """What many more steps of EM than the network's would do; None where there is no EM.

        likelihood: compute that of every step, too, which takes about half as long as the steps themselves.
        """
        if not self.steps:
            return None
        return measure_convergence(self.trace.prototyping, self.trace.tokens, self.trace.size, steps, likelihood)

    def families(self, count: int = FAMILIES) -> Tensor:
        """Similar prototypes under one number, that of one of them, so that about `count` are left: K, int64."""
        return families_of(self.centres(), self.assignment, count)

    def _facts(self) -> tuple[str, ...]:
        used = f"{len(self.used)} of {self.count} prototypes have pixels"
        return (self.name, size_fact(*self.size), used, count_fact(self.steps, "step"))

    def _check(self, prototype: int) -> None:
        if not 0 <= prototype < self.count:
            raise InputError(
                f"layer {self.name} has no prototype {prototype}; give a number from 0 to {self.count - 1}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class ImageExplanation(Brief):
    """What was grouped in one image: 3 x H x W in [0, 1].

    values: what is known of every pixel, its flow (2 x H x W, pixels) or its depth (1 x H x W, metres), or None.
    confidence: in these, 1 x H x W in [0, 1], or None.
    """

    image: Tensor
    layers: tuple[LayerExplanation, ...]
    values: Tensor | None = None
    confidence: Tensor | None = None

    def layer(self, name: str | None = None) -> LayerExplanation:
        """The layer of a name such as "2.1", stage and block; None: the last."""
        return self.layers[layer_place(name, [each.name for each in self.layers])]

    def groups(self, layer: str | None = None, step: int = -1) -> tuple[Group, ...]:
        """Every prototype that has pixels in a layer after a step of EM, with what its pixels do."""
        return groups_of(self.layer(layer).labels(step), self.values)

    def _facts(self) -> tuple[str, ...]:
        return (size_fact(*self.image.shape[1:]), count_fact(len(self.layers), "layer"))


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Brief):
    """What a network grouped in an image, and in a second one if there is one.

    task: of the network. trained: whether its weights were; if not, the groups are those of a random network.
    """

    task: Task
    first: ImageExplanation
    second: ImageExplanation | None = None
    trained: bool = True

    @property
    def images(self) -> tuple[ImageExplanation, ...]:
        """The one, or both."""
        return (self.first,) if self.second is None else (self.first, self.second)

    def matches(self, layer: str | None = None) -> tuple[Match, ...]:
        """Prototypes of both images that are each other's most similar; none where there is one image."""
        if self.second is None:
            return ()
        one, two = self.first.layer(layer), self.second.layer(layer)
        return mutual_matches(one.centres(), two.centres(), (one.used, two.used))

    def parts(self, layer: str | None = None) -> MovingParts | None:
        """What moves as one, from the prototypes of a layer and the flow; None where there is no flow of two images."""
        if self.second is None or self.first.values is None or self.task != "flow":
            return None
        chosen = self.first.layer(layer)
        if chosen.name not in self._parts:
            images, known = (self.first.image, self.second.image), (self.first.values, self.first.confidence)
            self._parts[chosen.name] = found_parts(images, chosen.labels(), *known, seen=chosen.seen)
        return self._parts[chosen.name]

    @cached_property
    def _parts(self) -> dict[str, MovingParts]:
        """By layer, those that were asked for: it takes a while to find them."""
        return {}

    def _facts(self) -> tuple[str, ...]:
        images = f"{count_fact(len(self.images), 'image')} of {size_fact(*self.first.image.shape[1:])}"
        return (self.task, images, count_fact(len(self.first.layers), "layer"), training_fact(self.trained))


def layer_place(name: str | None, known: list[str]) -> int:
    """Where a layer's name stands among those there are; None: at the end."""
    if name is None:
        return len(known) - 1
    if name not in known:
        raise InputError(f"there is no layer {name!r}; choose one of {', '.join(known)}.")
    return known.index(name)


UNKNOWN_IMAGES = (
    "this result does not know its whole images, as those of clips, of windows and of pickles do not; "
    "call the model's explain with them."
)
