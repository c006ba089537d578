"""Effect of a prototype on the flow: remove it, and measure where the flow changes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protoformer.explain.groups import assignment_map, cells_to_pixels
from protoformer.explain.tracing import layer_mixer, without_prototype
from protoformer.explain.video import check_layer
from protoformer.flow.predictor import FlowPredictor
from protoformer.io.image_input import ImageLike, image_pair
from protoformer.models.encoder import STRIDES
from protoformer.models.heads.flow import normalize_images
from protoformer.models.runtime import ProgressCallback


@dataclass(frozen=True)
class Removal:
    """Effect of removing one prototype.

    Attributes:
        prototype: Its index.
        share: Fraction of the image's pixels that it had.
        inside: Mean change of the flow of its pixels, pixels.
        outside: Mean change of the flow of all other pixels, pixels.
    """

    prototype: int
    share: float
    inside: float
    outside: float

    @property
    def ratio(self) -> float:
        """Change inside divided by change outside."""
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
    """Remove the `count` largest prototypes of the first image from a layer, one at a time, and estimate the flow.

    The pixels of a removed prototype are assigned to their next nearest. A prototype with all pixels is skipped.

    Args:
        model: Flow predictor.
        first: First image.
        second: Second image.
        layer: Stage and block, such as "2.1"; None: the last.
        count: Number of prototypes.
        updates: Number of updates of the flow; None: as configured.
        progress: Called after every prototype.
    """
    pair = image_pair(first, second)
    images = [normalize_images(image.to(model.device)) for image in pair]
    stage, block = check_layer(model.network.config, layer)
    before = model.network(*images, num_updates=updates, return_prototypes=True)
    size = (images[0].shape[2], images[0].shape[3])
    cells = assignment_map(before.prototypes[stage - 1][block - 1], size, STRIDES[stage - 1])
    labels = cells_to_pixels(cells, size, size, STRIDES[stage - 1])
    largest = torch.bincount(labels.flatten()).argsort(descending=True, stable=True)[:count].tolist()
    effects = []
    for done, prototype in enumerate(largest, 1):
        with without_prototype(layer_mixer(model.network.encoder, stage, block), prototype):
            after: Tensor = model.network(*images, num_updates=updates).flows[-1]
        change = (after - before.flows[-1]).norm(dim=1)[0].cpu()
        mask = labels == prototype
        if bool(mask.any()) and not bool(mask.all()):
            share = float(mask.float().mean())
            effects.append(Removal(prototype, share, float(change[mask].mean()), float(change[~mask].mean())))
        if progress:
            progress(done, len(largest))
    return tuple(effects)
