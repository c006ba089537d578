"""Tracking: a target is known from one image, and looked for in another."""

from dataclasses import dataclass

from torch import Tensor, nn

from protoformer.model.config import ModelConfig
from protoformer.model.encoder import STRIDES, Encoder
from protoformer.model.track_decoder import TargetTokens, Template, TrackDecoder
from protoformer.model.track_heads import CornerHead, FineMaps, Refinement, ScoreHead, lying


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
        seen = self.target(coarse, lying(latest.detach()))
        alike = (seen.parts * template.parts).sum(dim=2)
        return TrackPrediction(tuple(boxes), self.score(maps, latest, template.summary, alike, heats), heats)


def _expect_whole_cells(images: Tensor) -> None:
    if images.dim() != 4 or images.shape[1] != 3 or images.shape[2] % STRIDES[-1] or images.shape[3] % STRIDES[-1]:
        raise ValueError(f"tracking needs B x 3 x H x W with sides of whole eights, not {tuple(images.shape)}")


def build_track(config: ModelConfig) -> TrackNetwork:
    """The tracking network that a configuration describes, with fresh random weights."""
    return TrackNetwork(config)
