"""Tracking: a target is known from one image, and looked for in another."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.boxes import box_edges, box_from_edges, clip_boxes, enlarge_boxes, roi_align
from protoformer.geometry.warps import pixel_grid
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import STRIDES, Encoder, build_block
from protoformer.models.heads.cost_memory import Attention, FeedForward, sine_positions
from protoformer.models.layers import ActivatedConv, TokenNorm, init_for_relu
from protoformer.models.runtime import full_precision, map_size, maps_to_tokens, tokens_to_maps

AROUND = 2.0
"""Sides of what is around a target, in those of its box."""


@dataclass(frozen=True)
class Template:
    """Targets as they are known from their references.

    tokens: B x n x C, what is asked about them. parts: B x m x C, unit vectors that are correlated with what is
    searched. summary: B x C, the whole target.
    """

    tokens: Tensor
    parts: Tensor
    summary: Tensor


class TargetTokens(nn.Module):
    """Tokens of a target: the mean of its box; of a finer grid also its parts, and what is around it."""

    def __init__(self, channels: int, grid: int) -> None:
        super().__init__()
        self.grid = grid
        self.parts = 1 if grid == 1 else 1 + grid * grid
        count = self.parts if grid == 1 else self.parts + grid * grid
        self.norm = TokenNorm(channels)
        self.places = nn.Parameter(0.02 * torch.randn(count, channels))

    def forward(self, maps: Tensor, boxes: Tensor) -> Template:
        """maps: B x C x h x w, at 1/8 of the reference; boxes: B x 4 (x, y, w, h), pixels of it."""
        with full_precision(maps):
            maps, cells = maps.float(), boxes.float() / STRIDES[-1]
            inside = maps_to_tokens(roi_align(maps, cells, self.grid))
            found = inside
            if self.grid > 1:
                # Of a long target that is more than the crop shows.
                wide = clip_boxes(enlarge_boxes(cells, AROUND), maps.shape[3], maps.shape[2])
                around = maps_to_tokens(roi_align(maps, wide, self.grid))
                found = torch.cat((inside.mean(dim=1, keepdim=True), inside, around), dim=1)
            tokens = self.norm(found)
            return Template(tokens + self.places, F.normalize(tokens[:, : self.parts], dim=2), tokens[:, 0])


class TrackLayer(nn.Module):
    """What is searched is grouped by prototypes, then asks the tokens of the target."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.track_width
        self.group = build_block(config, width)
        self.norm = TokenNorm(width)
        self.attention = Attention(width, width // config.head_width)
        self.feed_forward = FeedForward(width)

    def forward(self, tokens: Tensor, size: tuple[int, int], target: Tensor) -> Tensor:
        """tokens: B x HW x C; target: B x n x C; returns the new tokens."""
        tokens, _ = self.group(tokens, size, False)
        tokens = tokens + self.attention(self.norm(tokens), target)
        result: Tensor = tokens + self.feed_forward(tokens)
        return result


class TrackDecoder(nn.Module):
    """Features of what is searched to features that know where the target is."""

    def __init__(self, config: ModelConfig, parts: int) -> None:
        super().__init__()
        width = config.track_width
        self.norm = TokenNorm(width)
        self.alike = nn.Linear(parts, width)
        self.layers = nn.ModuleList(TrackLayer(config) for _ in range(config.track_layers))
        self.last = TokenNorm(width)

    def forward(self, maps: Tensor, template: Template) -> Tensor:
        """maps: B x C x h x w; returns the same."""
        size = map_size(maps)
        tokens = self.norm(maps_to_tokens(maps))
        # How much each place is like each part of the target: a correlation, which is known before anything is learned.
        alike = F.normalize(tokens.float(), dim=2) @ template.parts.transpose(1, 2)
        places = sine_positions(pixel_grid(*size, device=maps.device).flatten(1).T, tokens.shape[2])
        tokens = tokens + self.alike(alike) + places
        for layer in self.layers:
            tokens = layer(tokens, size, template.tokens)
        return tokens_to_maps(self.last(tokens), size)


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
        init_for_relu(self)

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
    return box_from_edges((logits.softmax(dim=2)[:, :, None] * places).sum(dim=3).flatten(1))


class RoiRefiner(nn.Module):
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
            seen = roi_align(maps.float(), enlarge_boxes(boxes, MARGIN) / STRIDES[0], LOOK)
        result: Tensor = self.say(torch.relu(self.look(seen.flatten(1)) + self.know(known)))
        return result.float()


class Refinement(nn.Module):
    """Moves the edges of a box by what is seen in it."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.inside = RoiRefiner(channels, width, outputs=4)

    def forward(self, maps: Tensor, boxes: Tensor, summary: Tensor) -> Tensor:
        """As `LookInside`; returns B x 4 boxes."""
        boxes = relative_box(boxes.detach())
        moves = self.inside(maps, boxes, summary)
        with full_precision(moves):
            return box_from_edges(box_edges(boxes) + moves * boxes[:, 2:].repeat(1, 2))


class ScoreHead(nn.Module):
    """Whether the target is there, from what is in the last box, how like the target it is, and how sharp corners are.

    parts: of a target, as a template has them.
    """

    def __init__(self, channels: int, width: int, parts: int) -> None:
        super().__init__()
        self.inside = RoiRefiner(channels, width, outputs=1, extra=parts + 2)

    def forward(self, maps: Tensor, boxes: Tensor, summary: Tensor, alike: Tensor, heats: Tensor) -> Tensor:
        """As `LookInside`, with alike, B x parts, cosines, and heats, B x 2 x h x w; returns B logits."""
        peaks = heats.detach().flatten(2).amax(dim=2).clamp_min(1e-6).log()
        logits: Tensor = self.inside(maps, relative_box(boxes.detach()), torch.cat((summary, alike, peaks), dim=1))
        return logits[:, 0]


def relative_box(boxes: Tensor) -> Tensor:
    """Boxes whose sides are a cell of the finer maps at least; the corners that were found may have crossed."""
    middle, size = boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2:].clamp_min(STRIDES[0])
    return torch.cat((middle - size / 2, size), dim=1)


@dataclass(frozen=True)
class TrackPrediction:
    """Where targets are in what was searched.

    boxes: of each stage, the best last, B x 4 (x, y, w, h) in pixels of the search; a pixel i reaches from i to i + 1.
    The corners of the first may have crossed, which makes its size negative. score_logits: B, of the target being there
    at all. heats: B x 2 x h x w, at 1/4, how likely the top-left and the bottom-right corner are where; each sums to 1.
    """

    boxes: tuple[Tensor, ...]
    score_logits: Tensor
    heats: Tensor


class TrackNetwork(nn.Module):
    """Finds the box of a target.

    features: Encoder of both images. project: its last features to the decoder's width. target: the tokens of a target.
    decoder: features of a search to such that know the target. fine: these at 1/4. corners: the first box.
    refinements: one for each further box. score: whether the target is there.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        fine, width = config.widths[0], config.track_width
        self.features = Encoder(config)
        self.project = nn.Conv2d(config.widths[-1], width, 1)
        self.target = TargetTokens(width, config.target_grid)
        self.decoder = TrackDecoder(config, self.target.parts)
        self.fine = FineMaps(width, fine)
        self.corners = CornerHead(fine)
        self.refinements = nn.ModuleList(Refinement(fine, width) for _ in range(config.stages - 1))
        self.score = ScoreHead(fine, width, self.target.parts)

    def forward(self, reference: Tensor, boxes: Tensor, search: Tensor) -> TrackPrediction:
        """reference: B x 3 x R x R in [-1, 1]; boxes: B x 4 (x, y, w, h), pixels of it; search: B x 3 x S x S."""
        return self.locate(self.embed(reference, boxes), search)

    def embed(self, reference: Tensor, boxes: Tensor) -> Template:
        """What is kept of targets: they are known from then on. As `forward`."""
        _expect_whole_cells(reference)
        template: Template = self.target(self.project(self.features(reference).features[-1]), boxes)
        return template

    def locate(
        self, template: Template, search: Tensor, expected: Tensor | None = None, firmness: Tensor | None = None
    ) -> TrackPrediction:
        """Look for targets. search: B x 3 x S x S in [-1, 1].

        expected, firmness: B x 4 and B, where the box is thought to be, and how firmly; as in `CornerHead`.
        """
        _expect_whole_cells(search)
        early, late = self.features(search).features
        coarse = self.project(late)
        maps = self.fine(self.decoder(coarse, template), early)
        heats, box, near = self.corners(maps, expected, firmness)
        boxes, latest = [box], near if self.refinements else box
        for refine in self.refinements:
            latest = refine(maps, latest, template.summary)
            boxes.append(latest)
        # What was found is looked at as the target was, part by part.
        seen = self.target(coarse, relative_box(latest.detach()))
        alike = (seen.parts * template.parts).sum(dim=2)
        return TrackPrediction(tuple(boxes), self.score(maps, latest, template.summary, alike, heats), heats)


def _expect_whole_cells(images: Tensor) -> None:
    if images.dim() != 4 or images.shape[1] != 3 or images.shape[2] % STRIDES[-1] or images.shape[3] % STRIDES[-1]:
        raise ValueError(f"tracking needs B x 3 x H x W with sides of whole eights, not {tuple(images.shape)}")


def build_track(config: ModelConfig) -> TrackNetwork:
    """The tracking network that a configuration describes, with fresh random weights."""
    return TrackNetwork(config)
