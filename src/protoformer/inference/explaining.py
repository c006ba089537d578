"""From images to their explanations."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry import Padding
from protoformer.inference.explanation import Explanation, ImageExplanation, LayerExplanation
from protoformer.inference.images import ImageLike
from protoformer.model.encoder import Encoder
from protoformer.model.flow import normalised
from protoformer.model.tracing import traced


class Explaining(Protocol):
    """A model that can explain what it found."""

    def explain(self, image: ImageLike, second: ImageLike | None = None, *, result: Any = None) -> Explanation:
        """What the network groups in an image, and in a second one; result: what it found in them."""


@dataclass(frozen=True, eq=False)
class Explainer:
    """How a result is explained: by the model that found it, from the images as they were handed in.

    It holds on to both. A pickle of a result has neither: there, this is None.
    """

    model: Explaining
    images: tuple[ImageLike, ...]

    def __call__(self, result: object) -> Explanation:
        """The explanation of a result in these images."""
        return self.model.explain(*self.images, result=result)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def check_result(found: Tensor, image: Tensor, what: str) -> None:
    """Refuse to explain an image by a result of another size, or with values that are none.

    found, image: ... x H x W each; what: of the result.
    """
    if found.shape[-2:] != image.shape[-2:]:
        raise InputError(
            f"the {what} is of {found.shape[-1]}x{found.shape[-2]} pixels and the image is "
            f"{image.shape[-1]}x{image.shape[-2]}; give the result for this image."
        )
    if not bool(found.isfinite().all()):
        raise InputError(f"the {what} has values that are not finite; give one that is known at every pixel.")


def explained_image(
    encoder: Encoder,
    image: Tensor,
    seen: Tensor,
    padding: Padding,
    values: Tensor | None,
    confidence: Tensor | None = None,
) -> ImageExplanation:
    """What an encoder groups in an image, in full precision.

    image: 3 x H x W in [0, 1], on the CPU; seen: 1 x 3 x h x w in [0, 1], as the network sees it, on its device;
    padding: what the network adds to that; values: C x H x W, of the image's pixels; confidence: in these, 1 x H x W.
    """
    with torch.autocast(seen.device.type, enabled=False):
        traces = traced(encoder, padding.pad(normalised(seen)))
    size, shown = (image.shape[1], image.shape[2]), (seen.shape[2], seen.shape[3])
    layers = tuple(LayerExplanation(size, shown, trace) for trace in traces)
    return ImageExplanation(image, layers, values, confidence)
