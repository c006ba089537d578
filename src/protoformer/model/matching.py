"""A first flow by global matching: where in all of the second image each part of the first is found.

A recurrent decoder that begins at zero sees as far as its look-ups reach, and a fast thing is found by luck. Here every
part of the first image is compared with every part of the second, at half the resolution of the features, and goes to
the mean of the places that are like it. How alike two parts are is the cosine of their features, less what all parts
have in common, so that it means the same in images of any size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry import Padding, doubled, pixel_grid
from protoformer.model.precision import full_precision
from protoformer.model.tokens import maps_of, size_of, tokens_of

CELL = 2
"""Pixels of the features along a side of what is matched at once."""
COMPARED = 2**22
"""How many pairs of cells are compared at a time where memory is short; it does not change the result."""
SHARPNESS = 15.0
"""What likeness is multiplied by before its softmax, at first: the right place then outweighs a thousand others."""
STAY = 0.4
"""Likeness of staying, at first: less than that of a place that shows the same, more than that of a chance."""


class GlobalMatching(nn.Module):
    """Soft matching of all cells with all cells, and with staying where it is for one that resembles nothing.

    log_sharpness: the logarithm of what likeness is multiplied by. stay: the likeness of no motion.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(SHARPNESS)))
        self.stay = nn.Parameter(torch.tensor(STAY))

    def forward(self, source: Tensor, target: Tensor, low_memory: bool = False) -> Tensor:
        """source, target: B x C x H x W features; returns a flow, B x 2 x H x W, pixels of these maps.

        low_memory: never hold all pairs of cells.
        """
        with full_precision(source):
            padding = Padding.to_multiple(*size_of(source), CELL)
            maps = [F.avg_pool2d(padding.pad(each.float()), CELL) for each in (source, target)]
            size = size_of(maps[0])
            ours, theirs = _distinct(*(tokens_of(each) for each in maps))
            places = tokens_of(pixel_grid(*size, source.device)[None])
            parts = ours.split(max(1, COMPARED // (len(ours) * ours.shape[1])), dim=1) if low_memory else (ours,)
            found = torch.cat([self._reached(some, theirs, places) for some in parts], dim=1)
            # Whoever stays, in part, does not go there in that part.
            flow = maps_of(found[..., :2] - found[..., 2:] * places, size)
            return padding.crop(doubled(CELL * flow))

    def _reached(self, cells: Tensor, target: Tensor, places: Tensor) -> Tensor:
        """Means over places, B x n x 2, of those that are like the cells, and the share of what does not stay."""
        likeness = cells @ target.transpose(1, 2)
        stay = self.stay.expand(*likeness.shape[:2], 1)
        shares = (self.log_sharpness.exp() * torch.cat((likeness, stay), dim=2)).softmax(dim=2)[..., :-1]
        whole = torch.cat((places, torch.ones_like(places[..., :1])), dim=2)
        return shares @ whole


def _distinct(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Features, B x n x C, without what those of both images have in common, and of length 1."""
    common = (ours.mean(dim=1, keepdim=True) + theirs.mean(dim=1, keepdim=True)) / 2
    return F.normalize(ours - common, dim=2), F.normalize(theirs - common, dim=2)
