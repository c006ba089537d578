"""Images, maps and prototypes as pixels to look at."""

import colorsys
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.geometry.regions import boundaries
from protoformer.geometry.resizing import resize
from protoformer.models.prototyping import Prototypes

Pixels = npt.NDArray[np.uint8]


def to_uint8(image: Tensor) -> Pixels:
    """An image, 3 x H x W in [0, 1], as uint8 H x W x 3."""
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def draw_gray(values: Tensor) -> Pixels:
    """A map, H x W in [0, 1], as uint8 H x W: 0 is black and 1 white."""
    return (values.clamp(0, 1) * 255).round().byte().cpu().numpy()


def distinct_colors(count: int) -> Tensor:
    """`count` colors that neighbors can be told apart by, always the same ones: count x 3 in [0, 1]."""
    return label_colors(range(count))


def label_colors(numbers: Iterable[int]) -> Tensor:
    """Of each number, from 0, its color among `distinct_colors`: n x 3 in [0, 1]."""
    # Steps of the golden ratio around the hues never come close to an earlier one; lightness alternates besides.
    colors = [colorsys.hls_to_rgb((index * 0.61803399) % 1, (0.42, 0.58, 0.72)[index % 3], 0.75) for index in numbers]
    return torch.tensor(colors, dtype=torch.float32)


def hex_colors(colors: Tensor) -> list[str]:
    """Colors, n x 3 in [0, 1], as pages write them, such as "#bf1b1b"."""
    return ["#" + "".join(f"{round(255 * part):02x}" for part in color) for color in colors.tolist()]


def draw_assignment(
    prototypes: Prototypes, image: Tensor, stride: int, strength: float = 0.65, seen: tuple[int, int] | None = None
) -> Pixels:
    """The first image of a batch with every pixel tinted by the prototype it belongs to: uint8 H x W x 3.

    image: 3 x H x W in [0, 1], the one that was prototyped. seen: the (height, width) at which the network saw it, and
    at which it is drawn; None: its own. Maps are at 1/stride of that, and may reach past it as the network pads it.
    Pixels belong to prototypes as `Prototypes.owners` says.
    """
    size = (image.shape[1], image.shape[2])
    height, width = seen or size
    image = resize(image[None], (height, width))[0]
    owner = prototypes.owners[0].view(prototypes.size)
    fine = F.interpolate(owner[None, None].float(), scale_factor=stride, mode="nearest")[0, 0, :height, :width].long()
    tint = distinct_colors(prototypes.centers.shape[1])[fine].permute(2, 0, 1)
    gray = image.mean(dim=0, keepdim=True).expand(3, -1, -1)
    edge = boundaries(fine)
    mixed = torch.lerp(gray, tint, strength)
    return to_uint8(resize(torch.where(edge, mixed * 0.4, mixed)[None], size)[0])


def frame_pixels(image: Tensor | None) -> Pixels:
    """The frame of a step, 3 x H x W, as uint8 H x W x 3 to draw on."""
    if image is None:
        raise ValueError("the step comes without its frame")
    if image.is_floating_point():
        return np.ascontiguousarray(to_uint8(image))
    return np.array(image.permute(1, 2, 0).numpy(), order="C", copy=True)
