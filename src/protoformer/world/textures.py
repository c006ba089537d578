"""Textures made from numbers alone."""

import torch
import torch.nn.functional as F
from torch import Tensor


def noise(height: int, width: int, generator: torch.Generator, coarsest: int = 64, falloff: float = 0.7) -> Tensor:
    """A coloured cloud with detail at every scale from `coarsest` pixels down to 2: 3 x height x width in [0, 1].

    Each octave is `falloff` times as strong as the one twice as coarse: near 1 is grainy, near 0 is smooth.
    """
    total = torch.zeros(3, height, width)
    strength, spacing = 1.0, coarsest
    while spacing >= 2:
        knots = torch.rand(1, 3, height // spacing + 2, width // spacing + 2, generator=generator) - 0.5
        size = (spacing * knots.shape[2], spacing * knots.shape[3])
        fine = F.interpolate(knots, size=size, mode="bicubic", align_corners=False)[0]
        total += strength * fine[:, spacing // 2 :, spacing // 2 :][:, :height, :width]
        strength, spacing = strength * falloff, spacing // 2
    # Things vary more in brightness than in colour.
    shaded = 0.75 * total.mean(dim=0, keepdim=True) + 0.25 * total
    centred = shaded - shaded.mean(dim=(1, 2), keepdim=True)
    contrast = 0.2 / centred.std(dim=(1, 2), keepdim=True, correction=0).clamp_min(1e-6)
    tint = 0.25 + 0.5 * torch.rand(3, 1, 1, generator=generator)
    return (centred * contrast + tint).clamp(0, 1)
