"""Record the EM steps of every encoder layer, and remove single prototypes."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn

from protoformer.models.encoder import STRIDES, Encoder, Mixer
from protoformer.models.kernels.reference import nearest_prototype, similarities
from protoformer.models.prototyping import Prototypes, Prototyping, cosine_similarities
from protoformer.models.runtime import split_heads


@dataclass(frozen=True)
class Convergence:
    """What happened over the steps of EM, step 0 being the pooled start.

    log_likelihood: per step, the mean over pixels and heads of log(1/K sum_k exp(similarity)), nats: the likelihood of
        an equal mixture whose components are proportional to exp(similarity); empty if not asked for.
    distances: per step, |theta_n - theta*|, with theta* the last step's prototypes.
    contraction: the factor kappa by which the distance shrank in a step (geometric mean); below 1 EM contracts.
    drift: the length of the last step over that of the first; near 0 EM has arrived, near 1 it has no fixed point.
    """

    log_likelihood: tuple[float, ...]
    distances: tuple[float, ...]
    contraction: float
    drift: float


def plain_em(channels: int, prototypes: int, update: str = "cosine") -> Prototyping:
    """EM with nothing learned: one head, identity projections, means, no residual.

    On features of unit length and by cosine this is EM of a mixture of von Mises-Fisher distributions, whose likelihood
    never falls.
    """
    prototyping = Prototyping(channels, 1, prototypes, update=update, residual=False)
    for projection in (prototyping.query, prototyping.key, prototyping.value):
        nn.init.eye_(projection.weight)
        nn.init.zeros_(projection.bias)
    return prototyping


@torch.no_grad()
def measure_convergence(
    prototyping: Prototyping, features: Tensor, size: tuple[int, int], steps: int = 40, likelihood: bool = True
) -> Convergence:
    """Run many steps on features (1 x HW x C of a map of H x W) and compare each with the last.

    likelihood: compute that of every step, too, which takes about half as long as the steps themselves.
    """
    centers = trajectory(prototyping, features, size, steps)
    distances = [float((each - centers[-1]).norm()) for each in centers]
    lengths = [float((after - before).norm()) for before, after in pairwise(centers)]
    keys = prototyping.keys_and_values(features)[0] if likelihood else None
    return Convergence(
        log_likelihood=() if keys is None else tuple(log_likelihood(prototyping, each, keys) for each in centers),
        distances=tuple(distances),
        contraction=contraction_factor(distances),
        drift=lengths[-1] / lengths[0],
    )


@torch.no_grad()
def trajectory(prototyping: Prototyping, features: Tensor, size: tuple[int, int], steps: int) -> list[Tensor]:
    """The centers before the first step of EM and after each: steps + 1 of B x K x C. features: B x HW x C."""
    centers = [prototyping.pool(features, size)]
    if steps:
        keys, values = prototyping.keys_and_values(features)
        for _ in range(steps):
            centers.append(prototyping.step(centers[-1], keys, values, size)[0])
    return centers


@torch.no_grad()
def log_likelihood(prototyping: Prototyping, centers: Tensor, keys: Tensor) -> float:
    """That of the pixels by these centers (B x K x C), as in `Convergence`. keys: B x heads x HW x d."""
    likeness = cosine_similarities if prototyping.update == "cosine" else similarities
    queries = split_heads(prototyping.query(centers), prototyping.heads)
    return float(likeness(queries, keys).logsumexp(dim=-2).mean()) - math.log(queries.shape[-2])


def contraction_factor(distances: list[float]) -> float:
    """The geometric mean of the ratios of successive distances to the end, over the first half of the steps.

    Near the end the distances are those to a last iterate that has not quite arrived, and ratios mean little; so do
    they once the distance is down to rounding.
    """
    useful = [each for each in distances[: len(distances) // 2 + 1] if each > 1e-5 * distances[0]]
    if len(useful) < 2:
        return 0.0
    return float((useful[-1] / useful[0]) ** (1 / (len(useful) - 1)))


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer's work on a batch of images.

    stage, block: which layer, both from 1. stride: how much smaller than the image its map is. prototyping: its own.
    tokens: B x HW x C, what was prototyped. size: (H, W) of the map. centers: N + 1 of B x K x C, the pooled start and
    what each of the N steps of EM made of it. assignments: N + 1 of B x HW, int64, by the centers of each; the last are
    those that the network itself found and used.
    """

    stage: int
    block: int
    stride: int
    prototyping: Prototyping
    tokens: Tensor
    size: tuple[int, int]
    centers: tuple[Tensor, ...]
    assignments: tuple[Tensor, ...]


def layer_mixer(encoder: Encoder, stage: int, block: int) -> Mixer:
    """The mixer of a layer; stage and block count from 1."""
    return cast(Mixer, cast(Any, encoder.stages[stage - 1]).blocks[block - 1].mixer)


@torch.no_grad()
def trace_encoder(encoder: Encoder, images: Tensor) -> tuple[LayerTrace, ...]:
    """Every layer's trace of images, B x 3 x H x W in [-1, 1], in their order."""
    places = [
        (stage, block) for stage, each in enumerate(encoder.stages, 1) for block in range(1, len(_blocks(each)) + 1)
    ]
    entered: list[tuple[Tensor, tuple[int, int]]] = []
    ours = get_ident()

    def note(_: object, given: tuple[Any, ...]) -> None:
        if get_ident() == ours:  # another thread may run the same encoder meanwhile
            entered.append(given[:2])

    handles = [layer_mixer(encoder, *place).register_forward_pre_hook(note) for place in places]
    try:
        found = encoder(images, return_prototypes=True).prototypes
    finally:
        for handle in handles:
            handle.remove()
    return tuple(
        _trace(stage, block, layer_mixer(encoder, stage, block), *given, found[stage - 1][block - 1])
        for (stage, block), given in zip(places, entered, strict=True)
    )


@contextmanager
def without_prototype(mixer: Mixer, prototype: int) -> Iterator[None]:
    """Within it, the first image of every batch has one prototype less in this layer: it is found, and then taken out.

    Its pixels go to the prototype that is next nearest to them.
    """
    kept = [number for number in range(mixer.prototyping.grid[0] * mixer.prototyping.grid[1]) if number != prototype]

    def mixed_anew(_: object, given: tuple[Any, ...], output: tuple[Tensor, Prototypes | None]) -> Any:
        mixed, prototypes = output
        alone = mixer.prototyping(given[0][:1], given[1])
        fewer = Prototypes(alone.centers[:, kept], alone.memberships[:, :, kept], alone.size)
        first, _ = mixer.synchronization(given[0][:1], fewer)
        return torch.cat((first.to(mixed.dtype), mixed[1:])), prototypes

    handle = mixer.register_forward_hook(mixed_anew)
    try:
        yield
    finally:
        handle.remove()


def _blocks(stage: Any) -> Any:
    return stage.blocks


def _trace(
    stage: int, block: int, mixer: Mixer, tokens: Tensor, size: tuple[int, int], found: Prototypes
) -> LayerTrace:
    prototyping = mixer.prototyping
    centers = [*trajectory(prototyping, tokens, size, prototyping.num_iterations)[:-1], found.centers]
    if found.assignment is None:
        assignments = [_most_a_member(prototyping, tokens, size, each) for each in centers[:-1]]
    else:
        assignments = [nearest_prototype(tokens, each) for each in centers[:-1]]
    return LayerTrace(
        stage, block, STRIDES[stage - 1], prototyping, tokens, size, tuple(centers), (*assignments, found.owners)
    )


def _most_a_member(prototyping: Prototyping, tokens: Tensor, size: tuple[int, int], centers: Tensor) -> Tensor:
    """Where nothing is assigned: the prototype of which each pixel is most a member, averaged over heads, B x HW."""
    keys, _ = prototyping.keys_and_values(tokens)
    return prototyping.memberships(centers, keys, size).mean(dim=1).argmax(dim=1)
