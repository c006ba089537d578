"""Global matching and motion aggregation: how the flow head sees the whole image, before and during the updates.

`GlobalMatching` initializes the flow. `PixelAggregation` and `PrototypeAggregation` (`flow.aggregation`) belong to the
recurrent update (`heads.update.UpdateBlock`).

A recurrent decoder that starts at zero only sees as far as its lookups reach, and misses fast motion. `GlobalMatching`
compares every block (2x2 pixels of the features, 16x16 of the image) of frame 1 with every block of frame 2, and with
"no match" for occluded blocks. Training minimizes the negative log-likelihood of the true block; a loss on the distance
would favor the mean of two similar blocks, which lies on neither.

The aggregation adds motion features of pixels whose context is similar. `PixelAggregation` (GMA, Jiang et al., ICCV
2021) is attention between all pixels. `PrototypeAggregation` clusters the context by CAP with one EM iteration and
without a spatial prior; one more E-step gives the memberships in the resulting prototypes.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import Padding, pixel_grid, upsample_2x
from protoformer.models.heads.correlation import window_index
from protoformer.models.kernels.reference import divide_by_mass
from protoformer.models.prototyping import Prototyping
from protoformer.models.runtime import (
    accumulation_dtype,
    full_precision,
    map_size,
    maps_to_tokens,
    merge_heads,
    split_heads,
    to_autocast_dtype,
    tokens_to_maps,
)

BLOCK = 2
"""Side of a block, pixels of the feature map."""
MAX_PAIRS = 2**22
"""Pairs of blocks that are compared at a time with `low_memory`; does not change the result."""
INIT_SHARPNESS = 15.0
"""Initial factor of the cosine similarities before the softmax: a block whose similarity exceeds that of others by 0.5
outweighs exp(15 * 0.5) = 1800 of them."""
INIT_NO_MATCH = 0.4
"""Initial similarity of "no match": below that of the same surface and above that of unrelated blocks."""
WINDOW = 3
"""Side, in blocks, of the window around the most likely block over which the matched position is averaged."""
FILL_RADII = (15, 7, 3, 1)
"""Radii, in blocks, over which the flow of confident blocks is averaged to fill in the others, coarse to fine."""
FILL_WEIGHT = 0.05
"""Weight of the coarser fill where no block within the radius is confident."""


@dataclass(frozen=True)
class MatchResult:
    """Result of global matching.

    Attributes:
        flow: B x 2 x H x W, pixels of the feature map, without gradient.
        size: (rows, columns) of the grid of n blocks.
        log_probs: B x n x (n + 1), log probability that each block of frame 1 matches each block of frame 2 or, in the
            last column, none of them.
    """

    flow: Tensor
    size: tuple[int, int]
    log_probs: Tensor


class GlobalMatching(nn.Module):
    """Match all blocks of frame 1 with all blocks of frame 2 by cosine similarity of their descriptors.

    Match probabilities are a softmax over the blocks of frame 2 and "no match", whose similarity is the parameter
    `no_match_score`. `logit_scale` is the logarithm of the factor before the softmax (the inverse temperature).

    Args:
        width: Channels of the features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(INIT_SHARPNESS)))
        self.no_match_score = nn.Parameter(torch.tensor(INIT_NO_MATCH))

    def forward(self, source: Tensor, target: Tensor) -> MatchResult:
        """Match the features of frame 1 and frame 2, B x C x H x W each."""
        blocks = self._embed_blocks(source, target)
        with full_precision(source):
            size = map_size(blocks[0])
            log_probs = self._log_probs(*_normalize_blocks(*blocks))
            return MatchResult(_fill_flow(_match_blocks(log_probs.detach(), size), size, source), size, log_probs)

    def flow(self, source: Tensor, target: Tensor, low_memory: bool = False) -> Tensor:
        """Return only the flow, B x 2 x H x W, without gradient.

        Args:
            source: B x C x H x W, features of frame 1.
            target: B x C x H x W, features of frame 2.
            low_memory: Compare blocks in chunks instead of storing all pairs.
        """
        blocks = self._embed_blocks(source, target)
        with full_precision(source):
            size = map_size(blocks[0])
            blocks1, blocks2 = _normalize_blocks(*blocks)
            chunks: tuple[Tensor, ...] = (blocks1,)
            if low_memory:
                chunks = blocks1.split(max(1, MAX_PAIRS // (len(blocks1) * blocks1.shape[1])), dim=1)
            matches = [_match_blocks(self._log_probs(chunk, blocks2), size) for chunk in chunks]
            return _fill_flow(torch.cat(matches, dim=1), size, source)

    def _embed_blocks(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the descriptors of the blocks of both maps, B x C x h x w each."""
        padding = Padding.to_multiple(*map_size(source), BLOCK)
        blocks = self.embed(F.avg_pool2d(padding.pad(torch.cat((source, target))), BLOCK))
        return blocks[: source.shape[0]], blocks[source.shape[0] :]

    def _log_probs(self, blocks1: Tensor, blocks2: Tensor) -> Tensor:
        """Return the log probabilities of matches of normalized blocks, B x m x C and B x n x C: B x m x (n + 1)."""
        similarity = blocks1 @ blocks2.transpose(1, 2)
        no_match = self.no_match_score.expand(*similarity.shape[:2], 1)
        return (self.logit_scale.exp() * torch.cat((similarity, no_match), dim=2)).log_softmax(dim=2)


def _normalize_blocks(blocks1: Tensor, blocks2: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten blocks to B x n x C, subtract the mean over both images, and normalize to length 1."""
    blocks1, blocks2 = maps_to_tokens(blocks1.float()), maps_to_tokens(blocks2.float())
    mean = (blocks1.mean(dim=1, keepdim=True) + blocks2.mean(dim=1, keepdim=True)) / 2
    return F.normalize(blocks1 - mean, dim=2), F.normalize(blocks2 - mean, dim=2)


def _match_blocks(log_probs: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the matched position (x, y) of each block, in blocks, and its confidence from 0 to 1: B x n x 3."""
    # The positions are looked up, as an exported graph of variable size cannot compute them from the index.
    positions = pixel_grid(*size, log_probs.device).flatten(1).T
    corner = positions[log_probs[..., :-1].argmax(dim=2)].long() - WINDOW // 2
    index, within = window_index(corner, WINDOW, size)
    window = log_probs.gather(2, index).masked_fill(within == 0, -math.inf)
    # The softmax is defined even if all probabilities underflow, as the most likely block is in the window.
    weights, confidence = window.softmax(dim=2), window.exp().sum(dim=2, keepdim=True)
    return torch.cat(((weights[..., None] * positions[index]).sum(dim=2), confidence), dim=2)


def _fill_flow(matches: Tensor, size: tuple[int, int], features: Tensor) -> Tensor:
    """Return the flow of every pixel of the features, filled in from confident blocks and zero if there are none."""
    flow = tokens_to_maps(matches[..., :2], size) - pixel_grid(*size, matches.device)
    # The square keeps many unconfident blocks from outweighing a confident one.
    weight = tokens_to_maps(matches[..., 2:], size) ** 2
    weighted = torch.cat((flow * weight, weight), dim=1)
    filled = torch.zeros_like(flow)
    for radius in (*FILL_RADII, 0):
        mean = F.avg_pool2d(weighted, 2 * radius + 1, stride=1, padding=radius)
        prior = FILL_WEIGHT * (1 - mean[:, 2:])
        filled = (mean[:, :2] + prior * filled) / (mean[:, 2:] + prior)
    return Padding.to_multiple(*map_size(features), BLOCK).crop(upsample_2x(BLOCK * filled))


class PixelAggregation(nn.Module):
    """Global motion aggregation (GMA): attention between all pixels, with queries and keys from the context.

    Args:
        channels: Channels of context and motion features.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Linear(channels, channels, bias=False)
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Project the context, B x C x H x W, to the queries and keys of all updates, B x 1 x HW x C each."""
        tokens = maps_to_tokens(context)
        return split_heads(self.query(tokens), 1), split_heads(self.key(tokens), 1)

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Add the attended motion features.

        Args:
            motion: B x C x H x W.
            prepared: Queries and keys from `prepare`.

        Returns:
            B x C x H x W.
        """
        query, key = prepared
        attended = F.scaled_dot_product_attention(query, key, split_heads(self.value(maps_to_tokens(motion)), 1))
        return motion + self.strength * tokens_to_maps(merge_heads(attended), map_size(motion))


class PrototypeAggregation(nn.Module):
    """Motion aggregation through prototypes of the context.

    Motion features are averaged over the members of each prototype and broadcast back by the memberships. The cost is
    linear in the number of pixels; that of attention between all pixels is quadratic.

    Args:
        channels: Channels of context and motion features.
        prototyping: Clusters the context.
    """

    def __init__(self, channels: int, prototyping: Prototyping) -> None:
        super().__init__()
        self.prototyping = prototyping
        self.value = nn.Linear(channels, channels, bias=False)
        self.strength = nn.Parameter(torch.zeros(()))

    def prepare(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Cluster the context, once for all updates.

        Args:
            context: B x C x H x W.

        Returns:
            Memberships in the final prototypes, B x heads x K x HW, and their sums over the pixels, B x heads x K.
        """
        tokens, size = maps_to_tokens(context), map_size(context)
        keys, _ = self.prototyping.keys_and_values(tokens)
        # Every update multiplies by the memberships twice, so they are cast to the autocast dtype once.
        centers = self.prototyping(tokens, size).centers
        memberships = to_autocast_dtype(self.prototyping.memberships(centers, keys, size))
        return memberships, memberships.sum(dim=-1, dtype=accumulation_dtype(memberships.dtype))

    def forward(self, motion: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        """Add the mean motion features of the prototypes of each pixel.

        Args:
            motion: B x C x H x W.
            prepared: Memberships and masses from `prepare`.

        Returns:
            B x C x H x W.
        """
        memberships, mass = prepared
        values = split_heads(self.value(maps_to_tokens(motion)), memberships.shape[1])
        prototype_motion = divide_by_mass(memberships.to(values.dtype) @ values, mass)
        broadcast = merge_heads(memberships.transpose(-2, -1) @ prototype_motion.to(memberships.dtype))
        return motion + self.strength * tokens_to_maps(broadcast, map_size(motion))
