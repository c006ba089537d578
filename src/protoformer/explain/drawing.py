"""Images of explanations: pixels tinted by prototype, by its mean motion or depth, or by moving part."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from protoformer.explain.groups import cells_to_pixels
from protoformer.geometry.regions import boundaries
from protoformer.viz.colormaps import (
    Pixels,
    distinct_colors,
    draw_gray,
    flow_to_color,
    frame_pixels,
    label_colors,
    to_uint8,
)
from protoformer.viz.depth_colors import depth_to_color

if TYPE_CHECKING:
    from protoformer.explain.result import Explanation
    from protoformer.explain.video import PrototypeFrame

STRENGTH = 0.6
"""Weight of the color of a pixel's label; the rest is the image."""


def prototype_colors(explanation: "Explanation", layer: str | None = None, families: int | None = None) -> list[Tensor]:
    """Return the colors of the prototypes of a layer, for each image: K x 3 in [0, 1].

    Colors depend on the index, so that they are the same in every run, and neighbors in the pooling grid have different
    hues. In the second image, matched prototypes have the color of their match, and others are gray.

    Args:
        explanation: The explanation.
        layer: Name of the layer; None: the last.
        families: Number of families of similar prototypes that share a color; None: every prototype has its own.
    """
    first_layer = explanation.first.layer(layer)
    colors = distinct_colors(first_layer.num_prototypes)
    if families is not None:
        colors = colors[first_layer.families(families)]
    if explanation.second is None:
        return [colors]
    shades = 0.25 + 0.5 * ((torch.arange(first_layer.num_prototypes).float() * 0.61803399) % 1)
    second_colors = shades[:, None].repeat(1, 3)
    for match in explanation.matches(layer):
        second_colors[match.second] = colors[match.first]
    return [colors, second_colors]


def draw_groups(explanation: "Explanation", layer: str | None = None, families: int | None = None) -> list[Pixels]:
    """Tint each image by the final prototype of each pixel, and outline these regions: uint8, H x W x 3."""
    colors = prototype_colors(explanation, layer, families)
    return [
        tint_image(to_uint8(image.image), image.layer(layer).labels(), image_colors, outlined=True)
        for image, image_colors in zip(explanation.images, colors, strict=True)
    ]


def value_colors(explanation: "Explanation", layer: str | None = None) -> list[Tensor]:
    """Return the colors of the mean motion or depth of the prototypes of each image: K x 3 in [0, 1].

    Empty without flow or depth. The second image of a flow has no motion: its prototypes have the color of their match,
    or are gray.
    """
    colors: list[Tensor] = []
    for image in explanation.images:
        if image.values is not None:
            means = torch.zeros(1, image.layer(layer).num_prototypes, len(image.values))
            for group in image.groups(layer):
                means[0, group.prototype] = torch.tensor(group.mean)
            is_flow = explanation.task == "flow"
            drawn = flow_to_color(means.numpy()) if is_flow else depth_to_color(means[..., 0].numpy())
            colors.append(torch.from_numpy(drawn[0]).float() / 255)
        elif colors:
            colors.append(torch.full_like(colors[0], 0.5))
            for match in explanation.matches(layer):
                colors[1][match.second] = colors[0][match.first]
    return colors


def draw_values(explanation: "Explanation", layer: str | None = None) -> list[Pixels]:
    """Draw the regions of prototypes in the color of their mean motion or depth: uint8, H x W x 3; empty without it."""
    return [
        tint_image(to_uint8(image.image), image.layer(layer).labels(), colors, strength=0.75, outlined=True)
        for image, colors in zip(explanation.images, value_colors(explanation, layer), strict=False)
    ]


def part_colors(count: int) -> Tensor:
    """Return the color of each moving part and, last, black for pixels of no part: (count + 1) x 3 in [0, 1]."""
    return torch.cat((distinct_colors(count), torch.zeros(1, 3, dtype=torch.float32)))


def draw_parts(explanation: "Explanation", layer: str | None = None) -> list[Pixels]:
    """Tint and outline the moving parts in both images: uint8, H x W x 3; empty without flow.

    A part has the same color in both. Pixels of the second image that no pixel of the first moves to are dark.
    """
    moving = explanation.parts(layer)
    if moving is None:
        return []
    colors, drawn = part_colors(len(moving.parts)), []
    for image, labels in zip(explanation.images, (moving.labels, moving.second), strict=True):
        drawn.append(tint_image(to_uint8(image.image), labels, colors, outlined=True))
    return drawn


def draw_em_iterations(explanation: "Explanation", layer: str | None = None) -> Pixels:
    """Draw the first image after every EM iteration side by side, the pooled start first: uint8, H x (N + 1) W x 3."""
    first_layer, image = explanation.first.layer(layer), to_uint8(explanation.first.image)
    colors = distinct_colors(first_layer.num_prototypes)
    iterations = range(first_layer.num_iterations + 1)
    drawn = [tint_image(image, first_layer.labels(iteration), colors, outlined=True) for iteration in iterations]
    return np.concatenate(drawn, axis=1)


def draw_memberships(explanation: "Explanation", prototype: int, layer: str | None = None) -> Pixels:
    """Draw the soft membership of the first image's pixels in a prototype, white at its maximum: uint8, H x W."""
    first_layer = explanation.first.layer(layer)
    membership = first_layer.membership(prototype)
    fine = cells_to_pixels(membership, first_layer.size, first_layer.input_size, first_layer.trace.stride)
    return draw_gray(fine / fine.max().clamp_min(1e-12))


def draw_prototype_frame(frame: "PrototypeFrame") -> Pixels:
    """Tint a frame of a clip by prototype, or by family if there are some, and outline the regions: H x W x 3.

    Prototypes and families keep their colors through the clip.
    """
    families, indices = frame.families.unique(return_inverse=True)
    return tint_image(frame_pixels(frame.frame), indices, label_colors(families.tolist()), outlined=True)


def tint_image(
    image: Pixels, labels: Tensor, colors: Tensor, strength: float = STRENGTH, outlined: bool = False
) -> Pixels:
    """Tint a gray version of an image by its labels, and outline their regions on request.

    Args:
        image: H x W x 3, uint8.
        labels: H x W, int64.
        colors: Color of each label, n x 3 in [0, 1].
        strength: Weight of the color; the rest is the image.
        outlined: Whether pixels at a boundary are dark.

    Returns:
        H x W x 3, uint8.
    """
    gray = image.astype(np.float32).mean(axis=2, keepdims=True)
    paint = (colors * 255).numpy().astype(np.float32)[labels.numpy()]
    tinted = np.asarray(((1 - strength) * gray + strength * paint).round().clip(0, 255), dtype=np.uint8)
    if outlined:
        tinted[boundaries(labels).numpy()] //= 3
    return tinted
