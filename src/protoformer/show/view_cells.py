"""Of which pixels a browser gets numbers, and how it gets a confidence: the same for every kind of result."""

import math

import numpy as np
from torch import Tensor

from protoformer.show.addresses import base64_text

MOST_CELLS = 2**20
"""Cells that go to the browser: of larger images, those of every second pixel each way, or third, and so on."""


def cell_step(height: int, width: int, most_cells: int) -> int:
    """A cell stands for every so many pixels, each way, so that about `most_cells` are left of an image."""
    return math.ceil(math.sqrt(max(1.0, height * width / most_cells)))


def confidence_text(confidence: Tensor, step: int) -> str:
    """A confidence, 1 x H x W in [0, 1], at its cells: base64 of uint8, 255 is 1."""
    shares = confidence[0, ::step, ::step].clamp(0, 1).float().cpu().numpy()
    return base64_text((shares * 255).round().astype(np.uint8).tobytes())
