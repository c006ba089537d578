"""Optical flow of images as people have them."""

import os

import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry import Padding, carry_forward, occlusion_by_consistency
from protoformer.inference.images import ImageLike, image_pair
from protoformer.inference.memory import BYTES_PER_PIXEL, free_bytes
from protoformer.inference.results import FlowResult
from protoformer.inference.weights import save_weights
from protoformer.model import FlowNetwork
from protoformer.model.flow import LEAST_SIDE, normalised
from protoformer.model.flow_decoder import Progress
from protoformer.model.update import FACTOR


def confidence_of(log_scale: Tensor) -> Tensor:
    """How likely an error is below a pixel, in [0, 1], if it has a Laplace distribution of this scale (logarithm)."""
    return -torch.expm1(-torch.exp(-log_scale))


class FlowModel:
    """A flow network on a device. Images go in as paths, arrays or tensors, of any size; a FlowResult comes out.

    network: the network; trained: whether its weights are, which every result repeats.
    """

    def __init__(self, network: FlowNetwork, trained: bool, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained

    @torch.no_grad()
    def flow(
        self,
        first: ImageLike,
        second: ImageLike,
        *,
        updates: int | None = None,
        occlusion: bool = False,
        prototypes: bool = False,
        previous: FlowResult | None = None,
        low_memory: bool | None = None,
        progress: Progress | None = None,
    ) -> FlowResult:
        """Motion of every pixel from the first image to the second.

        updates: refinements; more are slower and, up to a point, better. occlusion: find what the second image does not
        show, by estimating the flow back as well. prototypes: return those of the first image. previous: the result for
        the pair before, in a video; the estimate then starts from it. low_memory: do not store all pairs of costs
        (None: decide by size). progress: told of every update.
        """
        if updates is not None and (not isinstance(updates, int) or updates < 1):
            raise InputError(f"{updates!r} updates cannot be run; give a whole number, 1 or more.")
        images = image_pair(first, second)
        self._check_memory(images[0], pairs=2 if occlusion else 1)
        images = (images[0].to(self.device), images[1].to(self.device))
        start = None if previous is None else self._start(previous, images[0], back=occlusion)
        if occlusion:
            images = (torch.cat(images), torch.cat(images[::-1]))
        predicted = self.network(
            *(normalised(image) for image in images),
            updates=updates,
            start=start,
            low_memory=low_memory,
            prototypes=prototypes,
            progress=progress,
        )
        flow = predicted.flows[-1]
        return FlowResult(
            flow=flow[0].cpu(),
            confidence=confidence_of(predicted.log_scales[-1][0]).cpu(),
            occlusion=occlusion_by_consistency(flow[:1], flow[1:])[0].cpu() if occlusion else None,
            prototypes=tuple(tuple(found.first(1).cpu() for found in stage) for stage in predicted.prototypes),
            trained=self.trained,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights to a .safetensors file that `load` reads, whole or not at all."""
        save_weights(self.network, path, trained=self.trained)

    def _check_memory(self, image: Tensor, pairs: int) -> None:
        """Refuse images (1 x 3 x H x W) whose flow would not fit the memory, before any of it is taken."""
        height, width = image.shape[2:]
        padding = Padding.to_multiple(height, width, FACTOR, LEAST_SIDE)
        pixels = (height + padding.bottom) * (width + padding.right)
        needed = BYTES_PER_PIXEL[self.network.config.decoder] * pixels * pairs
        free = free_bytes(self.device)
        if free is not None and needed > free:
            raise InputError(
                f"flow at {width}x{height} pixels takes about {needed / 2**30:.1f} GiB of memory "
                f"and {free / 2**30:.1f} GiB are free; make the images smaller."
            )

    def _start(self, previous: FlowResult, image: Tensor, back: bool) -> Tensor:
        """The previous flow carried to this pair, 1 x 2 x H x W, and with `back` the flow back as a second one."""
        height, width = image.shape[2:]
        if previous.flow.shape[1:] != image.shape[2:]:
            raise InputError(
                f"the previous flow is of {previous.flow.shape[2]}x{previous.flow.shape[1]} pixels and the images are "
                f"{width}x{height}; start from a flow of the same size."
            )
        # The network refines a flow at 1/8 of the image, so that is where it is carried: 64 times fewer vectors.
        padding = Padding.to_multiple(height, width, FACTOR)
        carried = carry_forward(F.avg_pool2d(padding.pad(previous.flow[None].to(self.device)), FACTOR) / FACTOR)
        starts = torch.cat((carried, -carry_forward(carried))) if back else carried
        return padding.crop(F.interpolate(FACTOR * starts, scale_factor=FACTOR, mode="nearest"))
