"""How fast EM settles on an image's prototypes: the paper's Proposition 1, measured."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from protoformer.model.fused.plain import similarities
from protoformer.model.prototyping import Prototyping, cosine_similarities
from protoformer.model.tokens import split_heads


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
    centres = trajectory(prototyping, features, size, steps)
    distances = [float((each - centres[-1]).norm()) for each in centres]
    lengths = [float((after - before).norm()) for before, after in pairwise(centres)]
    keys = prototyping.keys_and_values(features)[0] if likelihood else None
    return Convergence(
        log_likelihood=() if keys is None else tuple(log_likelihood(prototyping, each, keys) for each in centres),
        distances=tuple(distances),
        contraction=contraction_factor(distances),
        drift=lengths[-1] / lengths[0],
    )


@torch.no_grad()
def trajectory(prototyping: Prototyping, features: Tensor, size: tuple[int, int], steps: int) -> list[Tensor]:
    """The centres before the first step of EM and after each: steps + 1 of B x K x C. features: B x HW x C."""
    centres = [prototyping.pool(features, size)]
    if steps:
        keys, values = prototyping.keys_and_values(features)
        for _ in range(steps):
            centres.append(prototyping.step(centres[-1], keys, values, size)[0])
    return centres


@torch.no_grad()
def log_likelihood(prototyping: Prototyping, centres: Tensor, keys: Tensor) -> float:
    """That of the pixels by these centres (B x K x C), as in `Convergence`. keys: B x heads x HW x d."""
    likeness = cosine_similarities if prototyping.update == "cosine" else similarities
    queries = split_heads(prototyping.query(centres), prototyping.heads)
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
