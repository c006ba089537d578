"""From what a depth dataset stores to the record it returns."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.data.tree import expect_folder, expect_some, files_in
from protoformer.errors import InputError
from protoformer.files.folders import natural_key
from protoformer.world.sample import DepthSample


def depth_record(
    name: str,
    image: npt.NDArray[np.float32],
    depth: npt.NDArray[np.float32],
    intrinsics: Tensor | None,
    farthest: float = float("inf"),
) -> DepthSample:
    """Join an image, H x W x 3 in [0, 1], with its depth, H x W in metres, and intrinsics, 3 x 3 in pixels.

    Depth is known where it is finite, positive and nearer than `farthest`, and 0 elsewhere.
    """
    if image.shape[:2] != depth.shape:
        raise InputError(
            f"the image of {name} is {image.shape[1]}x{image.shape[0]} but its depth is "
            f"{depth.shape[1]}x{depth.shape[0]}; download or copy both again."
        )
    metres = torch.from_numpy(np.ascontiguousarray(depth, dtype=np.float32))[None, None]
    valid = metres.isfinite() & (metres > 0) & (metres < farthest)
    return DepthSample(
        image=torch.from_numpy(image).permute(2, 0, 1)[None].contiguous(),
        depth=metres.where(valid, 0.0),
        valid=valid,
        intrinsics=None if intrinsics is None else intrinsics.float()[None],
        names=(name,),
    )


def pinhole(fx: float, fy: float, cx: float, cy: float) -> Tensor:
    """Intrinsics, 3 x 3 in pixels, the centre of the first pixel being (0, 0)."""
    return torch.tensor([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])


def pair_names(folder: Path, root: Path) -> list[str]:
    """The names that an image, rgb/*.jpg, or a depth, depth/*.png, has; one without the other is an error when read."""
    images = files_in(expect_folder(folder / "rgb", "the folder of images", root), "*.jpg")
    depths = files_in(expect_folder(folder / "depth", "the folder of depths", root), "*.png")
    expect_some(len(images), "images rgb/*.jpg", folder)
    return sorted({path.stem for path in images + depths}, key=natural_key)
