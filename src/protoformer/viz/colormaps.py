"""Colors of optical flow and of labels, and conversion of tensors to uint8 images.

Flow uses the color wheel of Middlebury (Baker et al., A Database and Evaluation Methodology for Optical Flow): hue is
direction and saturation is speed. Zero motion is white, the chosen maximum and all faster motion have the pure color of
the wheel, and invalid flow is black.
"""

import colorsys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.regions import boundaries
from protoformer.geometry.warps import resize
from protoformer.io.formats import as_flow, valid_flow
from protoformer.io.png import encode_png
from protoformer.models.prototyping import Prototypes

# Steps between red, yellow, green, cyan, blue, magenta and red: more where more hues can be distinguished.
_STEPS = (15, 6, 4, 11, 13, 6)
_CORNERS = ((255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255), (0, 0, 255), (255, 0, 255), (255, 0, 0))

FLOW_PERCENTILE = 99.9
"""Percentile of the lengths of a flow that gets the pure color by default: 0.1 % of the pixels may lie beyond."""
# In pixels; below it the rounding noise of a static scene would be drawn like motion.
_MIN_MAX_MOTION = 1e-3


def flow_to_color(flow: npt.ArrayLike, max_motion: float | None = None) -> npt.NDArray[np.uint8]:
    """Color-code a flow with the Middlebury color wheel.

    Args:
        flow: HxWx2, (u right, v down) in pixels. Values that are NaN, infinite or beyond 1e9 are invalid.
        max_motion: Length in pixels from which on the color is pure; None: the 99.9th percentile of the valid lengths,
            at least 0.001 pixels.

    Returns:
        uint8 HxWx3 RGB; invalid flow is black.
    """
    array = as_flow(flow)
    valid = valid_flow(array)
    vectors = array[valid]
    lengths = np.hypot(vectors[:, 0], vectors[:, 1])
    if max_motion is None:
        max_motion = default_max_motion(lengths)
    elif not (np.isfinite(max_motion) and max_motion > 0):
        raise InputError(
            f"max_motion is a length in pixels over 0, not {max_motion}; give one, or None to choose it automatically."
        )
    image = np.zeros((*valid.shape, 3), dtype=np.uint8)
    with np.errstate(over="ignore"):
        speeds = lengths / np.float64(max_motion)
    image[valid] = _color_vectors(vectors, np.minimum(speeds, 1).astype(np.float32))
    return image


def color_wheel_legend(size: int) -> npt.NDArray[np.uint8]:
    """Draw the color wheel: each pixel has the color of motion from the center towards it.

    `size` is the side in pixels; the rim is motion at the maximum. Returns uint8 size x size x 3 RGB, white outside.
    """
    if size < 1:
        raise InputError(f"a legend is at least one pixel wide, not {size}; give a larger size.")
    center = (size - 1) / 2
    offsets = (np.arange(size) - center) / max(center, 1)
    v, u = np.meshgrid(offsets, offsets, indexing="ij")
    inside = np.hypot(u, v) <= 1
    return flow_to_color(np.stack([u * inside, v * inside], axis=-1), max_motion=1.0)


def default_max_motion(lengths: npt.NDArray[np.float32]) -> float:
    """Choose the length in pixels that gets the pure color, from N valid lengths, of which 0.1 % at most are longer."""
    if lengths.size == 0:
        return _MIN_MAX_MOTION
    return max(float(np.percentile(lengths, FLOW_PERCENTILE, method="higher")), _MIN_MAX_MOTION)


def _color_wheel() -> npt.NDArray[np.float64]:
    """Compute the 55 pure colors of the wheel, float64 55x3 RGB in [0, 1]."""
    spans = []
    for start, end, steps in zip(_CORNERS[:-1], _CORNERS[1:], _STEPS, strict=True):
        change = np.arange(steps)[:, None] * (np.array(end) - np.array(start)) / steps
        # The published wheel floors the change, not the resulting color.
        spans.append(np.array(start) + np.sign(change) * np.floor(np.abs(change)))
    return np.concatenate(spans) / 255


_WHEEL = _color_wheel()
_WHEEL_POSITIONS = np.arange(len(_WHEEL), dtype=np.float64)


def _color_vectors(vectors: npt.NDArray[np.float32], speeds: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the colors of N vectors (Nx2) with their speeds relative to the maximum (N, up to 1): uint8 Nx3 RGB."""
    # Adding zero turns -0.0 into 0.0; atan2 would otherwise put the two at opposite ends of the wheel.
    u, v = vectors[:, 0] + 0, vectors[:, 1] + 0
    # Rightward motion sits at the wheel's first color, and angles grow clockwise on screen from there.
    position = (np.arctan2(-v, -u) / np.float32(np.pi) + 1) / 2 * _WHEEL_POSITIONS[-1]
    pure = np.stack([np.interp(position, _WHEEL_POSITIONS, channel) for channel in _WHEEL.T], axis=-1)
    colors: npt.NDArray[np.uint8] = np.rint(255 * (1 - speeds[:, None] * (1 - pure))).astype(np.uint8)
    return colors


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


class Picture(ABC):
    """Base class of results that can be drawn: `show` opens a window, and a notebook shows them by themselves."""

    @abstractmethod
    def image(self) -> Image.Image:
        """Return the result as an image."""

    def show(self) -> None:
        """Show the image with matplotlib, in a notebook below the cell; without a screen this is a warning."""
        from matplotlib import pyplot  # takes a moment, and only this needs it

        if pyplot.get_backend().lower() in ("agg", "pdf", "pgf", "ps", "svg", "template"):
            warnings.warn("there is no screen to show an image on; save it with image().save(...)", stacklevel=2)
            return
        image = self.image()
        figure, axes = pyplot.subplots(figsize=(image.width / 100, image.height / 100), dpi=100)
        axes.imshow(image)
        axes.set_axis_off()
        figure.subplots_adjust(0, 0, 1, 1)
        pyplot.show()

    def _repr_png_(self) -> bytes:
        return encode_png(np.asarray(self.image()))
