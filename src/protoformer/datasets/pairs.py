"""Base class of optical flow datasets, and helpers to build flow and depth samples from files."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from protoformer.datasets.tree import Dataset, expect_file, expect_files, expect_folder, files_in
from protoformer.errors import InputError
from protoformer.geometry.warps import inside_image, pixel_grid
from protoformer.io.arrays import FloatArray, SparseFlow, valid_flow
from protoformer.io.files import natural_key
from protoformer.io.float_formats import read_flo, read_pfm_flow
from protoformer.io.image import read_image
from protoformer.synthetic.samples import DepthSample, FlowPair, FlowSample


class FlowReader(Protocol):
    """Reads a flow file: (u right, v down) in pixels, and the valid mask."""

    def __call__(self, path: Path, /) -> SparseFlow: ...


@dataclass(frozen=True, kw_only=True)
class PairFiles:
    """Files of one pair; optional files are None where the dataset has none.

    Attributes:
        name: Name of the pair.
        first: First image.
        second: Second image.
        flow: Flow from the first to the second image; None if the ground truth is not public.
        occlusion: Mask, white where a pixel is occluded. Pixels that leave the image are added when it is read.
        valid: Mask, white where the flow is valid.
        invalid: Mask, white where the flow is not valid.
    """

    name: str
    first: Path
    second: Path
    flow: Path | None = None
    occlusion: Path | None = None
    valid: Path | None = None
    invalid: Path | None = None


class FlowDataset(Dataset[FlowPair]):
    """Image pairs with flow (`FlowSample`), or without (`FlowPair`) where the ground truth is not public.

    The constructor of a subclass calls `_set_pairs`.

    Attributes:
        read_flow: Reader of the flow files.
        pairs: Files of each pair.
    """

    read_flow: ClassVar[FlowReader]
    pairs: tuple[PairFiles, ...]

    def _set_pairs(self, pairs: Iterable[PairFiles]) -> None:
        self.pairs = tuple(pairs)
        self.names = tuple(pair.name for pair in self.pairs)

    def _read(self, index: int) -> FlowPair:
        pair = self.pairs[index]
        for path, what in (
            (pair.first, "first image"),
            (pair.second, "second image"),
            (pair.flow, "flow"),
            (pair.occlusion, "occlusion"),
            (pair.valid, "mask of valid pixels"),
            (pair.invalid, "mask of invalid pixels"),
        ):
            if path is not None:
                expect_file(path, f"the {what} of {pair.name}", self.root)
        return read_pair(pair, type(self).read_flow)


def read_pair(pair: PairFiles, read_flow: FlowReader) -> FlowPair:
    """Read a pair with its flow and masks, as far as they exist: a `FlowSample`, or a `FlowPair` without flow."""
    first = image_tensor(pair.first)
    size = (first.shape[2], first.shape[3])
    second = image_tensor(pair.second)
    _expect_size(second, size, pair.second, pair.first)
    if pair.flow is None:
        return FlowPair(first=first, second=second, names=(pair.name,))
    stored = read_flow(pair.flow)
    flow = torch.from_numpy(stored.flow).permute(2, 0, 1)[None].contiguous()
    _expect_size(flow, size, pair.flow, pair.first)
    valid = torch.from_numpy(stored.valid)[None, None].clone()
    if pair.valid is not None:
        valid &= _read_mask(pair.valid, size, pair.first)
    if pair.invalid is not None:
        valid &= ~_read_mask(pair.invalid, size, pair.first)
    flow = torch.where(valid, flow, 0.0)
    occlusion = None
    if pair.occlusion is not None:
        # Masks on disk, such as those of Sintel, need not mark pixels that leave the image; those of a sample do.
        leaves_image = valid & ~inside_image(pixel_grid(*size) + flow, *size)
        occlusion = _read_mask(pair.occlusion, size, pair.first) | leaves_image
    return FlowSample(
        first=first,
        second=second,
        flow=flow,
        valid=valid,
        occlusion=occlusion,
        names=(pair.name,),
    )


def image_tensor(path: Path) -> Tensor:
    """Read an image: 1 x 3 x H x W, float RGB in [0, 1]."""
    return torch.from_numpy(read_image(path)).permute(2, 0, 1)[None].contiguous()


def mask_tensor(path: Path) -> Tensor:
    """Read a binary mask: 1 x 1 x H x W, bool, True where the image is white."""
    return torch.from_numpy(read_image(path).max(axis=2) >= 0.5)[None, None]


def read_dense_flo(path: Path) -> SparseFlow:
    """Read a `.flo` file and its valid mask."""
    return _split_valid(read_flo(path))


def read_dense_pfm(path: Path) -> SparseFlow:
    """Read the first two channels of a `.pfm` file and their valid mask."""
    return _split_valid(read_pfm_flow(path))


def _split_valid(flow: FloatArray) -> SparseFlow:
    """Split an HxWx2 flow, unknown where it is not finite or beyond 1e9, into flow and valid mask."""
    valid = valid_flow(flow)
    return SparseFlow(np.where(valid[..., None], flow, np.float32(0)), valid)


def _read_mask(path: Path, size: tuple[int, int], image: Path) -> Tensor:
    mask = mask_tensor(path)
    _expect_size(mask, size, path, image)
    return mask


def _expect_size(tensor: Tensor, size: tuple[int, int], path: Path, image: Path) -> None:
    height, width = tensor.shape[2:]
    if (height, width) != size:
        raise InputError(
            f"{path} is {width}x{height} but {image} is {size[1]}x{size[0]}; the files of a pair must have one size: "
            "download or make them again."
        )


def depth_record(
    name: str,
    image: FloatArray,
    depth: FloatArray,
    intrinsics: Tensor | None,
    farthest: float = float("inf"),
) -> DepthSample:
    """Build a depth sample. Depth is valid where it is finite, positive and below `farthest`, and 0 elsewhere.

    `image` is H x W x 3 in [0, 1]; `depth` is H x W, in meters; `intrinsics` are 3 x 3, in pixels, or None.
    """
    if image.shape[:2] != depth.shape:
        raise InputError(
            f"the image of {name} is {image.shape[1]}x{image.shape[0]} but its depth is "
            f"{depth.shape[1]}x{depth.shape[0]}; download or copy both again."
        )
    meters = torch.from_numpy(np.ascontiguousarray(depth, dtype=np.float32))[None, None]
    valid = meters.isfinite() & (meters > 0) & (meters < farthest)
    return DepthSample(
        image=torch.from_numpy(image).permute(2, 0, 1)[None].contiguous(),
        depth=meters.where(valid, 0.0),
        valid=valid,
        intrinsics=None if intrinsics is None else intrinsics.float()[None],
        names=(name,),
    )


def pinhole(fx: float, fy: float, cx: float, cy: float) -> Tensor:
    """Return intrinsics, 3 x 3 in pixels, with the center of the first pixel at (0, 0)."""
    return torch.tensor([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])


def pair_names(folder: Path, root: Path) -> list[str]:
    """List the stems of rgb/*.jpg and depth/*.png; reading a sample fails if one of its two files is missing."""
    images = files_in(expect_folder(folder / "rgb", "the folder of images", root), "*.jpg")
    depths = files_in(expect_folder(folder / "depth", "the folder of depths", root), "*.png")
    expect_files(len(images), "images rgb/*.jpg", folder)
    return sorted({path.stem for path in images + depths}, key=natural_key)
