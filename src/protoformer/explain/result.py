"""What a network grouped in an image, layer by layer and step by step: frozen records that answer questions."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.groups import FAMILIES, Group, Match, at_pixels, cluster_groups, extract_groups, mutual_matches
from protoformer.explain.parts import MovingParts, find_moving_parts
from protoformer.explain.tracing import Convergence, LayerTrace, log_likelihood, measure_convergence, trace_encoder
from protoformer.geometry.resizing import Padding
from protoformer.io.image_input import ImageLike
from protoformer.models.encoder import Encoder
from protoformer.models.heads.flow import normalize_images
from protoformer.viz.text import SummaryRepr, format_count, format_size, format_training

Task = Literal["flow", "depth"]


@dataclass(frozen=True, eq=False, repr=False)
class LayerExplanation(SummaryRepr):
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
        return self.trace.centers[-1].shape[1]

    @property
    def steps(self) -> int:
        """N, the steps of EM."""
        return len(self.trace.centers) - 1

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

    def centers(self, step: int = -1) -> Tensor:
        """The prototypes after a step: K x C."""
        return self.trace.centers[step][0].float().cpu()

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
        centers = [self.centers(step) for step in range(self.steps + 1)]
        return tuple(
            float((after - before).norm(dim=1).mean() / before.norm(dim=1).mean().clamp_min(1e-12))
            for before, after in pairwise(centers)
        )

    @cached_property
    def log_likelihood(self) -> tuple[float, ...]:
        """Per step, nats a pixel, as in `model.convergence`: N + 1; empty where there is no EM."""
        if not self.steps:
            return ()
        with torch.no_grad():
            keys, _ = self.trace.prototyping.keys_and_values(self.trace.tokens)
        return tuple(log_likelihood(self.trace.prototyping, each, keys) for each in self.trace.centers)

    @torch.no_grad()
    def membership(self, prototype: int) -> Tensor:
        """How much of each cell belongs to a prototype, by EM's expectation, averaged over heads: h x w in [0, 1]."""
        self._check(prototype)
        rows, columns = self.assignment.shape
        if not self.steps:
            return (self.assignment == prototype).float()
        keys, _ = self.trace.prototyping.keys_and_values(self.trace.tokens)
        soft = self.trace.prototyping.memberships(self.trace.centers[-1], keys, self.trace.size)
        return soft[0, :, prototype].mean(dim=0).view(self.trace.size)[:rows, :columns].float().cpu()

    def nearest(self, prototype: int, count: int = 5) -> tuple[tuple[float, float], ...]:
        """Where those of a prototype's cells are whose features are most similar to it: (x, y), pixels, best first."""
        self._check(prototype)
        rows, columns = self.assignment.shape
        tokens = self.trace.tokens[0].view(*self.trace.size, -1)[:rows, :columns].flatten(0, 1)
        cosines = F.cosine_similarity(tokens.float(), self.trace.centers[-1][0, prototype].float()[None], dim=1)
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
        return cluster_groups(self.centers(), self.assignment, count)

    def _facts(self) -> tuple[str, ...]:
        used = f"{len(self.used)} of {self.count} prototypes have pixels"
        return (self.name, format_size(*self.size), used, format_count(self.steps, "step"))

    def _check(self, prototype: int) -> None:
        if not 0 <= prototype < self.count:
            raise InputError(
                f"layer {self.name} has no prototype {prototype}; give a number from 0 to {self.count - 1}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class ImageExplanation(SummaryRepr):
    """What was grouped in one image: 3 x H x W in [0, 1].

    values: what is known of every pixel, its flow (2 x H x W, pixels) or its depth (1 x H x W, meters), or None.
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
        return extract_groups(self.layer(layer).labels(step), self.values)

    def _facts(self) -> tuple[str, ...]:
        return (format_size(*self.image.shape[1:]), format_count(len(self.layers), "layer"))


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(SummaryRepr):
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
        return mutual_matches(one.centers(), two.centers(), (one.used, two.used))

    def parts(self, layer: str | None = None) -> MovingParts | None:
        """What moves as one, from the prototypes of a layer and the flow; None where there is no flow of two images."""
        if self.second is None or self.first.values is None or self.task != "flow":
            return None
        chosen = self.first.layer(layer)
        if chosen.name not in self._parts:
            images, known = (self.first.image, self.second.image), (self.first.values, self.first.confidence)
            self._parts[chosen.name] = find_moving_parts(images, chosen.labels(), *known, seen=chosen.seen)
        return self._parts[chosen.name]

    @cached_property
    def _parts(self) -> dict[str, MovingParts]:
        """By layer, those that were asked for: it takes a while to find them."""
        return {}

    def _facts(self) -> tuple[str, ...]:
        images = f"{format_count(len(self.images), 'image')} of {format_size(*self.first.image.shape[1:])}"
        return (self.task, images, format_count(len(self.first.layers), "layer"), format_training(self.trained))


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


class SupportsExplain(Protocol):
    """A model that can explain what it found."""

    def explain(self, image: ImageLike, second: ImageLike | None = None, *, result: Any = None) -> Explanation:
        """What the network groups in an image, and in a second one; result: what it found in them."""


@dataclass(frozen=True, eq=False)
class Explainer:
    """How a result is explained: by the model that found it, from the images as they were handed in.

    It holds on to both. A pickle of a result has neither: there, this is None.
    """

    model: SupportsExplain
    images: tuple[ImageLike, ...]

    def __call__(self, result: object) -> Explanation:
        """The explanation of a result in these images."""
        return self.model.explain(*self.images, result=result)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def check_result(found: Tensor, image: Tensor, what: str) -> None:
    """Refuse to explain an image by a result of another size, or with values that are none.

    found, image: ... x H x W each; what: of the result.
    """
    if found.shape[-2:] != image.shape[-2:]:
        raise InputError(
            f"the {what} is of {found.shape[-1]}x{found.shape[-2]} pixels and the image is "
            f"{image.shape[-1]}x{image.shape[-2]}; give the result for this image."
        )
    if not bool(found.isfinite().all()):
        raise InputError(f"the {what} has values that are not finite; give one that is known at every pixel.")


def explain_image(
    encoder: Encoder,
    image: Tensor,
    seen: Tensor,
    padding: Padding,
    values: Tensor | None,
    confidence: Tensor | None = None,
) -> ImageExplanation:
    """What an encoder groups in an image, in full precision.

    image: 3 x H x W in [0, 1], on the CPU; seen: 1 x 3 x h x w in [0, 1], as the network sees it, on its device;
    padding: what the network adds to that; values: C x H x W, of the image's pixels; confidence: in these, 1 x H x W.
    """
    with torch.autocast(seen.device.type, enabled=False):
        traces = trace_encoder(encoder, padding.pad(normalize_images(seen)))
    size, shown = (image.shape[1], image.shape[2]), (seen.shape[2], seen.shape[3])
    layers = tuple(LayerExplanation(size, shown, trace) for trace in traces)
    return ImageExplanation(image, layers, values, confidence)
