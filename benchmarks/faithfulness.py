"""Whether prototypes are what an estimate rests on: take one out, and see where the flow changes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.explain.groups import at_pixels, group_cells
from protoformer.explain.tracing import layer_mixer, without_prototype
from protoformer.explain.video import check_layer
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.image_input import ImageLike, image_pair
from protoformer.models.encoder import STRIDES
from protoformer.models.heads.flow import normalize_images
from protoformer.models.runtime import ProgressCallback


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
    model: FlowPredictor,
    first: ImageLike,
    second: ImageLike,
    *,
    layer: str | None = None,
    count: int = 5,
    updates: int | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[Removal, ...]:
    """Take the largest `count` prototypes of the first image out of a layer, one at a time, and estimate the flow anew.

    The pixels of the one that is gone go to their next nearest. layer: stage and block, such as "2.1"; None: the last.
    A prototype that has every pixel, and so no outside, is left out.
    """
    pair = image_pair(first, second)
    images = [normalize_images(image.to(model.device)) for image in pair]
    stage, block = check_layer(model.network.config, layer)
    before = model.network(*images, num_updates=updates, return_prototypes=True)
    size = (images[0].shape[2], images[0].shape[3])
    cells = group_cells(before.prototypes[stage - 1][block - 1], size, STRIDES[stage - 1])
    labels = at_pixels(cells, size, size, STRIDES[stage - 1])
    largest = torch.bincount(labels.flatten()).argsort(descending=True, stable=True)[:count].tolist()
    found = []
    for done, prototype in enumerate(largest, 1):
        with without_prototype(layer_mixer(model.network.encoder, stage, block), prototype):
            after: Tensor = model.network(*images, num_updates=updates).flows[-1]
        change = (after - before.flows[-1]).norm(dim=1)[0].cpu()
        ours = labels == prototype
        if bool(ours.any()) and not bool(ours.all()):
            share = float(ours.float().mean())
            found.append(Removal(prototype, share, float(change[ours].mean()), float(change[~ours].mean())))
        if progress:
            progress(done, len(largest))
    return tuple(found)
