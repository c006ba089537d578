"""From features that know where the target is to a box, stage by stage, and to a score."""

import torch
from torch import Tensor, nn

from protoformer.geometry import pixel_grid
from protoformer.geometry.boxes import box_edges, box_of_edges, enlarged
from protoformer.geometry.crops import roi_align
from protoformer.model.encoder import STRIDES
from protoformer.model.initialization import for_relu
from protoformer.model.layers import ActivatedConv
from protoformer.model.precision import full_precision

LOOK = 7
"""Cells a side of what a stage sees of the box before it."""
MARGIN = 1.5
"""Sides of what it sees, in those of the box: corners that are off lie within."""
NEURONS = 256
"""Of what looks into a box."""
NEAR_PEAK = 8
"""The part of the map's width within which a corner is a mean of what is near where it is likeliest."""


class FineMaps(nn.Module):
    """Decoded features at 1/8, made as fine as the encoder's first stage, which says where edges are: 1/4."""

    def __init__(self, coarse: int, fine: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(coarse, 4 * fine, 1)
        self.add = nn.Conv2d(fine, fine, 1)
        self.first = ActivatedConv(fine, fine, 3, rectified=True, padding=1)
        self.second = ActivatedConv(fine, fine, 3, rectified=True, padding=1)
        for_relu(self)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """coarse: B x C x h x w; fine: B x c x 2h x 2w; returns B x c x 2h x 2w."""
        joined = torch.relu(nn.functional.pixel_shuffle(self.spread(coarse), 2) + self.add(fine))
        result: Tensor = self.second(self.first(joined))
        return result


class CornerHead(nn.Module):
    """Heat maps of the top-left and the bottom-right corner, and the box between their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heat = nn.Conv2d(channels, 2, 1)

    def forward(self, maps: Tensor, expected: Tensor | None, firmness: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """maps: B x c x h x w, at 1/4; returns heats, B x 2 x h x w, each of sum 1, and two boxes, B x 4, pixels.

        expected: B x 4, a box whose corners are thought likely; firmness: B, how much less likely, in nats, a corner is
        that lies as far from it as the search is wide; it does not enter the heats.

        The first box is to be learned: the means are over whole maps, so that every place learns. The second is to go
        on from: the means are over what is near the likeliest place, since the middle between two places that look
        alike is neither. In use both are the second.
        """
        with full_precision(maps):
            logits = self.heat(maps.float())
            height, width = logits.shape[2:]
            places = STRIDES[0] * (pixel_grid(height, width, logits.device).flatten(1) + 0.5)  # 2 x hw
            likely = logits = logits.flatten(2)
            if expected is not None and firmness is not None:
                corners = box_edges(expected.float()).unflatten(1, (2, 2, 1))  # B x corner x (x, y) x 1
                far = (corners - places).square().sum(dim=2) / (STRIDES[0] * width) ** 2
                likely = logits - firmness[:, None, None] * far
            peaks = places.T[likely.argmax(dim=2)][..., None]  # B x corner x (x, y) x 1
            beside = (places - peaks).abs().amax(dim=2) > STRIDES[0] * width / NEAR_PEAK
            around = (logits.detach() if self.training else logits).masked_fill(beside, -torch.inf)
            near = _between(around, places)
            learned = _between(likely, places) if self.training else near
            return logits.softmax(dim=2).unflatten(2, (height, width)), learned, near


def _between(logits: Tensor, places: Tensor) -> Tensor:
    """The box between the means of two corners, B x 4. logits: B x 2 x hw; places: 2 x hw, (x, y) of each, pixels."""
    return box_of_edges((logits.softmax(dim=2)[:, :, None] * places).sum(dim=3).flatten(1))


class LookInside(nn.Module):
    """Numbers about a box: what the features in and just around it are, beside what the target is."""

    def __init__(self, channels: int, width: int, outputs: int, extra: int = 0) -> None:
        super().__init__()
        self.look = nn.Linear(channels * LOOK * LOOK, NEURONS)
        self.know = nn.Linear(width + extra, NEURONS)
        self.say = nn.Linear(NEURONS, outputs)
        nn.init.kaiming_normal_(self.look.weight, nonlinearity="relu")
        # Small: the first steps leave the box before as it is.
        nn.init.normal_(self.say.weight, std=1e-2 / NEURONS**0.5)
        nn.init.zeros_(self.say.bias)

    def forward(self, maps: Tensor, boxes: Tensor, known: Tensor) -> Tensor:
        """maps: B x c x h x w, at 1/4; boxes: B x 4, search pixels; known: B x (width + extra); returns B x outputs."""
        with full_precision(maps):
            seen = roi_align(maps.float(), enlarged(boxes, MARGIN) / STRIDES[0], LOOK)
        result: Tensor = self.say(torch.relu(self.look(seen.flatten(1)) + self.know(known)))
        return result.float()


class Refinement(nn.Module):
    """Moves the edges of a box by what is seen in it."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.inside = LookInside(channels, width, outputs=4)

    def forward(self, maps: Tensor, boxes: Tensor, summary: Tensor) -> Tensor:
        """As `LookInside`; returns B x 4 boxes."""
        boxes = lying(boxes.detach())
        moves = self.inside(maps, boxes, summary)
        with full_precision(moves):
            return box_of_edges(box_edges(boxes) + moves * boxes[:, 2:].repeat(1, 2))


class ScoreHead(nn.Module):
    """Whether the target is there, from what is in the last box, how like the target it is, and how sharp corners are.

    parts: of a target, as a template has them.
    """

    def __init__(self, channels: int, width: int, parts: int) -> None:
        super().__init__()
        self.inside = LookInside(channels, width, outputs=1, extra=parts + 2)

    def forward(self, maps: Tensor, boxes: Tensor, summary: Tensor, alike: Tensor, heats: Tensor) -> Tensor:
        """As `LookInside`, with alike, B x parts, cosines, and heats, B x 2 x h x w; returns B logits."""
        peaks = heats.detach().flatten(2).amax(dim=2).clamp_min(1e-6).log()
        logits: Tensor = self.inside(maps, lying(boxes.detach()), torch.cat((summary, alike, peaks), dim=1))
        return logits[:, 0]


def lying(boxes: Tensor) -> Tensor:
    """Boxes whose sides are a cell of the finer maps at least; the corners that were found may have crossed."""
    middle, size = boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2:].clamp_min(STRIDES[0])
    return torch.cat((middle - size / 2, size), dim=1)
