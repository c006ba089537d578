"""From images to their explanations."""

import torch
from torch import Tensor

from protoformer.geometry import Padding
from protoformer.inference.explanation import ImageExplanation, LayerExplanation
from protoformer.model.encoder import Encoder
from protoformer.model.flow import normalised
from protoformer.model.tracing import traced


def explained_image(
    encoder: Encoder, image: Tensor, seen: Tensor, padding: Padding, values: Tensor | None
) -> ImageExplanation:
    """What an encoder groups in an image, in full precision.

    image: 3 x H x W in [0, 1], on the CPU; seen: 1 x 3 x h x w in [0, 1], as the network sees it, on its device;
    padding: what the network adds to that; values: C x H x W, of the image's pixels.
    """
    with torch.autocast(seen.device.type, enabled=False):
        traces = traced(encoder, padding.pad(normalised(seen)))
    size, shown = (image.shape[1], image.shape[2]), (seen.shape[2], seen.shape[3])
    return ImageExplanation(image, tuple(LayerExplanation(size, shown, trace) for trace in traces), values)
