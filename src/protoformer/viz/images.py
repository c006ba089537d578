"""Conversion of tensors to uint8 images, and colors for labels."""

import colorsys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.regions import boundaries
from protoformer.geometry.resizing import resize
from protoformer.models.prototyping import Prototypes

Pixels = npt.NDArray[np.uint8]
"""uint8 H x W x 3 RGB, or H x W gray."""


def to_uint8(image: Tensor) -> Pixels:
    """Convert an image, 3 x H x W in [0, 1], to uint8 H x W x 3."""
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def draw_gray(values: Tensor) -> Pixels:
    """Convert a map, H x W in [0, 1], to uint8 H x W: 0 is black and 1 is white."""
    return (values.clamp(0, 1) * 255).round().byte().cpu().numpy()


def distinct_colors(count: int) -> Tensor:
    """Return a fixed sequence of distinguishable colors: count x 3 in [0, 1]."""
    return label_colors(range(count))


def label_colors(numbers: Iterable[int]) -> Tensor:
    """Return the colors of labels (from 0) in the sequence of `distinct_colors`: n x 3 in [0, 1]."""
    # Hues in steps of the golden ratio stay far apart; lightness alternates in addition.
    colors = [colorsys.hls_to_rgb((index * 0.61803399) % 1, (0.42, 0.58, 0.72)[index % 3], 0.75) for index in numbers]
    return torch.tensor(colors, dtype=torch.float32)


def hex_colors(colors: Tensor) -> list[str]:
    """Convert colors, n x 3 in [0, 1], to CSS notation such as "#bf1b1b"."""
    return ["#" + "".join(f"{round(255 * channel):02x}" for channel in color) for color in colors.tolist()]


def draw_assignment(
    prototypes: Prototypes,
    image: Tensor,
    stride: int,
    strength: float = 0.65,
    input_size: tuple[int, int] | None = None,
) -> Pixels:
    """Tint each pixel of the first image of a batch by the prototype that `Prototypes.owners` assigns it to.

    `image` is 3 x H x W in [0, 1]. The maps, with `stride` image pixels per cell, may be larger than the image, because
    the network pads it. `strength` is the opacity of the tint in [0, 1]; `input_size` is the (height, width) at which
    the network processed the image, None: H x W.
    """
    size = (image.shape[1], image.shape[2])
    height, width = input_size or size
    image = resize(image[None], (height, width))[0]
    owner = prototypes.owners[0].view(prototypes.size)
    fine = F.interpolate(owner[None, None].float(), scale_factor=stride, mode="nearest")[0, 0, :height, :width].long()
    tint = distinct_colors(prototypes.centers.shape[1])[fine].permute(2, 0, 1)
    gray = image.mean(dim=0, keepdim=True).expand(3, -1, -1)
    edge = boundaries(fine)
    mixed = torch.lerp(gray, tint, strength)
    return to_uint8(resize(torch.where(edge, mixed * 0.4, mixed)[None], size)[0])


def stack_2x2(top_left: Pixels, top_right: Pixels, bottom_left: Pixels, bottom_right: Pixels) -> Pixels:
    """Join four images, H x W x 3, two above two: 2H x 2W x 3."""
    return np.concatenate((np.hstack((top_left, top_right)), np.hstack((bottom_left, bottom_right))))


def frame_pixels(image: npt.NDArray[Any] | None) -> Pixels:
    """Copy the image of a frame, H x W x 3, uint8 or float in [0, 1], to a writable uint8 array."""
    if image is None:
        raise ValueError("the result has no frame")
    if image.dtype != np.uint8:
        image = np.rint(255 * image.clip(0, 1))
    return np.array(image, np.uint8, order="C", copy=True)
