"""How pixels become the first features of a stage: plain patches, or convolutions."""

import torch.nn.functional as F
from torch import Tensor, nn

from protoformer.model.initialization import for_relu
from protoformer.model.layers import MapNorm, TokenNorm


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of each pixel of a B x C x H x W map."""

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
    for_relu(stem)
    return stem


EMBEDDINGS = {"patches": patches, "convolutions": convolutions}
