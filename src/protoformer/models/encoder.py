"""Encoder: a two-stage pyramid, shaped like Twins (Chu et al., NeurIPS 2021), whose attention layers are CAP and LS.

| stage | embedding "patches" | embedding "convolutions" | channels, heads | output |
| --- | --- | --- | --- | --- |
| 1 | 4x4 convolution of stride 4 | 7x7 convolution and two residual blocks | 128, 4 | 1/4 of the image |
| 2 | 2x2 convolution of stride 2 | a residual block of stride 2 | 256, 8 | 1/8 of the image |

The preset "paper" has patches and these widths, "fast" and "tiny" have convolutions. A stage is an embedding with a
LayerNorm, a block, a 3x3 depthwise convolution (positional encoding), a second block, and a final LayerNorm. A block
takes tokens x, B x HW x C:

    y = LayerNorm(x)
    x = x + LS(y, CAP(y))
    x = x + MLP(LayerNorm(x))

`Mixer` is LS(y, CAP(y)): it finds K prototypes of each image by N EM iterations (Cross-Attention Prototyping) and
updates each feature with its nearest prototype (Latent Synchronization, which ends with a feed-forward network of its
own, of ratio 2). For ablations the configuration field `mixer` replaces it by windowed self-attention or leaves it out.
The MLP has ratio 4. The flow network of the paper has two encoders without shared weights, one for the features of both
images and one for the context of the first.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.geometry.warps import Padding
from protoformer.models.config import EncoderConfig
from protoformer.models.kernels import fused
from protoformer.models.kernels.mixing import Weights
from protoformer.models.layers import FeedForward, MapNorm, PositionConv, TokenNorm, WindowAttention, init_for_relu
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import map_size, maps_to_tokens, tokens_to_maps
from protoformer.models.synchronization import SYNCHRONIZATIONS, LatentSynchronization


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of each pixel of B x C x H x W maps (LayerNorm2d of ConvNeXt and SAM)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = TokenNorm(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Normalize maps, B x C x H x W, to maps of the same shape."""
        result: Tensor = self.norm(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return result


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with instance norm and a shortcut connection; the first has the given stride."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        # No biases: instance norm subtracts them.
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm, self.norm_and_relu = MapNorm(), MapNorm(relu=True)
        is_identity = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if is_identity else nn.Conv2d(channels_in, channels, 1, stride=stride)

    def forward(self, maps: Tensor) -> Tensor:
        """Map B x channels_in x H x W to B x channels x H/stride x W/stride."""
        residual = self.norm(self.conv2(self.norm_and_relu(self.conv1(maps))))
        return F.relu(self.shortcut(maps) + residual)


def patches(channels_in: int, channels: int, stride: int) -> nn.Module:
    """Build the patch embedding of the paper: a convolution whose kernel equals its stride, then LayerNorm."""
    return nn.Sequential(nn.Conv2d(channels_in, channels, stride, stride=stride), ChannelNorm(channels))


def convolutions(channels_in: int, channels: int, stride: int) -> nn.Module:
    """Build a convolutional stem, which trains much faster from scratch than patch embedding.

    Stride 4 (stage 1): a 7x7 convolution of stride 2, a residual block, and a residual block of stride 2. Stride 2: one
    residual block of stride 2.
    """
    if stride == 2:
        layers: list[nn.Module] = [ResidualBlock(channels_in, channels, stride=2)]
    else:
        half = channels // 2
        layers = [
            nn.Conv2d(channels_in, half, 7, stride=2, padding=3, bias=False),
            MapNorm(relu=True),
            ResidualBlock(half, half),
            ResidualBlock(half, channels, stride=2),
        ]
    stem = nn.Sequential(*layers, ChannelNorm(channels))
    init_for_relu(stem)
    return stem


EMBEDDINGS = {"patches": patches, "convolutions": convolutions}
"""Stage embeddings by the name that the configuration field `embedding` gives them."""


STRIDES = (4, 8)
"""Downsampling factor of each stage, relative to the image."""
MIN_SIDE = 16
"""Smaller images are padded to this many pixels, as instance norm needs more than one pixel at the last stage."""


@dataclass(frozen=True)
class EncoderOutput:
    """Features and prototypes of a batch of images.

    Attributes:
        features: One map per stage, B x C x ceil(H / stride) x ceil(W / stride) for strides 4 and 8.
        prototypes: Per stage, the prototypes of each block that has some, over the feature map of the padded image;
            empty unless requested.
    """

    features: tuple[Tensor, ...]
    prototypes: tuple[tuple[Prototypes, ...], ...]


class Mixer(nn.Module):
    """Replacement of self-attention: CAP, then LS.

    Args:
        prototyping: Finds the prototypes of each image.
        synchronization: A module of `SYNCHRONIZATIONS`, which updates the features from the prototypes.
    """

    def __init__(self, prototyping: Prototyping, synchronization: nn.Module) -> None:
        super().__init__()
        self.prototyping = prototyping
        self.synchronization = synchronization

    def forward(
        self, tokens: Tensor, size: tuple[int, int], return_prototypes: bool = True
    ) -> tuple[Tensor, Prototypes | None]:
        """Compute the update of the tokens.

        Args:
            tokens: B x HW x C, normalized.
            size: (H, W) of the map.
            return_prototypes: Also return the prototypes.

        Returns:
            The update to add to the tokens, B x HW x C, and the prototypes, or None if they were not requested.
        """
        if self._can_fuse(tokens):
            return self._forward_fused(tokens, size, return_prototypes)
        prototypes = self.prototyping(tokens, size)
        mixed, assignment = self.synchronization(tokens, prototypes)
        return mixed, replace(prototypes, assignment=assignment) if return_prototypes else None

    def _can_fuse(self, tokens: Tensor) -> bool:
        """Return whether CAP and LS run as one fused operator on these tokens."""
        prototyping, (rows, columns) = self.prototyping, self.prototyping.grid
        has_kernel = prototyping.update == "cap" and prototyping.num_iterations > 0
        has_kernel = has_kernel and isinstance(self.synchronization, LatentSynchronization)
        return has_kernel and fused.can_mix(tokens, rows * columns, tokens.shape[2] // prototyping.heads)

    def _forward_fused(
        self, tokens: Tensor, size: tuple[int, int], return_prototypes: bool
    ) -> tuple[Tensor, Prototypes | None]:
        """Run CAP and LS as one fused operator; arguments and results as in `forward`."""
        cap, ls = self.prototyping, cast(LatentSynchronization, self.synchronization)
        settings = (cap.grid, cap.num_iterations, cap.normalize, cap.residual)
        mixed = fused.mix(tokens, Weights.of(cap, ls), size, *settings, keep=return_prototypes)
        output = fused.feed_forward(mixed.attended, ls.feed_forward)
        if not return_prototypes:
            return output, None
        keys, before, prior = mixed.projected[..., : tokens.shape[2]], None, None
        if cap.spatial_prior:
            before, prior = cap.prior_at(mixed.earlier_positions[-1], size), cap.prior_at(mixed.positions, size)
        inputs = cap.e_step_inputs_from_projections(mixed.queries[-1], keys, size, before)
        return output, Prototypes(mixed.centers, inputs, size, mixed.assignment, prior, tokens)


class Block(nn.Module):
    """Encoder block: pre-norm mixer and pre-norm MLP, each with a residual connection.

    Args:
        channels: C, channels of the tokens.
        mixer: CAP and LS, self-attention, or None for a block of only the MLP.
    """

    def __init__(self, channels: int, mixer: Mixer | WindowAttention | None) -> None:
        super().__init__()
        self.norm = None if mixer is None else TokenNorm(channels)
        self.mixer = mixer
        self.mlp = FeedForward(channels)

    def forward(
        self, tokens: Tensor, size: tuple[int, int], return_prototypes: bool = True
    ) -> tuple[Tensor, Prototypes | None]:
        """Run the block.

        Args:
            tokens: B x HW x C.
            size: (H, W) of the map.
            return_prototypes: Also return the prototypes.

        Returns:
            The new tokens, B x HW x C, and the prototypes, or None if there are none or they were not requested.
        """
        prototypes = None
        if self.mixer is not None and self.norm is not None:
            normed = self.norm(tokens)
            if isinstance(self.mixer, Mixer):
                mixed, prototypes = self.mixer(normed, size, return_prototypes)
            else:
                mixed = self.mixer(normed, size)
            tokens = tokens + mixed
        return tokens + self.mlp(tokens), prototypes


class Stage(nn.Module):
    """Encoder stage: embedding, blocks, a 3x3 depthwise positional convolution after the first block, LayerNorm.

    Args:
        embedding: Downsamples B x C_in x H x W to B x C x H/stride x W/stride.
        channels: C, channels of the stage.
        blocks: Blocks of the stage, in order.
    """

    def __init__(self, embedding: nn.Module, channels: int, blocks: list[Block]) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.position = PositionConv(channels)
        self.norm = TokenNorm(channels)

    def forward(self, maps: Tensor, return_prototypes: bool = True) -> tuple[Tensor, tuple[Prototypes, ...]]:
        """Run the stage.

        Args:
            maps: B x C_in x H x W.
            return_prototypes: Also return the prototypes of every block.

        Returns:
            Features, B x C x H/stride x W/stride, and the prototypes of every block, empty if not requested.
        """
        maps = self.embedding(maps)
        size, tokens = map_size(maps), maps_to_tokens(maps)
        prototypes = []
        for index, block in enumerate(self.blocks):
            tokens, block_prototypes = block(tokens, size, return_prototypes)
            if block_prototypes is not None:
                prototypes.append(block_prototypes)
            if index == 0:
                maps = tokens_to_maps(tokens, size)
                tokens = maps_to_tokens(self.position(maps))
        return tokens_to_maps(self.norm(tokens), size), tuple(prototypes)


class Encoder(nn.Module):
    """Two-stage encoder: features of images of any size at 1/4 and 1/8 of their resolution.

    Images are padded to a multiple of 8 by repeating the last row and column, and the features are cropped.

    Args:
        config: Defines the stages: embedding, channels, blocks, K prototypes and N EM iterations.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        embed = EMBEDDINGS[config.embedding]
        widths_in, reductions = (3, config.embed_dims[0]), (STRIDES[0], STRIDES[1] // STRIDES[0])
        self.stages = nn.ModuleList(
            Stage(embed(width_in, width, reduction), width, [build_block(config, width) for _ in range(depth)])
            for width_in, width, reduction, depth in zip(
                widths_in, config.embed_dims, reductions, config.depths, strict=True
            )
        )

    def forward(self, images: Tensor, return_prototypes: bool = False) -> EncoderOutput:
        """Encode images.

        Args:
            images: B x 3 x H x W in [-1, 1].
            return_prototypes: Also return the prototypes of every block.

        Returns:
            The features of both stages, and the prototypes if requested.
        """
        padding = Padding.to_multiple(images.shape[2], images.shape[3], STRIDES[-1], MIN_SIDE)
        maps = padding.pad(images)
        features, stage_prototypes = [], []
        for stage, stride in zip(self.stages, STRIDES, strict=True):
            maps, block_prototypes = stage(maps, return_prototypes)
            features.append(padding.crop(maps, stride))
            stage_prototypes.append(block_prototypes)
        return EncoderOutput(tuple(features), tuple(stage_prototypes) if return_prototypes else ())


def build_block(config: EncoderConfig, channels: int) -> Block:
    """Build one encoder block of `channels` channels as configured.

    `config.components` selects the ablations of the paper: without CAP the prototypes stay pooled (zero EM iterations),
    and without LS they are broadcast by their soft memberships.
    """
    heads = channels // config.head_dim
    if config.mixer == "none":
        return Block(channels, None)
    if config.mixer == "attention":
        return Block(channels, WindowAttention(channels, heads, config.num_prototypes))
    use_cap, use_ls = config.components in ("both", "cap"), config.components in ("both", "ls")
    prototyping = Prototyping(
        channels,
        heads,
        num_prototypes=config.num_prototypes,
        num_iterations=config.num_iterations if use_cap else 0,
        update=config.update,
        normalize=config.normalize,
        residual=config.residual,
        spatial_prior=config.spatial_prior,
    )
    synchronization = SYNCHRONIZATIONS[config.synchronization if use_ls else "none"]
    return Block(channels, Mixer(prototyping, synchronization(channels, heads)))
