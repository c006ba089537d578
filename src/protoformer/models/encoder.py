"""The encoder: a pyramid of two stages whose attention layers are prototyping and synchronization."""

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.resizing import Padding
from protoformer.models.config import ModelConfig
from protoformer.models.heads.cost_memory import FeedForward
from protoformer.models.kernels import dispatch as fused
from protoformer.models.kernels.mixing import Weights
from protoformer.models.layers import MapNorm, PositionConv, TokenNorm, init_for_relu
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import map_size, maps_to_tokens, tokens_to_maps
from protoformer.models.synchronization import SYNCHRONIZATIONS, LatentSynchronization


class ChannelNorm(nn.Module):
    """Layer normalization over the channels of each pixel of a B x C x H x W map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = TokenNorm(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """B x C x H x W to the same."""
        result: Tensor = self.norm(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return result


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with instance norm and a shortcut; `stride` 2 halves the map."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        # Without biases, which the norm would take away again.
        self.first = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm, self.norm_and_relu = MapNorm(), MapNorm(rectified=True)
        plain = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if plain else nn.Conv2d(channels_in, channels, 1, stride=stride)

    def forward(self, maps: Tensor) -> Tensor:
        """B x channels_in x H x W to B x channels x H/stride x W/stride."""
        inner = self.norm(self.second(self.norm_and_relu(self.first(maps))))
        return F.relu(self.shortcut(maps) + inner)


def patches(channels_in: int, channels: int, stride: int) -> nn.Module:
    """The paper's: one convolution as large as its stride, then layer norm."""
    return nn.Sequential(nn.Conv2d(channels_in, channels, stride, stride=stride), ChannelNorm(channels))


def convolutions(channels_in: int, channels: int, stride: int) -> nn.Module:
    """A convolutional stem, which learns from scratch much faster than patches do.

    Stride 4 (from pixels): 7x7 of stride 2, a residual block, and one of stride 2. Stride 2: one residual block.
    """
    if stride == 2:
        layers: list[nn.Module] = [ResidualBlock(channels_in, channels, stride=2)]
    else:
        half = channels // 2
        layers = [
            nn.Conv2d(channels_in, half, 7, stride=2, padding=3, bias=False),
            MapNorm(rectified=True),
            ResidualBlock(half, half),
            ResidualBlock(half, channels, stride=2),
        ]
    stem = nn.Sequential(*layers, ChannelNorm(channels))
    init_for_relu(stem)
    return stem


EMBEDDINGS = {"patches": patches, "convolutions": convolutions}


STRIDES = (4, 8)
"""How much smaller than the image the maps of each stage are."""
LEAST_SIDE = 16
"""Instance norm needs more than one pixel at the last stage, so smaller images are padded to this."""


@dataclass(frozen=True)
class EncoderOutput:
    """What the encoder sees in a batch of images.

    features: per stage, B x C x ceil(H / stride) x ceil(W / stride) for strides 4 and 8.
    prototypes: per stage, those of each block, over the map of the padded image; empty unless asked for.
    """

    features: tuple[Tensor, ...]
    prototypes: tuple[tuple[Prototypes, ...], ...]


class Mixer(nn.Module):
    """What stands in the place of attention: find the prototypes, then synchronize the features with them."""

    def __init__(self, prototyping: Prototyping, synchronization: nn.Module) -> None:
        super().__init__()
        self.prototyping = prototyping
        self.synchronization = synchronization

    def forward(self, tokens: Tensor, size: tuple[int, int], asked: bool = True) -> tuple[Tensor, Prototypes | None]:
        """tokens: B x HW x C; returns what to add to them and, if asked for, the prototypes."""
        if self._is_one(tokens):
            return self._at_once(tokens, size, asked)
        prototypes = self.prototyping(tokens, size)
        mixed, assignment = self.synchronization(tokens, prototypes)
        return mixed, replace(prototypes, assignment=assignment) if asked else None

    def _is_one(self, tokens: Tensor) -> bool:
        """Whether both are one operator on these tokens."""
        prototyping, rows_columns = self.prototyping, self.prototyping.grid
        ours = prototyping.update == "cap" and prototyping.iterations > 0
        ours = ours and isinstance(self.synchronization, LatentSynchronization)
        return ours and fused.mixes(tokens, rows_columns[0] * rows_columns[1], tokens.shape[2] // prototyping.heads)

    def _at_once(self, tokens: Tensor, size: tuple[int, int], asked: bool) -> tuple[Tensor, Prototypes | None]:
        em, ls = self.prototyping, cast(LatentSynchronization, self.synchronization)
        weights = Weights(
            torch.cat([em.key.weight, em.value.weight, ls.query.weight]),
            torch.cat([em.key.bias, em.value.bias, ls.query.bias]),
            em.query.weight,
            em.query.bias,
            torch.cat([ls.key.weight, ls.value.weight]),
            torch.cat([ls.key.bias, ls.value.bias]),
            ls.alpha,
            ls.beta,
        )
        found = fused.mix(tokens, weights, size, em.grid, em.iterations, em.normalize, em.residual, keep=asked)
        output = fused.feed_forward(found.attended, ls.feed_forward)
        if not asked:
            return output, None
        keys = found.projected[..., : tokens.shape[2]]
        expectation = em.expectation_of(found.queries[-1], keys, size)
        return output, Prototypes(found.centers, expectation, size, found.assignment)


class Block(nn.Module):
    """Pre-norm mixer and pre-norm MLP, each with its residual."""

    def __init__(self, channels: int, mixer: Mixer) -> None:
        super().__init__()
        self.norm = TokenNorm(channels)
        self.mixer = mixer
        self.mlp = FeedForward(channels)

    def forward(self, tokens: Tensor, size: tuple[int, int], asked: bool = True) -> tuple[Tensor, Prototypes | None]:
        """tokens: B x HW x C; returns the new tokens and, if asked for, the prototypes that were found."""
        mixed, prototypes = self.mixer(self.norm(tokens), size, asked)
        tokens = tokens + mixed
        return tokens + self.mlp(tokens), prototypes


class Stage(nn.Module):
    """An embedding, blocks, and a 3x3 depthwise convolution after the first block that tells pixels where they are."""

    def __init__(self, embedding: nn.Module, channels: int, blocks: list[Block]) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.position = PositionConv(channels)
        self.norm = TokenNorm(channels)

    def forward(self, maps: Tensor, asked: bool = True) -> tuple[Tensor, tuple[Prototypes, ...]]:
        """B x C_in x H x W to B x C x H/stride x W/stride, and, if asked for, the prototypes of every block."""
        maps = self.embedding(maps)
        size, tokens = map_size(maps), maps_to_tokens(maps)
        found = []
        for index, block in enumerate(self.blocks):
            tokens, prototypes = block(tokens, size, asked)
            if prototypes is not None:
                found.append(prototypes)
            if index == 0:
                maps = tokens_to_maps(tokens, size)
                tokens = maps_to_tokens(self.position(maps))
        return tokens_to_maps(self.norm(tokens), size), tuple(found)


class Encoder(nn.Module):
    """Features of an image at 1/4 and 1/8 of its size, whatever that is: it pads the image and crops the features."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embed = EMBEDDINGS[config.embedding]
        widths_in, reductions = (3, config.widths[0]), (STRIDES[0], STRIDES[1] // STRIDES[0])
        self.stages = nn.ModuleList(
            Stage(embed(width_in, width, reduction), width, [block(config, width) for _ in range(depth)])
            for width_in, width, reduction, depth in zip(
                widths_in, config.widths, reductions, config.depths, strict=True
            )
        )

    def forward(self, images: Tensor, prototypes: bool = False) -> EncoderOutput:
        """images: B x 3 x H x W in [-1, 1]; `prototypes` asks for those of every block as well."""
        padding = Padding.to_multiple(images.shape[2], images.shape[3], STRIDES[-1], LEAST_SIDE)
        maps = padding.pad(images)
        features, found = [], []
        for stage, stride in zip(self.stages, STRIDES, strict=True):
            maps, of_blocks = stage(maps, prototypes)
            features.append(padding.crop(maps, stride))
            found.append(of_blocks)
        return EncoderOutput(tuple(features), tuple(found) if prototypes else ())


def block(config: ModelConfig, channels: int) -> Block:
    """One block as the configuration describes it."""
    heads = channels // config.head_width
    with_cap, with_ls = config.components in ("both", "cap"), config.components in ("both", "ls")
    prototyping = Prototyping(
        channels,
        heads,
        prototypes=config.prototypes,
        iterations=config.iterations if with_cap else 0,
        update=config.update,
        normalize=config.normalize,
        residual=config.residual,
    )
    synchronization = SYNCHRONIZATIONS[config.synchronization if with_ls else "none"]
    return Block(channels, Mixer(prototyping, synchronization(channels, heads)))
