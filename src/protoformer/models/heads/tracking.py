"""Tracking head: the box of a target in a search crop, after the Unified Transformer Tracker (Ma et al., CVPR 2022).

1. Template: the encoder's features of the reference crop, pooled in the target's box by RoIAlign to target tokens.
2. Search: the correlation of the search tokens with the target tokens is added to them; then layers of CAP and LS (in
   place of self-attention) and cross-attention to the target tokens.
3. Corner heatmaps at 1/4 of the search crop, from the decoded features and those of stage 1; soft-argmax gives the
   first box.
4. Refinement stages move the edges of the box by its RoI features.
5. A score says whether the target is visible.

Boxes are (x, y, w, h) in pixels of their crop; pixel i covers i to i + 1.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.regions import box_edges, box_from_edges, clip_boxes, enlarge_boxes, roi_align
from protoformer.geometry.warps import pixel_grid
from protoformer.models.config import ModelConfig
from protoformer.models.encoder import STRIDES, build_block
from protoformer.models.layers import Attention, FeedForward, FusedConv, TokenNorm, init_for_relu, sine_positions
from protoformer.models.runtime import full_precision, map_size, maps_to_tokens, tokens_to_maps

SURROUNDINGS_SCALE = 2.0
"""Side of the box around a target that context tokens are pooled from, relative to the target's box."""


@dataclass(frozen=True)
class Template:
    """Embedding of the targets in their reference crops.

    Attributes:
        tokens: B x n x C, target tokens for cross-attention.
        parts: B x m x C, unit vectors that are correlated with the search tokens.
        summary: B x C, mean token of the target.
    """

    tokens: Tensor
    parts: Tensor
    summary: Tensor


class TargetTokens(nn.Module):
    """Pool target tokens from a feature map by RoIAlign.

    Args:
        channels: C, channels of the tokens.
        grid: 1 pools one token, the mean of the box. n > 1 adds n x n tokens of the box and n x n of its surroundings.
    """

    def __init__(self, channels: int, grid: int) -> None:
        super().__init__()
        self.grid = grid
        self.parts = 1 if grid == 1 else 1 + grid * grid
        count = self.parts if grid == 1 else self.parts + grid * grid
        self.norm = TokenNorm(channels)
        self.token_embed = nn.Parameter(0.02 * torch.randn(count, channels))

    def forward(self, maps: Tensor, boxes: Tensor) -> Template:
        """Pool the tokens.

        Args:
            maps: B x C x h x w, features at 1/8 of the crop.
            boxes: B x 4, (x, y, w, h), pixels of the crop.
        """
        with full_precision(maps):
            maps, regions = maps.float(), boxes.float() / STRIDES[-1]  # regions in feature pixels
            inside = maps_to_tokens(roi_align(maps, regions, self.grid))
            pooled = inside
            if self.grid > 1:
                # The surroundings of a long target may exceed the crop.
                outer = clip_boxes(enlarge_boxes(regions, SURROUNDINGS_SCALE), maps.shape[3], maps.shape[2])
                around = maps_to_tokens(roi_align(maps, outer, self.grid))
                pooled = torch.cat((inside.mean(dim=1, keepdim=True), inside, around), dim=1)
            tokens = self.norm(pooled)
            return Template(tokens + self.token_embed, F.normalize(tokens[:, : self.parts], dim=2), tokens[:, 0])


class TrackingLayer(nn.Module):
    """Decoder layer: CAP and LS over the search tokens, then cross-attention to the target tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.tracking.hidden_dim
        self.block = build_block(config.encoder, width)
        self.norm = TokenNorm(width)
        self.attention = Attention(width, width // config.encoder.head_dim)
        self.feed_forward = FeedForward(width)

    def forward(self, tokens: Tensor, size: tuple[int, int], target: Tensor) -> Tensor:
        """Update the search tokens.

        Args:
            tokens: B x HW x C, search tokens.
            size: (H, W) of the search map.
            target: B x n x C, target tokens.

        Returns:
            B x HW x C.
        """
        tokens, _ = self.block(tokens, size, False)
        tokens = tokens + self.attention(self.norm(tokens), target)
        result: Tensor = tokens + self.feed_forward(tokens)
        return result


class TrackingDecoder(nn.Module):
    """Decode the features of the search crop, conditioned on the target.

    Args:
        config: Configuration of the network.
        parts: Number of target vectors that are correlated with the search tokens.
    """

    def __init__(self, config: ModelConfig, parts: int) -> None:
        super().__init__()
        width = config.tracking.hidden_dim
        self.norm = TokenNorm(width)
        self.similarity_proj = nn.Linear(parts, width)
        self.layers = nn.ModuleList(TrackingLayer(config) for _ in range(config.tracking.num_layers))
        self.final_norm = TokenNorm(width)

    def forward(self, maps: Tensor, template: Template) -> Tensor:
        """Decode search features, B x C x h x w, to the same shape."""
        size = map_size(maps)
        tokens = self.norm(maps_to_tokens(maps))
        # The cosine similarity with the target is informative before any training.
        similarity = F.normalize(tokens.float(), dim=2) @ template.parts.transpose(1, 2)
        encoding = sine_positions(pixel_grid(*size, device=maps.device).flatten(1).T, tokens.shape[2])
        tokens = tokens + self.similarity_proj(similarity) + encoding
        for layer in self.layers:
            tokens = layer(tokens, size, template.tokens)
        return tokens_to_maps(self.final_norm(tokens), size)


ROI_SIZE = 7
"""Bins along a side of the RoI features of a box."""
ROI_SCALE = 1.5
"""Side of the RoI relative to the box, so that the true corners of an inexact box lie within."""
ROI_HIDDEN = 256
"""Hidden channels of the RoI head."""
PEAK_RADIUS = 1 / 8
"""Half the side of the square around the peak of a heatmap over which a corner is averaged, as a fraction of the width
of the map."""


class FineMaps(nn.Module):
    """Upsample the decoded features from 1/8 to 1/4 and fuse them with the features of stage 1.

    Args:
        coarse: Channels of the features at 1/8.
        fine: Channels of the features at 1/4.
    """

    def __init__(self, coarse: int, fine: int) -> None:
        super().__init__()
        self.upsample_proj = nn.Conv2d(coarse, 4 * fine, 1)
        self.fine_proj = nn.Conv2d(fine, fine, 1)
        self.conv1 = FusedConv(fine, fine, 3, relu=True, padding=1)
        self.conv2 = FusedConv(fine, fine, 3, relu=True, padding=1)
        init_for_relu(self)

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """Fuse coarse features (B x C x h x w) and fine ones (B x c x 2h x 2w) to B x c x 2h x 2w."""
        joined = torch.relu(nn.functional.pixel_shuffle(self.upsample_proj(coarse), 2) + self.fine_proj(fine))
        result: Tensor = self.conv2(self.conv1(joined))
        return result


class CornerHead(nn.Module):
    """Heatmaps of the top-left and bottom-right corners, and boxes from their soft-argmax.

    Args:
        channels: Channels of the features.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heatmap_proj = nn.Conv2d(channels, 2, 1)

    def forward(
        self, maps: Tensor, prior: Tensor | None, prior_strength: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Predict corner heatmaps and boxes.

        Args:
            maps: B x c x h x w, features at 1/4 of the search crop.
            prior: B x 4, prior box, pixels of the search crop.
            prior_strength: B, how much a corner's logit falls at a distance of one crop width from the corner of the
                prior; it falls with the square of the distance. The prior does not change the heatmaps.

        Returns:
            The heatmaps, B x 2 x h x w, each of sum 1, and two boxes, B x 4, pixels. The first box is for the loss: in
            training it is the soft-argmax over the whole maps, so that every position gets a gradient. The second is
            for the next stage: it averages around the peak only, as the mean of two similar objects lies on neither. In
            evaluation both are the second.
        """
        with full_precision(maps):
            logits = self.heatmap_proj(maps.float())
            height, width = logits.shape[2:]
            positions = STRIDES[0] * (pixel_grid(height, width, logits.device).flatten(1) + 0.5)  # 2 x hw
            posterior = logits = logits.flatten(2)
            if prior is not None and prior_strength is not None:
                corners = box_edges(prior.float()).unflatten(1, (2, 2, 1))  # B x corner x (x, y) x 1
                distance = (corners - positions).square().sum(dim=2) / (STRIDES[0] * width) ** 2
                posterior = logits - prior_strength[:, None, None] * distance
            peaks = positions.T[posterior.argmax(dim=2)][..., None]  # B x corner x (x, y) x 1
            is_far = (positions - peaks).abs().amax(dim=2) > STRIDES[0] * width * PEAK_RADIUS
            local_logits = (logits.detach() if self.training else logits).masked_fill(is_far, -torch.inf)
            local_box = _soft_argmax_box(local_logits, positions)
            loss_box = _soft_argmax_box(posterior, positions) if self.training else local_box
            return logits.softmax(dim=2).unflatten(2, (height, width)), loss_box, local_box


def _soft_argmax_box(logits: Tensor, positions: Tensor) -> Tensor:
    """Return the box, B x 4, between the mean positions (2 x hw, pixels) of two corners with logits B x 2 x hw."""
    return box_from_edges((logits.softmax(dim=2)[:, :, None] * positions).sum(dim=3).flatten(1))


class RoIMLP(nn.Module):
    """Two-layer MLP of the RoIAlign features of a box and the summary of the target; it computes moves or a score.

    Args:
        channels: Channels of the features.
        width: Channels of the summary of the target.
        outputs: Number of outputs.
        extra: Number of further inputs.
    """

    def __init__(self, channels: int, width: int, outputs: int, extra: int = 0) -> None:
        super().__init__()
        self.roi_proj = nn.Linear(channels * ROI_SIZE * ROI_SIZE, ROI_HIDDEN)
        self.target_proj = nn.Linear(width + extra, ROI_HIDDEN)
        self.out_proj = nn.Linear(ROI_HIDDEN, outputs)
        nn.init.kaiming_normal_(self.roi_proj.weight, nonlinearity="relu")
        # Small weights leave the box nearly unchanged at first.
        nn.init.normal_(self.out_proj.weight, std=1e-2 / ROI_HIDDEN**0.5)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, maps: Tensor, boxes: Tensor, target: Tensor) -> Tensor:
        """Compute the outputs of boxes.

        Args:
            maps: B x c x h x w, features at 1/4 of the search crop.
            boxes: B x 4, pixels of the search crop.
            target: B x (width + extra), summary of the target and further inputs.

        Returns:
            B x outputs, float32.
        """
        with full_precision(maps):
            roi = roi_align(maps.float(), enlarge_boxes(boxes, ROI_SCALE) / STRIDES[0], ROI_SIZE)
        result: Tensor = self.out_proj(torch.relu(self.roi_proj(roi.flatten(1)) + self.target_proj(target)))
        return result.float()


class Refinement(nn.Module):
    """Refinement stage: moves the edges of a box by its RoI features."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.roi_head = RoIMLP(channels, width, outputs=4)

    def forward(self, maps: Tensor, boxes: Tensor, summary: Tensor) -> Tensor:
        """Refine boxes, B x 4; arguments as in `RoIMLP`."""
        boxes = clamp_box_size(boxes.detach())
        moves = self.roi_head(maps, boxes, summary)
        with full_precision(moves):
            return box_from_edges(box_edges(boxes) + moves * boxes[:, 2:].repeat(1, 2))


class ScoreHead(nn.Module):
    """Score of the target's presence from RoI features, similarity to the target and heatmap peaks.

    Args:
        channels: Channels of the features.
        width: Channels of the summary of the target.
        parts: Number of target vectors in a template.
    """

    def __init__(self, channels: int, width: int, parts: int) -> None:
        super().__init__()
        self.roi_head = RoIMLP(channels, width, outputs=1, extra=parts + 2)

    def forward(self, maps: Tensor, boxes: Tensor, summary: Tensor, similarity: Tensor, heatmaps: Tensor) -> Tensor:
        """Compute the logits, B, of the target being in the box.

        Args:
            maps: B x c x h x w, features at 1/4 of the search crop.
            boxes: B x 4, pixels of the search crop.
            summary: B x width, summary of the target.
            similarity: B x parts, cosine similarity of the box and the target.
            heatmaps: B x 2 x h x w, corner heatmaps.
        """
        peaks = heatmaps.detach().flatten(2).amax(dim=2).clamp_min(1e-6).log()
        logits: Tensor = self.roi_head(
            maps, clamp_box_size(boxes.detach()), torch.cat((summary, similarity, peaks), dim=1)
        )
        return logits[:, 0]


def clamp_box_size(boxes: Tensor) -> Tensor:
    """Enlarge boxes, B x 4, to at least one pixel of the map at 1/4; predicted corners may have crossed."""
    center, size = boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2:].clamp_min(STRIDES[0])
    return torch.cat((center - size / 2, size), dim=1)


@dataclass(frozen=True)
class TrackingPrediction:
    """Output of the tracking head for a batch of search crops.

    Attributes:
        boxes: One for each stage, the final one last, B x 4, (x, y, w, h) in pixels of the search crop. The corners of
            the first may have crossed, which makes its size negative.
        score_logits: B, logits of the target being visible.
        heatmaps: B x 2 x h x w, heatmaps of the top-left and bottom-right corners at 1/4, each of sum 1.
    """

    boxes: tuple[Tensor, ...]
    score_logits: Tensor
    heatmaps: Tensor


class TrackingHead(nn.Module):
    """Tracking head: finds the box of a target in a search crop.

    Args:
        config: Configuration of the model; its `tracking` section defines the head.

    Attributes:
        feature_proj: Projects the features at 1/8 to the channels of the decoder.
        target_tokens: Pools the target tokens.
        decoder: Decodes the search features, conditioned on the target.
        fine_maps: Upsamples the decoded features to 1/4.
        corner_head: Predicts the first box.
        refinements: One for each further box.
        score_head: Predicts whether the target is visible.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config.tracking
        (fine, coarse), width = config.encoder.embed_dims, config.tracking.hidden_dim
        self.feature_proj = nn.Conv2d(coarse, width, 1)
        self.target_tokens = TargetTokens(width, config.tracking.target_grid)
        self.decoder = TrackingDecoder(config, self.target_tokens.parts)
        self.fine_maps = FineMaps(width, fine)
        self.corner_head = CornerHead(fine)
        self.refinements = nn.ModuleList(Refinement(fine, width) for _ in range(config.tracking.num_stages - 1))
        self.score_head = ScoreHead(fine, width, self.target_tokens.parts)

    def embed(self, features: Tensor, boxes: Tensor) -> Template:
        """Embed targets.

        Args:
            features: B x C x h x w, features of the reference crops at 1/8.
            boxes: B x 4, (x, y, w, h), pixels of the reference crop.
        """
        template: Template = self.target_tokens(self.feature_proj(features), boxes)
        return template

    def forward(
        self,
        features: tuple[Tensor, ...],
        template: Template,
        prior: Tensor | None = None,
        prior_strength: Tensor | None = None,
    ) -> TrackingPrediction:
        """Locate embedded targets.

        Args:
            features: Features of the search crops at 1/4 and 1/8.
            template: Embedding of the targets, from `embed`.
            prior: B x 4, prior boxes, pixels of the search crop, as in `CornerHead`.
            prior_strength: B, weights of the prior, as in `CornerHead`.
        """
        coarse = self.feature_proj(features[1])
        maps = self.fine_maps(self.decoder(coarse, template), features[0])
        heatmaps, loss_box, local_box = self.corner_head(maps, prior, prior_strength)
        boxes, box = [loss_box], local_box if self.refinements else loss_box
        for refine in self.refinements:
            box = refine(maps, box, template.summary)
            boxes.append(box)
        # The predicted box is embedded like the target and compared with it part by part.
        predicted = self.target_tokens(coarse, clamp_box_size(box.detach()))
        similarity = (predicted.parts * template.parts).sum(dim=2)
        score = self.score_head(maps, box, template.summary, similarity, heatmaps)
        return TrackingPrediction(tuple(boxes), score, heatmaps)
