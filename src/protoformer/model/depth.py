"""Scene depth: encoder and decoder put together, and the camera that depths are told in."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protoformer.geometry import Padding
from protoformer.model.config import ModelConfig
from protoformer.model.depth_decoder import CANONICAL_FOCAL, STRIDES, DepthDecoder, build_decoder
from protoformer.model.encoder import Encoder
from protoformer.model.flow_decoder import Progress
from protoformer.model.prototyping import Prototypes

__all__ = [
    "CANONICAL_FOCAL",
    "DepthNetwork",
    "DepthPrediction",
    "build_depth",
    "canonical_log",
    "depth_padding",
    "focal_length",
    "metric_depth",
    "middle_of",
    "optical_centre",
]

LEAST_SIDE = 64
"""Smaller images are padded to this, so that instance norm has more than one pixel at the coarsest level."""
LEAST_DEPTH = 1e-6
"""Metres; unknown depths are stored as 0, whose logarithm is no number to compute with."""


@dataclass(frozen=True)
class DepthPrediction:
    """What the network says of a batch of images, at their size.

    logs: per update kept, the best last, B x 1 x H x W, natural logarithm of depth in metres for a camera of
    CANONICAL_FOCAL; log_scales: likewise, logarithm of the Laplace scale of the error of `logs`.
    prototypes: per stage and block of the encoder; empty unless asked for.
    """

    logs: tuple[Tensor, ...]
    log_scales: tuple[Tensor, ...]
    prototypes: tuple[tuple[Prototypes, ...], ...]


class DepthNetwork(nn.Module):
    """How far away everything in an image is.

    features: Encoder of the image, as that of flow is. decoder: takes its features and returns a DepthSequence.
    """

    def __init__(self, features: Encoder, decoder: DepthDecoder, config: ModelConfig) -> None:
        super().__init__()
        self.features = features
        self.decoder = decoder
        self.config = config

    def forward(
        self,
        images: Tensor,
        centre: Tensor | None = None,
        updates: int | None = None,
        every: bool = False,
        prototypes: bool = False,
        progress: Progress | None = None,
    ) -> DepthPrediction:
        """images: B x 3 x H x W in [-1, 1], any size.

        centre: B x 2, (x, y) that the camera looks at, pixels, the centre of the first one being (0, 0); None: the
        middle of the images. updates: how many, by default as configured. every: return the estimate of every update.
        prototypes: return those of the encoder as well. progress: told of every update.
        """
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"depth needs a batch of images, B x 3 x H x W, not {tuple(images.shape)}")
        padding = depth_padding(images)
        encoded = self.features(padding.pad(images), prototypes)
        centre = middle_of(images) if centre is None else centre
        wanted = self.config.depth_updates if updates is None else updates
        sequence = self.decoder(encoded.features, centre, wanted, every, progress)
        return DepthPrediction(
            tuple(padding.crop(log) for log in sequence.logs),
            tuple(padding.crop(log_scale) for log_scale in sequence.log_scales),
            encoded.prototypes,
        )


def build_depth(config: ModelConfig) -> DepthNetwork:
    """The depth network that a configuration describes, with fresh random weights."""
    return DepthNetwork(Encoder(config), build_decoder(config), config)


def depth_padding(images: Tensor) -> Padding:
    """What the network adds to images, B x 3 x H x W, before it encodes them."""
    return Padding.to_multiple(images.shape[2], images.shape[3], STRIDES[0], LEAST_SIDE)


def canonical_log(depth: Tensor, focal: Tensor) -> Tensor:
    """The natural logarithm of what a camera of CANONICAL_FOCAL would have to measure to see the same image.

    A camera of focal length f sees a thing as large as one of focal length g does at g / f times its distance. depth:
    B x 1 x H x W, metres; focal: B, pixels of the image that the network sees.
    """
    return (depth.clamp_min(LEAST_DEPTH) * (CANONICAL_FOCAL / focal).view(-1, 1, 1, 1)).log()


def metric_depth(log: Tensor, focal: Tensor) -> Tensor:
    """The inverse of `canonical_log`: metres, B x 1 x H x W."""
    return log.exp() * (focal / CANONICAL_FOCAL).view(-1, 1, 1, 1)


def middle_of(images: Tensor) -> Tensor:
    """The middle of each image, B x 2, (x, y) in pixels: what most cameras look at."""
    places = ((images.shape[3] - 1) / 2, (images.shape[2] - 1) / 2)
    return torch.stack([images.new_full((len(images),), place, dtype=torch.float32) for place in places], dim=1)


def optical_centre(intrinsics: Tensor) -> Tensor:
    """What each camera looks at: B x 3 x 3 to B x 2, (x, y) in pixels."""
    return intrinsics[:, :2, 2]


def focal_length(intrinsics: Tensor) -> Tensor:
    """One focal length of each camera, the geometric mean of both, as areas go by it: B x 3 x 3 to B, pixels."""
    return torch.sqrt(intrinsics[:, 0, 0] * intrinsics[:, 1, 1])
