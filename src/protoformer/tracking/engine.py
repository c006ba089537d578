"""Tracking network inference on crops of frames, shared by all trackers of a predictor."""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from protoformer.geometry.regions import Crops
from protoformer.models.heads.tracking import Template
from protoformer.models.protoformer import ProtoFormer
from protoformer.models.runtime import CudaGraph, Tensors, normalize_images

FILL_STRIDE = 8
"""Row and column stride with which the mean color of a frame, used as padding, is estimated."""


class TrackingEngine:
    """A tracking network on its device, in one precision.

    Threads may share an engine; a lock serializes their calls. On a GPU the search is captured as one CUDA graph per
    number of search regions.

    Attributes:
        config: Configuration of the network.
    """

    def __init__(self, network: ProtoFormer, device: torch.device, half: bool) -> None:
        """Prepare a network, already on the device, for inference; `half` computes products in bfloat16."""
        self.config, self._network, self._device, self._half = network.config, network, device, half
        self._lock = Lock()
        locate: Callable[..., Tensors] = partial(_locate, network, device.type, half)
        self._locate = CudaGraph(locate) if device.type == "cuda" else locate

    def __getstate__(self) -> dict[str, Any]:
        """Return the constructor arguments; locks and CUDA graphs belong to one process and are rebuilt in a copy."""
        return {"network": self._network, "device": self._device, "half": self._half}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TrackingEngine.__init__(self, **state)

    @torch.no_grad()
    def embed(self, pixels: Tensor, boxes: Tensor) -> Tensors:
        """Embed the targets in boxes, N x 4 (x, y, w, h) on the CPU, of a frame, 3 x H x W.

        Returns tokens, parts and summary of the template, each with N rows, on the device.
        """
        factor = (
            self.config.tracking.search_scale * self.config.tracking.template_size / self.config.tracking.search_size
        )
        crops = Crops.around(boxes, factor, self.config.tracking.template_size)
        with self._lock, torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            template = self._network.embed_target(self._crop(pixels, crops), crops.boxes_in(boxes).to(self._device))
        return template.tokens, template.parts, template.summary

    @torch.no_grad()
    def locate(
        self, pixels: Tensor, crops: Crops, expected: Tensor, prior_strength: Tensor, template: Tensors
    ) -> tuple[Tensor, Tensor]:
        """Locate N targets in their search regions of a frame, 3 x H x W.

        `expected` are the expected boxes, N x 4, pixels, and `prior_strength`, N, the strength of the prior at them;
        `template` is as returned by `embed`. Returns boxes, N x 4, pixels of the frame, and scores in [0, 1], N, on the
        CPU.
        """
        prior = crops.boxes_in(expected).to(self._device)
        with self._lock:
            boxes, scores = self._locate(self._crop(pixels, crops), prior, prior_strength.to(self._device), *template)
            return crops.boxes_out(boxes.cpu()), scores.cpu()

    def _crop(self, pixels: Tensor, crops: Crops) -> Tensor:
        """Cut normalized crops of one frame: N x 3 x S x S, on the device."""
        max_value = 255.0 if pixels.dtype == torch.uint8 else 1.0
        fill = (pixels[:, ::FILL_STRIDE, ::FILL_STRIDE].float() / max_value).mean(dim=(1, 2))[None]
        with torch.autocast(self._device.type, enabled=False):
            patches = [
                _cut_patch(pixels, Crops(corner[None], side[None], crops.size), fill, self._device, max_value)
                for corner, side in zip(crops.corners, crops.sides, strict=True)
            ]
            images = normalize_images(torch.cat(patches))
        # Convolutions on a CPU are faster with channels last.
        return images.contiguous(memory_format=torch.channels_last) if self._device.type == "cpu" else images


@torch.no_grad()
def _locate(
    network: ProtoFormer,
    device: str,
    half: bool,
    search: Tensor,
    prior: Tensor,
    prior_strength: Tensor,
    *template: Tensor,
) -> Tensors:
    """Run the network: boxes, N x 4, in pixels of the search crop, and scores, N."""
    with torch.autocast(device, torch.bfloat16, enabled=half):
        prediction = network.locate_target(Template(*template), search, prior, prior_strength)
    return prediction.boxes[-1].float(), prediction.score_logits.float().sigmoid()


def _cut_patch(pixels: Tensor, crop: Crops, fill: Tensor, device: torch.device, max_value: float = 1.0) -> Tensor:
    """Cut one crop, 1 x 3 x S x S, of pixels / max_value; only the covered part of the frame goes to the device."""
    (x, y), side = crop.corners[0].tolist(), float(crop.sides)
    left, top = max(0, int(x) - 2), max(0, int(y) - 2)
    right, bottom = max(left + 1, int(x + side) + 3), max(top + 1, int(y + side) + 3)
    part = pixels[:, top:bottom, left:right][None].to(device).float() / max_value
    shifted = Crops((crop.corners - torch.tensor([left, top])).to(device), crop.sides.to(device), crop.size)
    return shifted.cut(part, fill.to(device))
