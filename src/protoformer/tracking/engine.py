"""The tracking network at work on frames: what all trackers of a model share."""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from protoformer.geometry.boxes import Crops
from protoformer.models.heads.flow import normalize_images
from protoformer.models.heads.tracking import Template, TrackNetwork
from protoformer.models.runtime import CudaGraph, Tensors

THINNED = 8
"""Of the rows and columns of a frame, one in so many tells its mean color."""


class TrackingEngine:
    """A network on its device, in one precision. Threads may share it: they take turns.

    half: compute products in bfloat16. On a GPU the search is recorded once for every number of targets.
    """

    def __init__(self, network: TrackNetwork, device: torch.device, half: bool) -> None:
        self.config, self._network, self._device, self._half = network.config, network, device, half
        self._lock = Lock()
        located: Callable[..., Tensors] = partial(_located, network, device.type, half)
        self._locate = CudaGraph(located) if device.type == "cuda" else located

    def __getstate__(self) -> dict[str, Any]:
        """What the engine is built from: locks and CUDA graphs belong to one process and are made anew in a copy."""
        return {"network": self._network, "device": self._device, "half": self._half}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TrackingEngine.__init__(self, **state)

    @torch.no_grad()
    def embed(self, pixels: Tensor, boxes: Tensor) -> Tensors:
        """What is kept of targets. pixels: 3 x H x W of their frame; boxes: N x 4, pixels of it, on the CPU."""
        factor = self.config.surroundings * self.config.reference_side / self.config.search_side
        crops = Crops.around(boxes, factor, self.config.reference_side)
        with self._lock, torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            template = self._network.embed(self._cut(pixels, crops), crops.boxes_in(boxes).to(self._device))
        return template.tokens, template.parts, template.summary

    @torch.no_grad()
    def locate(
        self, pixels: Tensor, crops: Crops, expected: Tensor, firmness: Tensor, template: Tensors
    ) -> tuple[Tensor, Tensor]:
        """Look into crops of a frame, 3 x H x W, for targets that `embed` gave: boxes, N x 4, pixels of the frame, and
        scores, N, on the CPU.

        expected: N x 4, where they are thought to be, pixels of the frame; firmness: N, how firmly.
        """
        thought = crops.boxes_in(expected).to(self._device)
        with self._lock:
            boxes, scores = self._locate(self._cut(pixels, crops), thought, firmness.to(self._device), *template)
            return crops.boxes_out(boxes.cpu()), scores.cpu()

    def _cut(self, pixels: Tensor, crops: Crops) -> Tensor:
        """Crops of one frame as the network takes them, on the device."""
        span = 255.0 if pixels.dtype == torch.uint8 else 1.0
        fill = (pixels[:, ::THINNED, ::THINNED].float() / span).mean(dim=(1, 2))[None]
        with torch.autocast(self._device.type, enabled=False):
            pieces = [
                _piece(pixels, Crops(corner[None], side[None], crops.size), fill, self._device, span)
                for corner, side in zip(crops.corners, crops.sides, strict=True)
            ]
            images = normalize_images(torch.cat(pieces))
        # A CPU is faster with channels last.
        return images.contiguous(memory_format=torch.channels_last) if self._device.type == "cpu" else images


@torch.no_grad()
def _located(
    network: TrackNetwork,
    device: str,
    half: bool,
    search: Tensor,
    expected: Tensor,
    firmness: Tensor,
    *template: Tensor,
) -> Tensors:
    """Boxes, search pixels, N x 4, and scores, N."""
    with torch.autocast(device, torch.bfloat16, enabled=half):
        found = network.locate(Template(*template), search, expected, firmness)
    return found.boxes[-1].float(), found.score_logits.float().sigmoid()


def _piece(pixels: Tensor, crop: Crops, fill: Tensor, device: torch.device, span: float = 1.0) -> Tensor:
    """One crop, 1 x 3 x S x S, of pixels / span, of which only the part of the frame is read that it shows."""
    (x, y), side = crop.corners[0].tolist(), float(crop.sides)
    left, top = max(0, int(x) - 2), max(0, int(y) - 2)
    right, bottom = max(left + 1, int(x + side) + 3), max(top + 1, int(y + side) + 3)
    part = pixels[:, top:bottom, left:right][None].to(device).float() / span
    moved = Crops((crop.corners - torch.tensor([left, top])).to(device), crop.sides.to(device), crop.size)
    return moved.cut(part, fill.to(device))
