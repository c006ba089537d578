"""One smooth motion for all pixels of a part, by least squares, from sums that add up when parts are joined."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

TERMS = 6
"""Of a motion, u and v each: a constant, x, y, and their three products. A plane that a camera sees moves like this."""
STIFFNESS = 0.03
"""Pixels that say a motion has no terms but the constant: next to nothing, but what few pixels have to go by."""


@dataclass(frozen=True, eq=False)
class MotionSums:
    """Of each of n parts, what the motion that suits it best follows from.

    moments: n x 6 x 6, of the terms; products: n x 6 x 2, of terms and flow; squares: n, of the flow, px^2, all three
    weighted. weight: n, the sum of the weights; pixels: n. All float64.
    """

    moments: Tensor
    products: Tensor
    squares: Tensor
    weight: Tensor
    pixels: Tensor

    @classmethod
    def of(cls, labels: Tensor, flow: Tensor, weights: Tensor) -> "MotionSums":
        """Of the parts 0 .. n - 1 of H x W pixels. flow: 2 x H x W, pixels; weights: H x W."""
        parts, terms = labels.flatten(), motion_terms((labels.shape[0], labels.shape[1]))
        chosen, found = weights.flatten().double(), flow.flatten(1).double()
        count = int(parts.max()) + 1

        def total(values: Tensor) -> Tensor:
            return torch.bincount(parts, values, count)

        weighted = terms * chosen
        rows, columns = torch.triu_indices(TERMS, TERMS)
        half = torch.stack([total(weighted[one] * terms[other]) for one, other in zip(rows, columns, strict=True)], 1)
        moments = torch.empty(count, TERMS, TERMS, dtype=torch.float64)
        moments[:, rows, columns] = moments[:, columns, rows] = half
        products = torch.stack([total(one * other) for one in weighted for other in found], 1).view(count, TERMS, 2)
        squares = total(found.square().sum(dim=0) * chosen)
        return cls(moments, products, squares, total(chosen), torch.bincount(parts, minlength=count).double())

    def __len__(self) -> int:
        return len(self.pixels)

    def at(self, places: Tensor) -> "MotionSums":
        """Those of some parts, in that order."""
        return MotionSums(*(getattr(self, field.name)[places] for field in fields(self)))

    def __add__(self, other: "MotionSums") -> "MotionSums":
        """Those of each part of the one and the like of the other, joined."""
        return MotionSums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def joined(self, owner: Tensor) -> "MotionSums":
        """Those of the parts that remain when each has become one with `owner` (n, int64, 0 .. count - 1)."""
        count = int(owner.max()) + 1
        sums = []
        for field in fields(self):
            each = getattr(self, field.name)
            sums.append(torch.zeros(count, *each.shape[1:], dtype=each.dtype).index_add_(0, owner, each))
        return MotionSums(*sums)

    def motions(self) -> Tensor:
        """The coefficients of each part's best motion: n x 6 x 2, pixels."""
        stiff = torch.full((TERMS,), STIFFNESS, dtype=torch.float64)
        stiff[0] = 1e-9
        best: Tensor = torch.linalg.solve(self.moments + stiff.diag(), self.products)
        return best

    def residual(self) -> Tensor:
        """What their best motions leave of the flow, and cost by being stiff: n, weighted sums of squares, px^2."""
        return (self.squares - (self.products * self.motions()).sum(dim=(1, 2))).clamp_min(0)

    def speed(self) -> Tensor:
        """The root of the mean squared length of the flow in each part: n, pixels."""
        return (self.squares / self.weight.clamp_min(1e-9)).sqrt()


def motion_terms(size: tuple[int, int]) -> Tensor:
    """What a motion is made of at the pixels of an image of (H, W) = size: 6 x (H W), float64.

    Places count from the middle of the image, in units of half its longer side.
    """
    height, width = size
    unit = max(size) / 2
    y = ((torch.arange(height, dtype=torch.float64) - (height - 1) / 2) / unit)[:, None].expand(size).flatten()
    x = ((torch.arange(width, dtype=torch.float64) - (width - 1) / 2) / unit).expand(size).flatten()
    return torch.stack((torch.ones_like(x), x, y, x * x, x * y, y * y))
