"""Conversion of image inputs (paths, arrays, tensors, Pillow images) to tensors."""

import os
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.files import PathLike
from protoformer.io.image import DecodedImage, read_image

ImageLike = PathLike | npt.NDArray[np.generic] | Tensor | Image.Image | DecodedImage
"""A path; an array H x W or H x W x 1, 3 or 4; a tensor 3 x H x W or 1 x 3 x H x W; a Pillow image; or a decoded image.

Integers span the range of their type, floats are in [0, 1]. A fourth channel is alpha, composited over black.
"""
RANGE_TOLERANCE = 1e-3
"""How far floats may exceed [0, 1], for example after resizing; they are clamped."""


def as_image(source: ImageLike, name: str = "the image") -> Tensor:
    """Convert an image to a float32 tensor 1 x 3 x H x W in [0, 1].

    Args:
        source: The image.
        name: Name of the image in error messages.
    """
    if isinstance(source, Tensor):
        return _from_tensor(source, name)
    if isinstance(source, np.ndarray):
        return _from_array(source, name)
    if isinstance(source, DecodedImage):
        return torch.from_numpy(source.pixels).permute(2, 0, 1)[None]
    if isinstance(source, Image.Image):
        return _from_array(np.asarray(source.convert("RGBA" if source.has_transparency_data else "RGB")), name)
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(
            f"{name} is of type {type(source).__name__}; give a path, an array, a tensor or a Pillow image."
        )
    return torch.from_numpy(read_image(source)).permute(2, 0, 1)[None]


def as_frame(source: ImageLike, name: str) -> Tensor:
    """Convert an image to 3 x H x W: uint8 RGB stays uint8, everything else becomes float32 in [0, 1].

    uint8 data stays on its device and is copied only if necessary.
    """
    if isinstance(source, np.ndarray) and source.dtype == np.uint8 and source.ndim == 3 and source.shape[2] == 3:
        # torch supports neither negative strides, such as those of BGR to RGB views, nor read-only arrays.
        shareable = source.flags.writeable and min(source.strides) >= 0
        source = torch.from_numpy(source if shareable else source.copy()).permute(2, 0, 1)
    if isinstance(source, Tensor) and source.dtype == torch.uint8 and source.numel():
        frame = source.detach()
        frame = frame[0] if frame.dim() == 4 and len(frame) == 1 else frame
        if frame.dim() == 3 and len(frame) == 3:
            return frame
    return as_image(source, name)[0]


def to_float(frame: Tensor) -> Tensor:
    """Convert a frame, uint8 or float in [0, 1], to float32 in [0, 1]."""
    return frame.float() / 255 if frame.dtype == torch.uint8 else frame.float()


def split_batch(source: object) -> list[ImageLike] | None:
    """Return the images of a list, of a B x 3 x H x W tensor or of a B x H x W x C array; None for a single image.

    A 1 x 3 x H x W tensor is a single image.
    """
    if isinstance(source, (list, tuple)):
        return list(source)
    is_batch = isinstance(source, (Tensor, np.ndarray)) and source.ndim == 4
    if not is_batch or (isinstance(source, Tensor) and len(source) == 1):
        return None
    return list(cast("Tensor | npt.NDArray[np.generic]", source))


def image_pair(first: ImageLike, second: ImageLike) -> tuple[Tensor, Tensor]:
    """Convert two images of the same size to tensors 1 x 3 x H x W, or raise `InputError`."""
    names = [
        str(source)
        if isinstance(source, (str, os.PathLike))
        else source.name
        if isinstance(source, DecodedImage)
        else f"the {position} image"
        for source, position in ((first, "first"), (second, "second"))
    ]
    image1, image2 = as_image(first, names[0]), as_image(second, names[1])
    if image1.shape != image2.shape:
        sizes = [f"{image.shape[3]}x{image.shape[2]}" for image in (image1, image2)]
        raise InputError(
            f"{names[0]} is {sizes[0]} pixels and {names[1]} is {sizes[1]}; "
            "flow needs two images of the same size, so scale or crop one of them."
        )
    return image1, image2


def _from_tensor(tensor: Tensor, name: str) -> Tensor:
    tensor = tensor.detach()
    if tensor.dim() == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.dim() != 3 or tensor.shape[0] != 3:
        raise InputError(f"{name} is a tensor of shape {tuple(tensor.shape)}; give 3 x H x W or 1 x 3 x H x W.")
    if tensor.is_floating_point():
        tensor = tensor.float()  # numpy has no bfloat16
    return _scale_to_unit(tensor.cpu().numpy(), name)[None]


def _from_array(array: npt.NDArray[np.generic], name: str) -> Tensor:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise InputError(f"{name} is an array of shape {array.shape}; give H x W, or H x W x 1, 3 or 4.")
    pixels = _scale_to_unit(array, name).permute(2, 0, 1)
    if len(pixels) == 4:
        pixels = pixels[:3] * pixels[3:]
    return pixels.expand(3, -1, -1)[None]


def _scale_to_unit(array: npt.NDArray[np.generic], name: str) -> Tensor:
    """Scale integers by the maximum of their type; return floats in [0, 1] unchanged."""
    if not array.size:
        raise InputError(f"{name} has no pixels (shape {array.shape}); give an image with at least one.")
    if array.dtype == np.bool_:
        return torch.from_numpy(array.astype(np.float32))
    if np.issubdtype(array.dtype, np.unsignedinteger):
        max_value = 2.0 ** (8 * array.dtype.itemsize) - 1
        return torch.from_numpy((array.astype(np.float64) / max_value).astype(np.float32))
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"{name} has values of type {array.dtype}; give unsigned integers, or floats in [0, 1].")
    if not np.isfinite(array).all():
        raise InputError(f"{name} contains NaN or infinite values; replace them first.")
    low, high = float(array.min()), float(array.max())
    if low < -RANGE_TOLERANCE or high > 1 + RANGE_TOLERANCE:
        raise InputError(f"{name} has values from {low:g} to {high:g}; scale floats to [0, 1].")
    return torch.from_numpy(array.astype(np.float32)).clamp(0, 1)
