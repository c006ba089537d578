"""Pairs of images and the files of their motion: what all datasets of flow share."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protoformer.data.tree import Dataset, expect_file
from protoformer.errors import InputError
from protoformer.files import SparseFlow, known_flow, read_flo, read_image, read_pfm_flow
from protoformer.geometry import pixel_grid
from protoformer.geometry.warps import inside
from protoformer.world.sample import FlowPair, FlowSample


class FlowReader(Protocol):
    """Reads a file of flow: (u right, v down) in pixels, and where it is known."""

    def __call__(self, path: Path, /) -> SparseFlow: ...


@dataclass(frozen=True, kw_only=True)
class PairFiles:
    """Where one pair lies.

    flow: None where the truth is not public. occlusion: white where a pixel is hidden; those that leave the image are
    added when it is read. valid and invalid: white where the flow is to be trusted, and where it is not; each None
    where the dataset has none.
    """

    name: str
    first: Path
    second: Path
    flow: Path | None = None
    occlusion: Path | None = None
    valid: Path | None = None
    invalid: Path | None = None


class FlowDataset(Dataset[FlowPair]):
    """Pairs of images with their motion (`FlowSample`), or without (`FlowPair`) where the truth is not public."""

    read_flow: ClassVar[FlowReader]
    pairs: tuple[PairFiles, ...]

    def __init__(self, root: str | os.PathLike[str], split: str, pairs: Sequence[PairFiles]) -> None:
        super().__init__(root, split)
        self.pairs = tuple(pairs)
        self.names = tuple(pair.name for pair in pairs)

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
    """Read a pair and whatever is known of its motion; all its files must have one size."""
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
        valid &= _mask(pair.valid, size, pair.first)
    if pair.invalid is not None:
        valid &= ~_mask(pair.invalid, size, pair.first)
    flow = torch.where(valid, flow, 0.0)
    occlusion = None
    if pair.occlusion is not None:
        # Masks on disk need not mark what leaves the image, such as Sintel's, but the record's do.
        leaves = valid & ~inside(pixel_grid(*size) + flow, *size)
        occlusion = _mask(pair.occlusion, size, pair.first) | leaves
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
    """Read a black and white image: 1 x 1 x H x W, bool, True where it is white."""
    return torch.from_numpy(read_image(path).max(axis=2) >= 0.5)[None, None]


def read_dense_flo(path: Path) -> SparseFlow:
    """Read a `.flo` file and the places where it holds motion."""
    return _known_parts(read_flo(path))


def read_dense_pfm(path: Path) -> SparseFlow:
    """Read the first two channels of a `.pfm` file and the places where they hold motion."""
    return _known_parts(read_pfm_flow(path))


def _known_parts(flow: npt.NDArray[np.float32]) -> SparseFlow:
    """Take apart an HxWx2 flow that marks the unknown by values that are not finite or beyond 1e9."""
    valid = known_flow(flow)
    return SparseFlow(np.where(valid[..., None], flow, np.float32(0)), valid)


def _mask(path: Path, size: tuple[int, int], image: Path) -> Tensor:
    mask = mask_tensor(path)
    _expect_size(mask, size, path, image)
    return mask


def _expect_size(tensor: Tensor, size: tuple[int, int], path: Path, image: Path) -> None:
    height, width = tensor.shape[2:]
    if (height, width) != size:
        raise InputError(
            f"{path} is {width}x{height} but {image} is {size[1]}x{size[0]}; a pair and its motion have one size: "
            "download or make them again."
        )
