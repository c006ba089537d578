"""A depth network on frames of one size: shrunk to the size it works at, some at a time."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.depth.camera import Camera
from protoformer.errors import InputError
from protoformer.flow.engine import check_updates, flow_confidence
from protoformer.geometry.resizing import Padding, limited_size, shrink, shrink_position
from protoformer.io.image_input import to_float
from protoformer.io.memory import describe_memory, free_bytes
from protoformer.models.heads.depth import CANONICAL_FOCAL, LEAST_SIDE, STRIDES, DepthNetwork
from protoformer.models.heads.flow import normalize_images
from protoformer.models.prototyping import Prototypes
from protoformer.models.runtime import CudaGraph, ProgressCallback

WORKING_BYTES = 900
"""Memory that the network takes for each pixel it works on: what was seen, and some to spare."""
FRAME_BYTES = 60
"""Main memory for each pixel of an image: the image, its depth and confidence at full size, and the picture."""
RIGHT = 0.1
"""Share of the true depth within which a depth counts as right."""
MOST_AT_ONCE = 8
"""Frames in a batch on a GPU; a CPU is no faster with more than one."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """The depth of one image at the working size, on the CPU.

    log: 1 x h x w, natural logarithm of meters for a camera of the canonical focal length. log_scale: 1 x h x w, that
    of the Laplace scale of the error of `log`. prototypes: those of the image at the working size, if asked for.
    """

    log: Tensor
    log_scale: Tensor
    prototypes: tuple[tuple[Prototypes, ...], ...] = ()


class DepthEngine:
    """A network made ready for images of one (height, width), taken by one camera.

    working: the (height, width) it computes at. focal: of the camera, in pixels of that. batch: how many at once.
    mirrored: whether each is looked at in a mirror as well, and the mean taken.
    """

    def __init__(
        self,
        network: DepthNetwork,
        device: torch.device,
        size: tuple[int, int],
        camera: Camera,
        updates: int | None = None,
        half: bool = False,
        batch: int | None = None,
        mirrored: bool = False,
    ) -> None:
        check_updates(updates)
        if batch is not None and batch < 1:
            raise InputError(f"{batch} at a time cannot be computed; give a whole number, 1 or more.")
        self.size, self.working = size, limited_size(size, network.config.depth_pixels)
        (height, width), (low, narrow) = self.size, self.working
        self.focal = camera.focal * math.sqrt(low / height * narrow / width)
        x, y = camera.center
        center = (shrink_position(x, width, narrow), shrink_position(y, height, low))
        self._center = torch.tensor([center], dtype=torch.float32, device=device)
        self.batch = batch or (MOST_AT_ONCE if device.type == "cuda" else 1)
        self._network, self._device, self._updates, self._half = network, device, updates, half
        self._mirrored = mirrored
        self._compute: Callable[..., tuple[Tensor, ...]] = self._computed
        if device.type == "cuda":
            self._compute = CudaGraph(self._computed)
        check_memory(size, self.working, device, self.batch * (2 if mirrored else 1))

    def estimates(self, frames: Sequence[Tensor]) -> Iterator[Estimate]:
        """Of frames, 3 x H x W each, uint8 or float in [0, 1]."""
        for first in range(0, len(frames), self.batch):
            images = self._images(frames[first : first + self.batch])
            log, log_scale = self._compute(images, self._center.expand(len(images), 2))
            for one in zip(log.cpu(), log_scale.cpu(), strict=True):
                yield Estimate(*one)

    @torch.no_grad()
    def estimate(self, frame: Tensor, prototypes: bool = False, progress: ProgressCallback | None = None) -> Estimate:
        """Of one frame, with its prototypes, or with somebody who is told of every update."""
        (log,), (log_scale,), found = self._found(self._images([frame]), self._center, prototypes, progress)
        kept = tuple(tuple(each.first(1).cpu() for each in stage) for stage in found)
        return Estimate(log.cpu(), log_scale.cpu(), kept)

    def metric_log(self, estimate: Estimate) -> Tensor:
        """The natural logarithm of meters, 1 x h x w, of what this engine found."""
        return estimate.log + math.log(self.focal / CANONICAL_FOCAL)

    def seen(self, frame: Tensor) -> Tensor:
        """A frame, 3 x H x W, uint8 or float in [0, 1], as the network sees it: 3 x h x w, float32."""
        return shrink(to_float(frame)[None], self.working)[0]

    def _images(self, frames: Sequence[Tensor]) -> Tensor:
        """As the network takes them, B x 3 x h x w in [-1, 1]; a CPU is faster with channels last."""
        images = torch.stack([self.seen(frame.to(self._device)) for frame in frames])
        images = normalize_images(images)
        return images.contiguous(memory_format=torch.channels_last) if self._device.type == "cpu" else images

    @torch.no_grad()
    def _computed(self, images: Tensor, center: Tensor) -> tuple[Tensor, ...]:
        return self._found(images, center)[:2]

    def _found(
        self, images: Tensor, center: Tensor, prototypes: bool = False, progress: ProgressCallback | None = None
    ) -> tuple[Tensor, Tensor, tuple[tuple[Prototypes, ...], ...]]:
        """The depth of images and its scale, both logarithms, and the prototypes, of which mirrored ones come last."""
        if self._mirrored:
            images = torch.cat((images, images.flip(3)))
            center = torch.cat((center, torch.stack((self.working[1] - 1 - center[:, 0], center[:, 1]), dim=1)))
        with self._precision():
            found = self._network(images, center, self._updates, prototypes=prototypes, progress=progress)
        log, log_scale = found.logs[-1].float(), found.log_scales[-1].float()
        if self._mirrored:
            log, log_scale = ((each + reflected.flip(3)) / 2 for each, reflected in (log.chunk(2), log_scale.chunk(2)))
        return log, log_scale, found.prototypes

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)


def depth_confidence(log_scale: Tensor) -> Tensor:
    """How likely a depth is right to 10 %, in [0, 1], by the logarithm of the Laplace scale of its logarithm."""
    return flow_confidence(log_scale - math.log(math.log1p(RIGHT)))


def enlarge_depth(field: Tensor, size: tuple[int, int]) -> Tensor:
    """A map of the working size, 1 x h x w, at the size of the image: 1 x H x W, bilinear."""
    if (field.shape[1], field.shape[2]) == size:
        return field
    return F.interpolate(field[None], size, mode="bilinear", align_corners=False)[0]


def check_memory(size: tuple[int, int], working: tuple[int, int], device: torch.device, batch: int = 1) -> None:
    """Refuse images whose depth, computed at the working size, would not fit the memory, before any of it is taken."""
    height, width = size
    padding = Padding.to_multiple(*working, STRIDES[0], LEAST_SIDE)
    pixels = (padding.height + padding.bottom) * (padding.width + padding.right)
    needed = WORKING_BYTES * pixels * batch + (FRAME_BYTES * height * width if device.type == "cpu" else 0)
    free = free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"depth at {width}x{height} pixels takes about {describe_memory(needed)} of memory "
            f"and {describe_memory(free)} are free; make the images smaller or close other programs."
        )
