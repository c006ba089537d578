"""Motion of a whole frame: fields that are quadratic in the place, fitted to what is known at some places.

To the second order so is whatever a turning or zooming camera does to a picture.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TERMS = 6
"""1, x, y, x^2, xy, y^2 of the place, which goes from -1 to 1 across the frame and down it."""
RIDGE = (1e-6, 1e-4, 1e-4, 1e-3, 1e-3, 1e-3)
"""How unlikely each term is, in shares of the frame: where few places are known, the higher ones stay small."""
REFITS, NEAR, SPREAD = 2, 0.5, 1.5
"""How often a fit is made again without what strays from it: by more than NEAR pixels and SPREAD times the mean."""


@dataclass(frozen=True)
class SmoothFields:
    """coefficients: B x T x 6 x 2, pixels. weights: B x T x 1 x h x w, 0 to 1, how far each place was believed."""

    coefficients: Tensor
    weights: Tensor


def terms_at(x: Tensor, y: Tensor) -> Tensor:
    """The terms at every pair of places: x: w and y: h, each from -1 to 1; returns 6 x h x w."""
    across, down = x.expand(len(y), len(x)), y[:, None].expand(len(y), len(x))
    return torch.stack((torch.ones_like(across), across, down, across * across, across * down, down * down))


def cell_terms(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """The terms at the centres of height x width cells that fill the frame: 6 x height x width."""
    x, y = ((2 * torch.arange(count, device=device).float() + 1) / count - 1 for count in (width, height))
    return terms_at(x, y)


def fields_of(coefficients: Tensor, terms: Tensor) -> Tensor:
    """The fields of coefficients, ... x n x 2, n of the first terms: ... x 2 x h x w."""
    used = terms[: coefficients.shape[-2]]
    fields: Tensor = (coefficients.transpose(-1, -2) @ used.flatten(1)).unflatten(-1, tuple(terms.shape[1:]))
    return fields


def fitted(places: Tensor, trust: Tensor) -> SmoothFields:
    """The fields that most of the trusted places follow.

    places: B x T x 2 x h x w, pixels; trust: B x T x 1 x h x w, 0 to 1. What moves by itself strays from the others,
    and is believed the less.
    """
    terms = cell_terms(places.shape[-2], places.shape[-1], places.device)
    weights = trust
    coefficients = _solved(places, weights, terms)
    for _ in range(REFITS):
        off = (places - fields_of(coefficients, terms)).norm(dim=2, keepdim=True)
        mean = (weights * off).sum(dim=(3, 4), keepdim=True) / weights.sum(dim=(3, 4), keepdim=True).clamp_min(1e-6)
        weights = trust / (1 + (off / (NEAR + SPREAD * mean)).square())
        coefficients = _solved(places, weights, terms)
    return SmoothFields(coefficients, weights)


def _solved(places: Tensor, weights: Tensor, terms: Tensor) -> Tensor:
    """Coefficients of least squares: B x T x 6 x 2."""
    flat = terms.flatten(1)
    products = (flat[:, None] * flat[None]).flatten(0, 1)  # 36 x hw
    normal = (weights.flatten(2) @ products.T / flat.shape[1]).unflatten(-1, (TERMS, TERMS))
    right = ((places * weights).flatten(3) @ flat.T / flat.shape[1]).transpose(-1, -2)
    rows = torch.arange(TERMS, device=places.device)
    ridge = torch.zeros(TERMS, TERMS, device=places.device, dtype=torch.float32)
    for index, value in enumerate(RIDGE):
        ridge = ridge + value * ((rows == index)[:, None] & (rows == index)).float()
    return _eliminated(torch.cat((normal + ridge, right), dim=-1))


def _eliminated(system: Tensor) -> Tensor:
    """Solutions of positive systems, ... x n x (n + m): ... x n x m. Nothing in it waits for a GPU, as solvers do."""
    count = system.shape[-2]
    for index in range(count):
        pivot = system[..., index : index + 1, :] / system[..., index : index + 1, index : index + 1]
        others = system - system[..., index : index + 1] * pivot
        system = torch.cat((others[..., :index, :], pivot, others[..., index + 1 :, :]), dim=-2)
    return system[..., count:]
