"""Tiled optical flow inference: each frame is encoded once, pairs are decoded in batches, and tiles are blended."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.flow.tiling import FlowPlan, Tile, TileBlender
from protoformer.geometry.warps import Padding, carry_forward, resize, resize_flow
from protoformer.io.image_input import to_float
from protoformer.models.heads.flow import FlowPrediction
from protoformer.models.heads.update import FLOW_STRIDE
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import CudaGraph, ProgressCallback, normalize_images

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class EncodedFrame:
    """A frame at the working size and its encoder features, on the device.

    Attributes:
        pixels: 3 x h x w, uint8 or float in [0, 1].
        features: features of n tiles, n x C x (tile height / 8) x (tile width / 8).
    """

    pixels: Tensor
    features: Tensor


class FlowEngine:
    """Runs a flow network according to a `FlowPlan`.

    Args:
        network: flow network in eval mode.
        device: device of the network.
        plan: working size, tiles, batch size and memory mode.
        num_updates: number of refinement updates; None uses the network's default.
        half: run matrix products in bfloat16.
    """

    def __init__(
        self,
        network: ProtoFormer,
        device: torch.device,
        plan: FlowPlan,
        num_updates: int | None = None,
        half: bool = False,
    ) -> None:
        check_num_updates(num_updates)
        self.plan = plan
        self._network, self._device, self._num_updates, self._half = network, device, num_updates, half
        self._tiles = plan.tiles
        self._encode: Callable[..., tuple[Tensor, ...]] = self._run_encoder
        self._decode: Callable[..., tuple[Tensor, ...]] = self._run_decoder
        if device.type == "cuda":
            self._encode, self._decode = CudaGraph(self._run_encoder), CudaGraph(self._run_decoder)

    def encode(self, frames: Sequence[Tensor]) -> list[EncodedFrame]:
        """Encode frames, 3 x H x W each, uint8 or float in [0, 1]."""
        frames = [self._to_working_size(frame.to(self._device)) for frame in frames]
        crops = [(frame, tile) for frame in frames for tile in self._tiles]
        features = torch.cat(
            [self._encode(self._crop_images(chunk))[0] for chunk in _chunks(crops, self.plan.batch_size)]
        )
        parts = features.split(len(self._tiles))
        return [EncodedFrame(frame, part) for frame, part in zip(frames, parts, strict=True)]

    def flows(
        self,
        pairs: Sequence[tuple[EncodedFrame, EncodedFrame]],
        init_flow: Tensor | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[Tensor]:
        """Predict the flow of every pair.

        Args:
            pairs: encoded first and second frames.
            init_flow: initial flow of all pairs, 1 x 2 x h x w, pixels at the working size.
            progress: called after every tile with (done, total).

        Yields:
            Flow in pixels and confidence in [0, 1], concatenated: 3 x H x W, on the CPU.
        """
        count, blender = len(self._tiles), TileBlender((0, 0))
        jobs = [(pair, index) for pair in range(len(pairs)) for index in range(count)]
        done = 0
        for chunk in _chunks(jobs, self.plan.batch_size):
            first = self._crop_images([(pairs[pair][0].pixels, self._tiles[index]) for pair, index in chunk])
            features1, features2 = (
                torch.stack([pairs[pair][which].features[index] for pair, index in chunk]) for which in (0, 1)
            )
            init_flows = (
                [] if init_flow is None else [torch.cat([init_flow[:, :, *self._tiles[index]] for _, index in chunk])]
            )
            (output,) = self._decode(first, features1, features2, *init_flows)
            if count == 1:
                output = resize_flow(output, self.plan.size)
            for (_, index), part in zip(chunk, output.cpu(), strict=True):
                done += 1
                if progress:
                    progress(done, len(jobs))
                if count == 1:
                    yield part
                    continue
                if index == 0:
                    blender = TileBlender(self.plan.working)
                blender.add(self._tiles[index], part)
                if index == count - 1:
                    yield resize_flow(blender.merge()[None], self.plan.size)[0]

    def _to_working_size(self, frame: Tensor) -> Tensor:
        """Resize a frame, 3 x H x W, to the working size."""
        return frame if self.plan.working == self.plan.size else resize(to_float(frame)[None], self.plan.working)[0]

    def _crop_images(self, crops: Sequence[tuple[Tensor, Tile]]) -> Tensor:
        """Stack tiles of frames as network input, B x 3 x h x w in [-1, 1]; channels last is faster on a CPU."""
        images = torch.stack([frame[:, *tile] for frame, tile in crops])
        images = normalize_images(to_float(images))
        return images.contiguous(memory_format=torch.channels_last) if self._device.type == "cpu" else images

    @torch.no_grad()
    def _run_encoder(self, images: Tensor) -> tuple[Tensor, ...]:
        with self._autocast():
            return (self._network.encode_flow_frame(images),)

    @torch.no_grad()
    def _run_decoder(
        self, first: Tensor, features1: Tensor, features2: Tensor, init_flow: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        with self._autocast():
            prediction = self._network.decode_flow(
                first, features1, features2, self._num_updates, init_flow=init_flow, low_memory=self.plan.low_memory
            )
        return (predict_flow(prediction, self.plan.zoom),)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)


def predict_flow(prediction: FlowPrediction, zoom: float = 1.0) -> Tensor:
    """Concatenate the last flow, pixels at the working size, and its confidence in [0, 1]: B x 3 x h x w.

    `zoom` is the working size divided by the image size; the confidence refers to pixels of the image.
    """
    flow, log_scale = prediction.flows[-1].float(), prediction.log_scales[-1].float()
    return torch.cat((flow, flow_confidence(log_scale - math.log(zoom))), dim=1)


def flow_confidence(log_scale: Tensor) -> Tensor:
    """Return the probability that a Laplace-distributed error is below one pixel, given the logarithm of its scale."""
    return -torch.expm1(-torch.exp(-log_scale))


def check_num_updates(num_updates: int | None) -> None:
    """Validate a number of refinement updates; None means the network's default."""
    if num_updates is not None and (not isinstance(num_updates, int) or num_updates < 1):
        raise InputError(f"{num_updates!r} updates cannot be run; give a whole number, 1 or more.")


@torch.no_grad()
def propagate_flow(flow: Tensor, working: tuple[int, int], device: torch.device, back: bool = False) -> Tensor:
    """Forward-warp a flow, 2 x H x W, pixels, to the next frame pair at a working size, to initialize its estimate.

    1 x 2 x h x w, or with `back` 2 x 2 x h x w: also the initial backward flow.
    """
    flow = resize_flow(flow[None].to(device), working)
    # The network refines flow at 1/8 of the image size; warping there takes 64 times fewer vectors.
    padding = Padding.to_multiple(*working, FLOW_STRIDE)
    carried = carry_forward(F.avg_pool2d(padding.pad(flow), FLOW_STRIDE) / FLOW_STRIDE)
    init_flow = torch.cat((carried, -carry_forward(carried))) if back else carried
    return padding.crop(F.interpolate(FLOW_STRIDE * init_flow, scale_factor=FLOW_STRIDE, mode="nearest"))


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[index : index + size] for index in range(0, len(items), size))
