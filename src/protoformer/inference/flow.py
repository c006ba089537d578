"""Optical flow of images as people have them."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry import Padding, carry_forward, occlusion_by_consistency
from protoformer.inference.images import ImageLike, as_image
from protoformer.inference.memory import BYTES_PER_PIXEL, free_bytes
from protoformer.inference.results import FlowResult
from protoformer.model import FlowNetwork
from protoformer.model.flow import LEAST_SIDE
from protoformer.model.update import FACTOR

Progress = Callable[[int, int], None]
"""Called with how many updates are done, and of how many."""


class FlowModel:
    """A flow network on a device. Images go in as paths, arrays or tensors, of any size; a FlowResult comes out.

    network: the network; trained: whether its weights are, which every result repeats.
    """

    def __init__(self, network: FlowNetwork, trained: bool, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = network.eval().to(self.device)
        self.trained = trained

    @torch.inference_mode()
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
        if updates is not None and updates < 1:
            raise InputError(f"{updates} updates cannot be run; give 1 or more.")
        images = self._pair(first, second, pairs=2 if occlusion else 1)
        start = None if previous is None else self._start(previous, images)
        if occlusion:
            images = (torch.cat(images), torch.cat(images[::-1]))
            start = None if start is None else torch.cat((start, -start))
        with _told(self.network, updates, progress):
            predicted = self.network(
                *(2 * image - 1 for image in images),
                updates=updates,
                start=start,
                low_memory=low_memory,
                prototypes=prototypes,
            )
        flow = predicted.flows[-1]
        return FlowResult(
            flow=flow[0].cpu(),
            confidence=-torch.expm1(-torch.exp(-predicted.log_scales[-1][0])).cpu(),
            occlusion=occlusion_by_consistency(flow[:1], flow[1:])[0].cpu() if occlusion else None,
            prototypes=tuple(tuple(found.first(1).cpu() for found in stage) for stage in predicted.prototypes),
            trained=self.trained,
        )

    def _pair(self, first: ImageLike, second: ImageLike, pairs: int) -> tuple[Tensor, Tensor]:
        """Both images on the device, 1 x 3 x H x W, if they fit each other and the memory."""
        names = [_name(source, name) for source, name in ((first, "the first image"), (second, "the second image"))]
        one, two = as_image(first, names[0]), as_image(second, names[1])
        (height, width), other = one.shape[2:], two.shape[2:]
        if one.shape != two.shape:
            raise InputError(
                f"{names[0]} is {width}x{height} pixels and {names[1]} is {other[1]}x{other[0]}; "
                "flow needs two images of the same size, so scale or crop one of them."
            )
        padding = Padding.to_multiple(height, width, FACTOR, LEAST_SIDE)
        pixels = (height + padding.bottom) * (width + padding.right)
        needed, free = BYTES_PER_PIXEL * pixels * pairs, free_bytes(self.device)
        if free is not None and needed > free:
            raise InputError(
                f"flow at {width}x{height} pixels takes about {needed / 2**30:.1f} GiB of memory "
                f"and {free / 2**30:.1f} GiB are free; make the images smaller."
            )
        return one.to(self.device), two.to(self.device)

    def _start(self, previous: FlowResult, images: tuple[Tensor, Tensor]) -> Tensor:
        if previous.flow.shape[1:] != images[0].shape[2:]:
            raise InputError(
                f"the previous flow is of {previous.flow.shape[2]}x{previous.flow.shape[1]} pixels and the images are "
                f"{images[0].shape[3]}x{images[0].shape[2]}; start from a flow of the same size."
            )
        return carry_forward(previous.flow[None].to(self.device))


def _name(source: ImageLike, otherwise: str) -> str:
    return otherwise if isinstance(source, (Tensor, np.ndarray)) else str(source)


class _told:  # noqa: N801 - read as a word at its one use
    """While open, tells `progress` of every recurrent update of a network."""

    def __init__(self, network: FlowNetwork, updates: int | None, progress: Progress | None) -> None:
        self.update = network.decoder.update
        self.total = updates or network.config.updates
        self.progress = progress
        self.done = 0

    def __enter__(self) -> None:
        self.hook = self.update.register_forward_hook(self._count)

    def __exit__(self, *_: object) -> None:
        self.hook.remove()

    def _count(self, *_: object) -> None:
        self.done += 1
        if self.progress:
            self.progress(self.done, self.total)
