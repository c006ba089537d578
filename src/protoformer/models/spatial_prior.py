"""Spatial prior of the prototypes: the factor s of the paper's Eq. 3, in its two places, CAP and LS.

Prototype k has a position c_k, and pixel i is at x_i. The logits of both assignments get the term
-|x_i - c_k|^2 / (2 w^2):

- E-step of CAP, soft:  q_k . k_i / sqrt(d) - |x_i - c_k|^2 / (2 w^2)
- assignment of LS, hard:  cos(y_i, P_k) / tau - |x_i - c_k|^2 / (2 w^2)

The width w is learned through the E-step. The temperature tau of LS gets no gradient from the argmax; it, and again w,
are learned by the losses on `Prototypes.soft_assignment` (`protoformer.training.prototype_losses`). Without such a loss
tau keeps its initial value.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protoformer.models.kernels.reference import PriorCoefficients, pixel_coordinates, prior_coefficients, prior_logits

INITIAL_WIDTH = 0.8
"""Width w of the spatial prior before training, cells."""
INITIAL_TEMPERATURE = 0.07
"""Temperature tau of the assignment: its value before training and, without a spatial prior, its constant value."""


@dataclass(frozen=True)
class Layout:
    """Spatial layout of a feature map and of its prototypes.

    Attributes:
        size: (H, W) of the feature map.
        grid: (rows, columns) of the grid of cells that the prototypes are initialized from; rows * columns = K.
    """

    size: tuple[int, int]
    grid: tuple[int, int]


@dataclass(frozen=True)
class SpatialPrior:
    """Positions of prototypes, and the parameters of the assignment of pixels to them.

    Attributes:
        positions: B x K x 2, (x, y) of each prototype in cells of the grid, from the middle of the map.
        log_width: Logarithm of the width w of the prior, in cells.
        log_temperature: Logarithm of the temperature tau of the cosine similarity in Latent Synchronization.
        layout: Sizes of the feature map and of the grid.
    """

    positions: Tensor
    log_width: Tensor
    log_temperature: Tensor
    layout: Layout

    @property
    def pixels(self) -> Tensor:
        """Positions of the pixels, HW x 2, in the units of `positions`."""
        return pixel_coordinates(self.layout.size, self.layout.grid, self.positions.device, self.positions.dtype)

    @property
    def positions_in_pixels(self) -> Tensor:
        """Positions of the prototypes, B x K x 2, in pixels of the map; the centers of pixels are at whole numbers."""
        (height, width), (rows, columns) = self.layout.size, self.layout.grid
        scale, middle = ((width / columns, height / rows), ((width - 1) / 2, (height - 1) / 2))
        return self.positions * self.positions.new_tensor(scale) + self.positions.new_tensor(middle)

    def logits(self) -> Tensor:
        """Return -|x_i - c_k|^2 / (2 w^2), B x K x HW."""
        return prior_logits(self.positions, self.log_width, self.pixels)

    def e_step_prior(self) -> PriorCoefficients:
        """Return the prior of the E-step in the form of the fused versions."""
        return PriorCoefficients(prior_coefficients(self.positions, self.log_width), self.pixels)

    @torch.no_grad()
    def assignment_prior(self) -> PriorCoefficients:
        """Return the prior of Latent Synchronization, in units of the cosine similarity."""
        coefficients, pixels = self.e_step_prior()
        return PriorCoefficients(coefficients * self.log_temperature.exp(), pixels)

    def first(self, count: int) -> "SpatialPrior":
        """Return the prior of the first `count` images of the batch."""
        return replace(self, positions=self.positions[:count])

    def select(self, prototypes: list[int]) -> "SpatialPrior":
        """Return the prior of some of the prototypes."""
        return replace(self, positions=self.positions[:, prototypes])

    def cpu(self) -> "SpatialPrior":
        """Return a copy in CPU memory."""
        return SpatialPrior(
            self.positions.cpu(), self.log_width.detach().cpu(), self.log_temperature.detach().cpu(), self.layout
        )
