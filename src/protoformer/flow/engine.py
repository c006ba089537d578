"""The flow of pairs of frames by a plan: each frame is encoded once, in windows, and the results are put together."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.flow.tiling import FlowPlan, Tile, TileBlender
from protoformer.geometry.resizing import Padding, resize, resize_flow
from protoformer.geometry.warps import carry_forward
from protoformer.io.image_input import to_float
from protoformer.models.heads.flow import FlowNetwork, FlowPrediction, normalize_images
from protoformer.models.heads.update import FACTOR
from protoformer.models.runtime import CudaGraph, ProgressCallback

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class EncodedFrame:
    """A frame as the network sees it, on the device.

    pixels: 3 x h x w, uint8 or float in [0, 1]; features: of n windows, n x C x their sides / 8.
    """

    pixels: Tensor
    features: Tensor


class TiledFlow:
    """A network that follows a plan."""

    def __init__(
        self, network: FlowNetwork, device: torch.device, plan: FlowPlan, updates: int | None = None, half: bool = False
    ) -> None:
        check_updates(updates)
        self.plan = plan
        self._network, self._device, self._updates, self._half = network, device, updates, half
        self._windows = plan.windows
        self._encode: Callable[..., tuple[Tensor, ...]] = self._encoded
        self._decode: Callable[..., tuple[Tensor, ...]] = self._decoded
        if device.type == "cuda":
            self._encode, self._decode = CudaGraph(self._encoded), CudaGraph(self._decoded)

    def encode(self, frames: Sequence[Tensor]) -> list[EncodedFrame]:
        """Frames, 3 x H x W each, uint8 or float in [0, 1]."""
        frames = [self._seen(frame.to(self._device)) for frame in frames]
        cuts = [(frame, window) for frame in frames for window in self._windows]
        features = torch.cat([self._encode(self._images(some))[0] for some in _chunks(cuts, self.plan.batch)])
        parts = features.split(len(self._windows))
        return [EncodedFrame(frame, part) for frame, part in zip(frames, parts, strict=True)]

    def flows(
        self,
        pairs: Sequence[tuple[EncodedFrame, EncodedFrame]],
        start: Tensor | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[Tensor]:
        """The flow of every pair, in pixels, and below it the confidence in [0, 1]: 3 x H x W, on the CPU.

        start: 1 x 2 x h x w, pixels of the frames as the network sees them, a flow for every pair to be refined from.
        progress: told of windows.
        """
        count, blend = len(self._windows), TileBlender((0, 0))
        places = [(pair, index) for pair in range(len(pairs)) for index in range(count)]
        done = 0
        for some in _chunks(places, self.plan.batch):
            first = self._images([(pairs[pair][0].pixels, self._windows[index]) for pair, index in some])
            ours, theirs = (
                torch.stack([pairs[pair][which].features[index] for pair, index in some]) for which in (0, 1)
            )
            starts = [] if start is None else [torch.cat([start[:, :, *self._windows[index]] for _, index in some])]
            (found,) = self._decode(first, ours, theirs, *starts)
            if count == 1:
                found = resize_flow(found, self.plan.size)
            for (_, index), part in zip(some, found.cpu(), strict=True):
                done += 1
                if progress:
                    progress(done, len(places))
                if count == 1:
                    yield part
                    continue
                if index == 0:
                    blend = TileBlender(self.plan.seen)
                blend.add(self._windows[index], part)
                if index == count - 1:
                    yield resize_flow(blend.whole()[None], self.plan.size)[0]

    def _seen(self, frame: Tensor) -> Tensor:
        """A frame, 3 x H x W, as the network sees it."""
        return frame if self.plan.seen == self.plan.size else resize(to_float(frame)[None], self.plan.seen)[0]

    def _images(self, cuts: Sequence[tuple[Tensor, Tile]]) -> Tensor:
        """Windows of frames as the network takes them, B x 3 x h x w in [-1, 1]; a CPU is faster with channels last."""
        images = torch.stack([frame[:, *window] for frame, window in cuts])
        images = normalize_images(to_float(images))
        return images.contiguous(memory_format=torch.channels_last) if self._device.type == "cpu" else images

    @torch.no_grad()
    def _encoded(self, images: Tensor) -> tuple[Tensor, ...]:
        with self._precision():
            return (self._network.encode(images),)

    @torch.no_grad()
    def _decoded(self, first: Tensor, ours: Tensor, theirs: Tensor, start: Tensor | None = None) -> tuple[Tensor, ...]:
        with self._precision():
            found = self._network.decode(first, ours, theirs, self._updates, start, low_memory=self.plan.low_memory)
        return (predict_flow(found, self.plan.zoom),)

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._half)


def predict_flow(prediction: FlowPrediction, zoom: float = 1.0) -> Tensor:
    """The last flow, pixels as the network sees them, and below it the confidence in [0, 1]: B x 3 x h x w.

    zoom: how many of these pixels a pixel of the image is wide, to which the confidence refers.
    """
    flow, log_scale = prediction.flows[-1].float(), prediction.log_scales[-1].float()
    return torch.cat((flow, flow_confidence(log_scale - math.log(zoom))), dim=1)


def flow_confidence(log_scale: Tensor) -> Tensor:
    """How likely an error is below a pixel, in [0, 1], if it has a Laplace distribution of this scale (logarithm)."""
    return -torch.expm1(-torch.exp(-log_scale))


def check_updates(updates: int | None) -> None:
    """Refuse what cannot be a number of updates; None is as many as the model was made for."""
    if updates is not None and (not isinstance(updates, int) or updates < 1):
        raise InputError(f"{updates!r} updates cannot be run; give a whole number, 1 or more.")


@torch.no_grad()
def propagate_flow(flow: Tensor, seen: tuple[int, int], device: torch.device, back: bool = False) -> Tensor:
    """A flow, 2 x H x W, carried to the next pair, and with `back` the flow back as a second one.

    seen: the (h, w) at which the network sees the pair; returns 1 x 2 x h x w, in pixels of that, or two of them.
    """
    flow = resize_flow(flow[None].to(device), seen)
    # The network refines a flow at 1/8 of the image, so that is where it is carried: 64 times fewer vectors.
    padding = Padding.to_multiple(*seen, FACTOR)
    carried = carry_forward(F.avg_pool2d(padding.pad(flow), FACTOR) / FACTOR)
    starts = torch.cat((carried, -carry_forward(carried))) if back else carried
    return padding.crop(F.interpolate(FACTOR * starts, scale_factor=FACTOR, mode="nearest"))


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[place : place + size] for place in range(0, len(items), size))
