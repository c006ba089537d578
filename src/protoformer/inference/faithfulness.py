"""Whether prototypes are what an estimate rests on: take one out, and see where the flow changes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.inference.flow import FlowModel
from protoformer.inference.images import ImageLike, image_pair
from protoformer.inference.prototype_groups import at_pixels, cells_of
from protoformer.inference.prototype_video import checked_layer
from protoformer.model.encoder import STRIDES
from protoformer.model.flow import normalised
from protoformer.model.flow_decoder import Progress
from protoformer.model.tracing import mixer_of, without


@dataclass(frozen=True)
class Removal:
    """What one prototype less does to a flow.

    prototype: its number. share: of the image's pixels that it had. inside, outside: how much the flow of its pixels,
    and of all others, changes on average, pixels.
    """

    prototype: int
    share: float
    inside: float
    outside: float

    @property
    def ratio(self) -> float:
        """How many times more the flow changes inside than outside."""
        return self.inside / max(self.outside, 1e-9)


@torch.no_grad()
def removals(
    model: FlowModel,
    first: ImageLike,
    second: ImageLike,
    *,
    layer: str | None = None,
    count: int = 5,
    updates: int | None = None,
    progress: Progress | None = None,
) -> tuple[Removal, ...]:
    """Take the largest `count` prototypes of the first image out of a layer, one at a time, and estimate the flow anew.

    The pixels of the one that is gone go to their next nearest. layer: stage and block, such as "2.1"; None: the last.
    A prototype that has every pixel, and so no outside, is left out.
    """
    pair = image_pair(first, second)
    images = [normalised(image.to(model.device)) for image in pair]
    stage, block = checked_layer(model.network.config, layer)
    before = model.network(*images, updates=updates, prototypes=True)
    size = (images[0].shape[2], images[0].shape[3])
    cells = cells_of(before.prototypes[stage - 1][block - 1], size, STRIDES[stage - 1])
    labels = at_pixels(cells, size, size, STRIDES[stage - 1])
    largest = torch.bincount(labels.flatten()).argsort(descending=True, stable=True)[:count].tolist()
    found = []
    for done, prototype in enumerate(largest, 1):
        with without(mixer_of(model.network.features, stage, block), prototype):
            after: Tensor = model.network(*images, updates=updates).flows[-1]
        change = (after - before.flows[-1]).norm(dim=1)[0].cpu()
        ours = labels == prototype
        if bool(ours.any()) and not bool(ours.all()):
            share = float(ours.float().mean())
            found.append(Removal(prototype, share, float(change[ours].mean()), float(change[~ours].mean())))
        if progress:
            progress(done, len(largest))
    return tuple(found)
