"""Record the EM iterations of every encoder layer, and remove single prototypes."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from threading import get_ident
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from protoformer.errors import InputError
from protoformer.models.ablations import cosine_similarities
from protoformer.models.encoder import STRIDES, Encoder, Mixer
from protoformer.models.kernels.reference import nearest_prototype, similarities
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import split_heads
from protoformer.models.spatial_prior import SpatialPrior

NO_PROTOTYPES = "the network has no prototypes, because its encoder.mixer is another one; use one with prototypes."


@dataclass(frozen=True)
class Convergence:
    """Convergence of EM; iteration 0 is the pooled start.

    Attributes:
        log_likelihood: Per iteration, the mean over pixels and heads of log(1/K sum_k exp(similarity)), nats: the
            likelihood of an equal mixture whose components are proportional to exp(similarity), and to the spatial
            prior if there is one; empty if not computed.
        distances: Per iteration, |theta_n - theta*|, with theta* the prototypes of the last iteration.
        contraction: Factor kappa by which an iteration shrinks the distance (geometric mean); below 1 EM contracts.
        drift: Length of the last iteration relative to the first; near 0 EM has converged, near 1 it has no fixed
            point.
    """

    log_likelihood: tuple[float, ...]
    distances: tuple[float, ...]
    contraction: float
    drift: float


def plain_em(channels: int, num_prototypes: int, update: str = "cosine") -> Prototyping:
    """Build EM without learned weights: one head, identity projections, means, no residual.

    On features of unit length and with cosines this is EM of a mixture of von Mises-Fisher distributions, whose
    likelihood never decreases.
    """
    prototyping = Prototyping(channels, 1, num_prototypes, update=update, residual=False)
    for projection in (prototyping.query, prototyping.key, prototyping.value):
        nn.init.eye_(projection.weight)
        nn.init.zeros_(projection.bias)
    return prototyping


@torch.no_grad()
def measure_convergence(
    prototyping: Prototyping, features: Tensor, size: tuple[int, int], num_iterations: int = 40, likelihood: bool = True
) -> Convergence:
    """Run EM iterations and compare each with the last.

    Args:
        prototyping: The EM algorithm.
        features: 1 x HW x C.
        size: (H, W) of the map.
        num_iterations: Number of iterations.
        likelihood: Also compute the log-likelihood of every iteration, which takes about half as long as the
            iterations.
    """
    states = trajectory(prototyping, features, size, num_iterations)
    centers = [state.centers for state in states]
    distances = [float((each - centers[-1]).norm()) for each in centers]
    lengths = [float((after - before).norm()) for before, after in pairwise(centers)]
    keys = prototyping.keys_and_values(features)[0] if likelihood else None
    return Convergence(
        log_likelihood=() if keys is None else tuple(log_likelihood(prototyping, each, keys) for each in states),
        distances=tuple(distances),
        contraction=contraction_factor(distances),
        drift=lengths[-1] / lengths[0],
    )


class EMState(NamedTuple):
    """Prototypes after an EM iteration.

    Attributes:
        centers: B x K x C.
        prior: Their spatial prior, or None.
    """

    centers: Tensor
    prior: SpatialPrior | None


@torch.no_grad()
def trajectory(prototyping: Prototyping, features: Tensor, size: tuple[int, int], num_iterations: int) -> list[EMState]:
    """Return the prototypes of features, B x HW x C, before the first iteration and after each: num_iterations + 1."""
    centers = prototyping.pool(features, size)
    states = [EMState(centers, prototyping.initial_prior(centers, size))]
    if num_iterations:
        keys, values = prototyping.keys_and_values(features)
        for _ in range(num_iterations):
            after, _, prior = prototyping.step(states[-1].centers, keys, values, size, states[-1].prior)
            states.append(EMState(after, prior))
    return states


@torch.no_grad()
def log_likelihood(prototyping: Prototyping, state: EMState, keys: Tensor) -> float:
    """Return the log-likelihood of `Convergence`; keys: B x heads x HW x d."""
    similarity = cosine_similarities if prototyping.update == "cosine" else similarities
    logits = similarity(split_heads(prototyping.query(state.centers), prototyping.heads), keys)
    if state.prior is not None:
        logits = logits + state.prior.logits()[:, None]
    return float(logits.logsumexp(dim=-2).mean()) - math.log(logits.shape[-2])


def contraction_factor(distances: list[float]) -> float:
    """Return the geometric mean of the ratios of successive distances, over the first half of the iterations.

    Later ratios are not meaningful, as the last iteration is not the fixed point, nor are those at the level of
    rounding.
    """
    useful = [each for each in distances[: len(distances) // 2 + 1] if each > 1e-5 * distances[0]]
    if len(useful) < 2:
        return 0.0
    return float((useful[-1] / useful[0]) ** (1 / (len(useful) - 1)))


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """Record of one encoder layer on a batch of images.

    Attributes:
        stage: From 1.
        block: Block of the stage, from 1.
        stride: Downsampling factor of the layer's map.
        prototyping: The layer's CAP module.
        tokens: Its input, B x HW x C.
        size: (H, W) of the map.
        states: N + 1, the pooled start and the prototypes after each of N EM iterations.
        assignments: N + 1 of B x HW, int64, by these prototypes; the last are those that the network used.
    """

    stage: int
    block: int
    stride: int
    prototyping: Prototyping
    tokens: Tensor
    size: tuple[int, int]
    states: tuple[EMState, ...]
    assignments: tuple[Tensor, ...]


def layer_mixer(encoder: Encoder, stage: int, block: int) -> Mixer:
    """Return the mixer of a layer; stage and block count from 1."""
    return cast(Mixer, cast(Any, encoder.stages[stage - 1]).blocks[block - 1].mixer)


@torch.no_grad()
def trace_encoder(encoder: Encoder, images: Tensor) -> tuple[LayerTrace, ...]:
    """Trace all layers on images, B x 3 x H x W in [-1, 1].

    Raises:
        InputError: If the encoder has no prototypes.
    """
    layers = [
        (stage, block)
        for stage, module in enumerate(encoder.stages, 1)
        for block in range(1, len(cast(Any, module).blocks) + 1)
    ]
    if not all(isinstance(layer_mixer(encoder, *layer), Mixer) for layer in layers):
        raise InputError(NO_PROTOTYPES)
    mixer_inputs: list[tuple[Tensor, tuple[int, int]]] = []
    thread = get_ident()

    def record(_: object, inputs: tuple[Any, ...]) -> None:
        if get_ident() == thread:  # another thread may run the same encoder at the same time
            mixer_inputs.append(inputs[:2])

    handles = [layer_mixer(encoder, *layer).register_forward_pre_hook(record) for layer in layers]
    try:
        prototypes = encoder(images, return_prototypes=True).prototypes
    finally:
        for handle in handles:
            handle.remove()
    return tuple(
        _trace_layer(encoder, stage, block, *inputs, prototypes[stage - 1][block - 1])
        for (stage, block), inputs in zip(layers, mixer_inputs, strict=True)
    )


def _trace_layer(
    encoder: Encoder, stage: int, block: int, tokens: Tensor, size: tuple[int, int], prototypes: Prototypes
) -> LayerTrace:
    prototyping = layer_mixer(encoder, stage, block).prototyping
    states = trajectory(prototyping, tokens, size, prototyping.num_iterations)
    states[-1] = EMState(prototypes.centers, prototypes.prior)
    assignments = [_assign(prototyping, tokens, size, state, prototypes.assignment is None) for state in states[:-1]]
    return LayerTrace(
        stage, block, STRIDES[stage - 1], prototyping, tokens, size, tuple(states), (*assignments, prototypes.owners)
    )


def _assign(
    prototyping: Prototyping, tokens: Tensor, size: tuple[int, int], state: EMState, by_membership: bool
) -> Tensor:
    """Return the prototypes of the pixels, B x HW, by the largest membership (mean of the heads) or as in LS."""
    if by_membership:
        keys, _ = prototyping.keys_and_values(tokens)
        inputs = prototyping.e_step_inputs(state.centers, keys, size, state.prior)
        return inputs.memberships().mean(dim=1).argmax(dim=1)
    return nearest_prototype(tokens, state.centers, None if state.prior is None else state.prior.assignment_prior())


@contextmanager
def without_prototype(mixer: Mixer, prototype: int) -> Iterator[None]:
    """Remove a prototype of the first image of every batch within this context.

    The prototypes are computed as usual, and one is removed before synchronization, so that its pixels are assigned to
    the next nearest.
    """
    kept = [index for index in range(mixer.prototyping.grid[0] * mixer.prototyping.grid[1]) if index != prototype]

    def remove(_: object, inputs: tuple[Any, ...], output: tuple[Tensor, Prototypes | None]) -> Any:
        mixed, prototypes = output
        first = mixer.prototyping(inputs[0][:1], inputs[1])
        prior = None if first.prior is None else first.prior.select(kept)
        fewer = Prototypes(first.centers[:, kept], first.memberships[:, :, kept], first.size, prior=prior)
        first_mixed, _ = mixer.synchronization(inputs[0][:1], fewer)
        return torch.cat((first_mixed.to(mixed.dtype), mixed[1:])), prototypes

    handle = mixer.register_forward_hook(remove)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class Removal:
    """Effect of removing one prototype of the first image, whose pixels are then assigned to their next nearest.

    Attributes:
        prototype: Its index.
        share: Fraction of the image's pixels that it had.
        inside: Mean change of the flow (pixels) or depth (meters) of its pixels.
        outside: Mean change of all other pixels.
    """

    prototype: int
    share: float
    inside: float
    outside: float

    @property
    def ratio(self) -> float:
        """Change inside divided by change outside."""
        return self.inside / max(self.outside, 1e-9)


@torch.no_grad()
def measure_removals(
    mixer: Mixer, estimate: Callable[[], Tensor], before: Tensor, labels: Tensor, prototypes: Iterable[int]
) -> tuple[Removal, ...]:
    """Remove prototypes one at a time and measure where the estimate changes; one with all pixels is left out.

    Args:
        mixer: The layer's mixer.
        estimate: Runs the network and returns the flow or depth of the image, C x H x W.
        before: Its result with all prototypes.
        labels: H x W, prototypes of the pixels, on the CPU.
        prototypes: Indices of the prototypes to remove.
    """
    effects = []
    for prototype in prototypes:
        mask = labels == prototype
        if not bool(mask.any()) or bool(mask.all()):
            continue
        with without_prototype(mixer, prototype):
            change = (estimate() - before).norm(dim=0).cpu()
        share, inside, outside = float(mask.float().mean()), float(change[mask].mean()), float(change[~mask].mean())
        effects.append(Removal(prototype, share, inside, outside))
    return tuple(effects)
