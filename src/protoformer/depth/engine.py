"""Batched depth inference on frames of one size, at the working size of the network."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.depth.camera import Camera
from protoformer.errors import InputError
from protoformer.flow.engine import check_num_updates, flow_confidence
from protoformer.geometry.warps import Padding, limited_size, shrink, shrink_position
from protoformer.io.image_input import to_float
from protoformer.io.memory import describe_memory, free_bytes
from protoformer.models.heads.depth import CANONICAL_FOCAL, DEPTH_MIN_SIDE, DEPTH_STRIDES
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.prototyping import Prototypes
from protoformer.models.runtime import CudaGraph, ProgressCallback, normalize_images

WORKING_BYTES = 900
"""Bytes per pixel of the working size: the measured amount plus a margin."""
FRAME_BYTES = 60
"""Bytes of main memory per image pixel: image, depth and confidence at full size, and the drawn image."""
CONFIDENCE_TOLERANCE = 0.1
"""Relative depth error to which the confidence refers."""
MAX_BATCH_SIZE = 8
"""Frames in a batch on a GPU; a CPU is no faster with more than one."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Predicted depth of one image at the working size, on the CPU.

    Attributes:
        log: 1 x h x w, natural logarithm of depth in meters for the canonical focal length.
        log_scale: 1 x h x w, logarithm of the Laplace scale of the error of `log`.
        prototypes: prototypes of the image, per stage and block; empty if not requested.
    """

    log: Tensor
    log_scale: Tensor
    prototypes: tuple[tuple[Prototypes, ...], ...] = ()


class DepthEngine:
    """Runs a depth network on images of one size and camera.

    Args:
        network: depth network in eval mode.
        device: device of the network.
        size: (height, width) of the images.
        camera: camera of the images.
        num_updates: number of refinement updates; None uses the network's default.
        half: run matrix products in bfloat16.
        batch_size: batch size; None chooses it by device.
        mirrored: average with a horizontally flipped prediction (test-time augmentation).

    Attributes:
        size: (height, width) of the images.
        working: (height, width) at which the network runs.
        focal: focal length, pixels of the working size.
        batch_size: batch size.
    """

    def __init__(
        self,
        network: ProtoFormer,
        device: torch.device,
        size: tuple[int, int],
        camera: Camera,
        num_updates: int | None = None,
        half: bool = False,
        batch_size: int | None = None,
        mirrored: bool = False,
    ) -> None:
        check_num_updates(num_updates)
        self.size, self.working = size, limited_size(size, network.config.depth.max_pixels)
        (height, width), (working_height, working_width) = self.size, self.working
        self.focal = camera.focal * math.sqrt(working_height / height * working_width / width)
        x, y = camera.center
        center = (shrink_position(x, width, working_width), shrink_position(y, height, working_height))
        self._center = torch.tensor([center], dtype=torch.float32, device=device)
        self.batch_size = choose_batch_size(batch_size, device)
        self._network, self._device, self._num_updates, self._half = network, device, num_updates, half
        self._mirrored = mirrored
        self._run_batch: Callable[..., tuple[Tensor, ...]] = self._run
        if device.type == "cuda":
            self._run_batch = CudaGraph(self._run)
        check_memory(size, self.working, device, self.batch_size * (2 if mirrored else 1))

    def predict_frames(self, frames: Sequence[Tensor]) -> Iterator[Estimate]:
        """Predict the depth of frames, 3 x H x W each, uint8 or float in [0, 1]."""
        for first in range(0, len(frames), self.batch_size):
            images = self._stack_images(frames[first : first + self.batch_size])
            log, log_scale = self._run_batch(images, self._center.expand(len(images), 2))
            for output in zip(log.cpu(), log_scale.cpu(), strict=True):
                yield Estimate(*output)

    @torch.no_grad()
    def predict_frame(
        self, frame: Tensor, return_prototypes: bool = False, progress: ProgressCallback | None = None
    ) -> Estimate:
        """Predict the depth of one frame.

        Args:
            frame: 3 x H x W, uint8 or float in [0, 1].
            return_prototypes: return the prototypes of the frame.
            progress: called after every update.
        """
        (log,), (log_scale,), stages = self._forward(
            self._stack_images([frame]), self._center, return_prototypes, progress
        )
        first_prototypes = tuple(tuple(each.first(1).cpu() for each in stage) for stage in stages)
        return Estimate(log.cpu(), log_scale.cpu(), first_prototypes)

    def to_metric_log(self, estimate: Estimate) -> Tensor:
        """Convert an estimate of this engine to the natural logarithm of meters, 1 x h x w."""
        return estimate.log + math.log(self.focal / CANONICAL_FOCAL)

    def resize_frame(self, frame: Tensor) -> Tensor:
        """Resize a frame, 3 x H x W, uint8 or float in [0, 1], to the working size: 3 x h x w, float32."""
        return shrink(to_float(frame)[None], self.working)[0]

    def _stack_images(self, frames: Sequence[Tensor]) -> Tensor:
        """Stack frames as network input, B x 3 x h x w in [-1, 1]; channels last is faster on a CPU."""
        images = torch.stack([self.resize_frame(frame.to(self._device)) for frame in frames])
        images = normalize_images(images)
        return images.contiguous(memory_format=torch.channels_last) if self._device.type == "cpu" else images

    @torch.no_grad()
    def _run(self, images: Tensor, center: Tensor) -> tuple[Tensor, ...]:
        return self._forward(images, center)[:2]

    def _forward(
        self, images: Tensor, center: Tensor, return_prototypes: bool = False, progress: ProgressCallback | None = None
    ) -> tuple[Tensor, Tensor, tuple[tuple[Prototypes, ...], ...]]:
        """Return log depth, log scale and prototypes; those of flipped images come last."""
        if self._mirrored:
            images = torch.cat((images, images.flip(3)))
            center = torch.cat((center, torch.stack((self.working[1] - 1 - center[:, 0], center[:, 1]), dim=1)))
        with self._autocast():
            prediction = self._network.depth(
                images, center, self._num_updates, return_prototypes=return_prototypes, progress=progress
            )
        log, log_scale = prediction.log_depths[-1].float(), prediction.log_scales[-1].float()
        if self._mirrored:
            log, log_scale = ((plain + flipped.flip(3)) / 2 for plain, flipped in (log.chunk(2), log_scale.chunk(2)))
        return log, log_scale, prediction.prototypes

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)


def choose_batch_size(batch_size: int | None, device: torch.device) -> int:
    """Return a valid batch size; None chooses it by device."""
    if batch_size is not None and batch_size < 1:
        raise InputError(f"a batch size of {batch_size} is not possible; give a whole number, 1 or more.")
    return batch_size or (MAX_BATCH_SIZE if device.type == "cuda" else 1)


def depth_confidence(log_scale: Tensor) -> Tensor:
    """Return the probability that the depth error is below 10 %, given the log of the log depth's Laplace scale."""
    return flow_confidence(log_scale - math.log(math.log1p(CONFIDENCE_TOLERANCE)))


def enlarge_depth(field: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a map, 1 x h x w, bilinearly to (height, width) of the image: 1 x H x W."""
    if (field.shape[1], field.shape[2]) == size:
        return field
    return F.interpolate(field[None], size, mode="bilinear", align_corners=False)[0]


def check_memory(size: tuple[int, int], working: tuple[int, int], device: torch.device, batch_size: int = 1) -> None:
    """Check that inference on a batch of images of (height, width) at a working size fits into the free memory."""
    height, width = size
    padding = Padding.to_multiple(*working, DEPTH_STRIDES[0], DEPTH_MIN_SIDE)
    pixels = (padding.height + padding.bottom) * (padding.width + padding.right)
    needed = WORKING_BYTES * pixels * batch_size + (FRAME_BYTES * height * width if device.type == "cpu" else 0)
    free = free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"depth at {width}x{height} pixels takes about {describe_memory(needed)} of memory "
            f"and {describe_memory(free)} are free; make the images smaller or close other programs."
        )
