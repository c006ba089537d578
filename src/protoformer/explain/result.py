"""Explanations: the prototypes of an image in every layer and EM iteration, and what is computed from them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.explain.groups import (
    FAMILIES,
    Group,
    Match,
    cells_to_pixels,
    cluster_groups,
    extract_groups,
    match_scores,
    mutual_matches,
)
from protoformer.explain.page import save_explanation
from protoformer.explain.parts import MovingParts, find_moving_parts
from protoformer.explain.tracing import (
    Convergence,
    LayerTrace,
    Removal,
    layer_mixer,
    log_likelihood,
    measure_convergence,
    measure_removals,
    trace_encoder,
)
from protoformer.geometry.warps import Padding, resize_flow
from protoformer.io.files import PathLike
from protoformer.io.image_input import ImageLike
from protoformer.models.encoder import Encoder
from protoformer.models.runtime import normalize_images
from protoformer.viz.report import SummaryRepr, format_count, format_size, format_training

Task = Literal["flow", "depth"]


@dataclass(frozen=True, eq=False, repr=False)
class LayerExplanation(SummaryRepr):
    """The prototypes of an image in one layer of the encoder.

    EM iterations are numbered from 0, the pooled start, to N, the last one, whose prototypes the network uses; -1 is
    the last as well. A cell of the layer's map is `trace.stride` x `trace.stride` pixels of the network's input.

    Attributes:
        size: (H, W) of the image.
        input_size: (height, width) of the network's input, a resized version of the image.
        trace: Record of the layer, for this image alone.
    """

    size: tuple[int, int]
    input_size: tuple[int, int]
    trace: LayerTrace

    @property
    def name(self) -> str:
        """Stage and block, both from 1, such as "2.1"."""
        return f"{self.trace.stage}.{self.trace.block}"

    @property
    def num_prototypes(self) -> int:
        """K, including prototypes without pixels."""
        return self.trace.states[-1].centers.shape[1]

    @property
    def num_iterations(self) -> int:
        """N, the number of EM iterations."""
        return len(self.trace.states) - 1

    @cached_property
    def maps(self) -> Tensor:
        """Assignment of the cells after every iteration: (N + 1) x h x w, int64."""
        rows, columns = (-(-side // self.trace.stride) for side in self.input_size)
        maps = [assignment[0].view(self.trace.size)[:rows, :columns] for assignment in self.trace.assignments]
        return torch.stack(maps).cpu()

    @property
    def assignment(self) -> Tensor:
        """Assignment of the cells that the network uses: h x w, int64."""
        return self.maps.select(0, -1)

    def labels(self, iteration: int = -1) -> Tensor:
        """Return the prototype of each pixel of the image after an iteration: H x W, int64."""
        return cells_to_pixels(self.maps[iteration], self.size, self.input_size, self.trace.stride)

    def centers(self, iteration: int = -1) -> Tensor:
        """Return the prototypes after an iteration: K x C."""
        return self.trace.states[iteration].centers[0].float().cpu()

    @property
    def used(self) -> Tensor:
        """Indices of the prototypes with pixels, ascending."""
        return self.maps[-1].flatten().bincount(minlength=self.num_prototypes).nonzero().flatten()

    @property
    def changed(self) -> tuple[float, ...]:
        """Fraction of the cells whose assignment each EM iteration changed: N."""
        return tuple(float((after != before).float().mean()) for before, after in pairwise(self.maps))

    @property
    def moved(self) -> tuple[float, ...]:
        """Mean distance that each EM iteration moved the prototypes, relative to their mean length: N."""
        centers = [self.centers(iteration) for iteration in range(self.num_iterations + 1)]
        return tuple(
            float((after - before).norm(dim=1).mean() / before.norm(dim=1).mean().clamp_min(1e-12))
            for before, after in pairwise(centers)
        )

    @cached_property
    def log_likelihood(self) -> tuple[float, ...]:
        """Log-likelihood after every iteration, nats per pixel, as in `Convergence`: N + 1; empty without EM."""
        if not self.num_iterations:
            return ()
        with torch.no_grad():
            keys, _ = self.trace.prototyping.keys_and_values(self.trace.tokens)
        return tuple(log_likelihood(self.trace.prototyping, state, keys) for state in self.trace.states)

    @torch.no_grad()
    def membership(self, prototype: int) -> Tensor:
        """Return the soft membership of each cell in a prototype, averaged over heads: h x w in [0, 1]."""
        self._check(prototype)
        rows, columns = self.assignment.shape
        if not self.num_iterations:
            return (self.assignment == prototype).float()
        keys, _ = self.trace.prototyping.keys_and_values(self.trace.tokens)
        centers, prior = self.trace.states[-1]
        memberships = self.trace.prototyping.e_step_inputs(centers, keys, self.trace.size, prior).memberships()
        return memberships[0, :, prototype].mean(dim=0).view(self.trace.size)[:rows, :columns].float().cpu()

    def nearest(self, prototype: int, count: int = 5) -> tuple[tuple[float, float], ...]:
        """Return the centers (x, y), pixels, of a prototype's cells with the most similar features, best first."""
        self._check(prototype)
        rows, columns = self.assignment.shape
        tokens = self.trace.tokens[0].view(*self.trace.size, -1)[:rows, :columns].flatten(0, 1)
        cosines = F.cosine_similarity(tokens.float(), self.trace.states[-1].centers[0, prototype].float()[None], dim=1)
        assigned = (self.assignment.flatten() == prototype).to(cosines.device)
        cosines = torch.where(assigned, cosines, -torch.inf)
        best = cosines.topk(min(count, int(assigned.sum()))).indices.tolist()
        cell_height, cell_width = (
            length / input_length * self.trace.stride
            for length, input_length in zip(self.size, self.input_size, strict=True)
        )
        return tuple(
            ((cell % columns + 0.5) * cell_width - 0.5, (cell // columns + 0.5) * cell_height - 0.5) for cell in best
        )

    def convergence(self, num_iterations: int = 40, likelihood: bool = True) -> Convergence | None:
        """Run more EM iterations than the network does, and measure their convergence; None without EM.

        Args:
            num_iterations: Number of iterations.
            likelihood: Also compute the log-likelihood of every iteration, which takes about half as long as the
                iterations.
        """
        if not self.num_iterations:
            return None
        return measure_convergence(
            self.trace.prototyping, self.trace.tokens, self.trace.size, num_iterations, likelihood
        )

    def families(self, count: int = FAMILIES) -> Tensor:
        """Join similar prototypes to `count` families; a family is named by one of its prototypes: K, int64."""
        return cluster_groups(self.centers(), self.assignment, count)

    def _repr_parts(self) -> tuple[str, ...]:
        used = f"{len(self.used)} of {self.num_prototypes} prototypes have pixels"
        return (self.name, format_size(*self.size), used, format_count(self.num_iterations, "iteration"))

    def _check(self, prototype: int) -> None:
        if not 0 <= prototype < self.num_prototypes:
            raise InputError(
                f"layer {self.name} has no prototype {prototype}; give a number from 0 to {self.num_prototypes - 1}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class ImageExplanation(SummaryRepr):
    """The prototypes of one image in all layers.

    Attributes:
        image: 3 x H x W in [0, 1].
        layers: In the order of the encoder.
        values: Flow (2 x H x W, pixels) or depth (1 x H x W, meters) of the pixels, or None.
        confidence: Confidence of the values, 1 x H x W in [0, 1], or None.
    """

    image: Tensor
    layers: tuple[LayerExplanation, ...]
    values: Tensor | None = None
    confidence: Tensor | None = None

    def layer(self, name: str | None = None) -> LayerExplanation:
        """Return a layer by its name, stage and block such as "2.1"; None: the last."""
        return self.layers[layer_index(name, [layer.name for layer in self.layers])]

    def groups(self, layer: str | None = None, iteration: int = -1) -> tuple[Group, ...]:
        """Describe the pixel groups of a layer's prototypes after an EM iteration."""
        return extract_groups(self.layer(layer).labels(iteration), self.values)

    def _repr_parts(self) -> tuple[str, ...]:
        return (format_size(*self.image.shape[1:]), format_count(len(self.layers), "layer"))


@dataclass(frozen=True, eq=False)
class NetworkRun:
    """A network on the images of an explanation.

    Attributes:
        encoder: Its encoder.
        estimate: Runs the network and returns the flow or depth of the first image: C x H x W, pixels or meters.
    """

    encoder: Encoder
    estimate: Callable[[], Tensor]

    @cached_property
    def values(self) -> Tensor:
        """The result with all prototypes."""
        return self.estimate()


NUM_REMOVED = 3
"""Default number of prototypes that are removed, the largest ones."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(SummaryRepr):
    """The prototypes of an image and, optionally, of a second one.

    Attributes:
        task: Task of the network.
        first: The first image.
        second: The second image, or None.
        trained: Whether the weights were trained; if not, the groups are those of a random network.
        network: The network on the first image, to remove prototypes; None without flow or depth.
    """

    task: Task
    first: ImageExplanation
    second: ImageExplanation | None = None
    trained: bool = True
    network: "NetworkRun | None" = None

    @property
    def images(self) -> tuple[ImageExplanation, ...]:
        """One or two images."""
        return (self.first,) if self.second is None else (self.first, self.second)

    def matches(self, layer: str | None = None) -> tuple[Match, ...]:
        """Return the prototypes of both images that match each other best; empty for a single image.

        With flow, a match has a similar prototype (cosine) and the pixels that those of the first image move to
        (intersection over union); without flow, a similar prototype.
        """
        if self.second is None:
            return ()
        one, two, scores = self.first.layer(layer), self.second.layer(layer), None
        if self.task == "flow" and self.first.values is not None:
            flow, stride = resize_flow(self.first.values[None].float().cpu(), one.input_size), one.trace.stride
            cells = F.avg_pool2d(flow, stride, ceil_mode=True)[0] / stride
            scores = match_scores((one.centers(), one.assignment), (two.centers(), two.assignment), cells)
        return mutual_matches(one.centers(), two.centers(), (one.used, two.used), scores)

    def parts(self, layer: str | None = None) -> MovingParts | None:
        """Segment moving parts from the prototypes of a layer and the flow; None without the flow of two images."""
        if self.second is None or self.first.values is None or self.task != "flow":
            return None
        layer_of_first = self.first.layer(layer)
        if layer_of_first.name not in self._parts:
            self._parts[layer_of_first.name] = find_moving_parts(
                (self.first.image, self.second.image),
                layer_of_first.labels(),
                self.first.values,
                self.first.confidence,
                layer_of_first.input_size,
            )
        return self._parts[layer_of_first.name]

    def save(
        self, folder: PathLike, *, layer: str | None = None, prototypes: tuple[int, ...] = (), removals: int = 0
    ) -> list[Path]:
        """Write an interactive page, index.html, with its images and numbers to a folder; see `save_explanation`."""
        return save_explanation(folder, self, layer=layer, prototypes=prototypes, removals=removals)

    def removals(self, layer: str | None = None, count: int = NUM_REMOVED) -> tuple[Removal, ...]:
        """Remove the largest prototypes of the first image from a layer, one at a time, and run the network again.

        Args:
            layer: Name of the layer; None: the last.
            count: Number of prototypes; each takes as long as an estimate of the flow or depth.

        Returns:
            The effects, of the largest prototype first; empty without flow or depth.
        """
        if self.network is None or count < 1:
            return ()
        shown = self.first.layer(layer)
        labels = shown.labels()
        largest = labels.flatten().bincount().argsort(descending=True, stable=True)[:count].tolist()
        measured = self._removals.setdefault(shown.name, {})
        missing = [each for each in largest if each not in measured]
        if missing:
            mixer = layer_mixer(self.network.encoder, shown.trace.stage, shown.trace.block)
            effects = measure_removals(mixer, self.network.estimate, self.network.values, labels, missing)
            measured.update({effect.prototype: effect for effect in effects})
        return tuple(measured[each] for each in largest if each in measured)

    @cached_property
    def _removals(self) -> dict[str, dict[int, Removal]]:
        """Cache by layer and prototype."""
        return {}

    @cached_property
    def _parts(self) -> dict[str, MovingParts]:
        """Cache by layer; the segmentation takes about a second."""
        return {}

    def _repr_parts(self) -> tuple[str, ...]:
        images = f"{format_count(len(self.images), 'image')} of {format_size(*self.first.image.shape[1:])}"
        return (self.task, images, format_count(len(self.first.layers), "layer"), format_training(self.trained))


def layer_index(name: str | None, layers: list[str]) -> int:
    """Return the index of a layer by its name; None: the last.

    Raises:
        InputError: If there is no such layer.
    """
    if name is None:
        return len(layers) - 1
    if name not in layers:
        raise InputError(f"there is no layer {name!r}; choose one of {', '.join(layers)}.")
    return layers.index(name)


UNKNOWN_IMAGES = (
    "this result has no reference to its images, as is the case for results of clips, of tiles and from a pickle; "
    "call the predictor's explain with the images."
)


class SupportsExplain(Protocol):
    """A predictor that can explain its results."""

    def explain(self, image: ImageLike, second: ImageLike | None = None, *, result: Any = None) -> Explanation:
        """Explain the network on one or two images; result: what the predictor returned for them."""


@dataclass(frozen=True, eq=False)
class Explainer:
    """Reference of a result to its predictor and input images, for `explain`; None after pickling."""

    predictor: SupportsExplain
    images: tuple[ImageLike, ...]

    def __call__(self, result: object) -> Explanation:
        """Explain a result of these images."""
        return self.predictor.explain(*self.images, result=result)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def check_result(values: Tensor, image: Tensor, name: str) -> None:
    """Check that a result fits an image.

    Args:
        values: ... x H x W, of the result.
        image: ... x H x W.
        name: Name of the values, for messages.

    Raises:
        InputError: If the result has another size, or values that are not finite.
    """
    if values.shape[-2:] != image.shape[-2:]:
        raise InputError(
            f"the {name} is of {values.shape[-1]}x{values.shape[-2]} pixels and the image is "
            f"{image.shape[-1]}x{image.shape[-2]}; give the result for this image."
        )
    if not bool(values.isfinite().all()):
        raise InputError(f"the {name} has values that are not finite; give one that is finite at every pixel.")


def explain_image(
    encoder: Encoder,
    image: Tensor,
    resized: Tensor,
    padding: Padding,
    values: Tensor | None,
    confidence: Tensor | None = None,
) -> ImageExplanation:
    """Trace an encoder on an image, in full precision.

    Args:
        encoder: Encoder of the network.
        image: 3 x H x W in [0, 1], on the CPU.
        resized: 1 x 3 x h x w in [0, 1], the network's input, on its device.
        padding: Padding of the input.
        values: C x H x W, flow or depth of the pixels, or None.
        confidence: Confidence of the values, 1 x H x W, or None.
    """
    with torch.autocast(resized.device.type, enabled=False):
        traces = trace_encoder(encoder, padding.pad(normalize_images(resized)))
    size, input_size = (image.shape[1], image.shape[2]), (resized.shape[2], resized.shape[3])
    layers = tuple(LayerExplanation(size, input_size, trace) for trace in traces)
    return ImageExplanation(image, layers, values, confidence)
