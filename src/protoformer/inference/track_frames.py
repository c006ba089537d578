"""The frames that people hand to a tracker, whichever it is."""

import numpy as np
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.inference.images import ImageLike, as_image


def frame_pixels(frame: ImageLike) -> Tensor:
    """A frame, 3 x H x W: bytes as they are, which saves time where only a part is looked at, else in [0, 1]."""
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        # torch takes neither what is counted backwards, such as a camera's colours, nor what is locked.
        plain = frame.flags.writeable and min(frame.strides) >= 0
        frame = torch.from_numpy(frame if plain else frame.copy()).permute(2, 0, 1)
    if isinstance(frame, Tensor) and frame.dtype == torch.uint8 and frame.dim() == 3 and len(frame) == 3:
        if not frame.numel():
            raise InputError("the frame has no pixels; give an image with at least one.")
        return frame.detach()
    return as_image(frame, "the frame")[0]


def check_size(size: tuple[int, int], first: tuple[int, int]) -> None:
    """Refuse a frame whose (height, width) is not that of the first."""
    if size != first:
        raise InputError(
            f"the frame is {size[1]}x{size[0]} where the first was {first[1]}x{first[0]}; give frames of one size, or "
            "reset the tracker."
        )
