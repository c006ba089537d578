"""Explanations as pictures: every pixel in the color of its prototype, the same one wherever the prototype is."""

import numpy as np
import torch
from torch import Tensor

from protoformer.explain.groups import at_pixels
from protoformer.explain.result import Explanation
from protoformer.explain.video import PrototypeFrame
from protoformer.geometry.regions import boundaries
from protoformer.viz.images import Pixels, distinct_colors, draw_gray, frame_pixels, label_colors, to_uint8

STRENGTH = 0.6
"""How much of a pixel is the color of its prototype; the rest is the image."""


def prototype_colors(explanation: Explanation, layer: str | None = None, families: int | None = None) -> list[Tensor]:
    """Of each image, the color of every prototype in a layer: K x 3 in [0, 1].

    By number, so that they are the same in every run; prototypes beside one another in the grid that they were pooled
    from have different hues. In the second image a prototype that is matched has the color of its match, any other is
    a gray. families: similar prototypes share a color, so that about so many are left; None: each has its own.
    """
    of_first = explanation.first.layer(layer)
    own = distinct_colors(of_first.count)
    if families is not None:
        own = own[of_first.families(families)]
    if explanation.second is None:
        return [own]
    shades = 0.25 + 0.5 * ((torch.arange(of_first.count).float() * 0.61803399) % 1)
    other = shades[:, None].repeat(1, 3)
    for match in explanation.matches(layer):
        other[match.second] = own[match.first]
    return [own, other]


def draw_groups(explanation: Explanation, layer: str | None = None, families: int | None = None) -> list[Pixels]:
    """Each image with every pixel tinted by its prototype after the last step of EM: uint8 H x W x 3."""
    colors = prototype_colors(explanation, layer, families)
    return [
        tint_image(to_uint8(each.image), each.layer(layer).labels(), own)
        for each, own in zip(explanation.images, colors, strict=True)
    ]


def part_colors(count: int) -> Tensor:
    """The color of each part by its number, and at the end black for what is in none: (count + 1) x 3 in [0, 1]."""
    return torch.cat((distinct_colors(count), torch.zeros(1, 3, dtype=torch.float32)))


def draw_parts(explanation: Explanation, layer: str | None = None) -> list[Pixels]:
    """Both images with every pixel tinted by the part that it moves with, outlined: uint8 H x W x 3.

    A part has one color in both. Dark in the second is where none of the first image arrives. Empty without a flow.
    """
    found = explanation.parts(layer)
    if found is None:
        return []
    colors, shown = part_colors(len(found.parts)), []
    for image, labels in zip(explanation.images, (found.labels, found.second), strict=True):
        painted = tint_image(to_uint8(image.image), labels, colors)
        painted[boundaries(labels).numpy()] //= 3
        shown.append(painted)
    return shown


def draw_em_steps(explanation: Explanation, layer: str | None = None) -> Pixels:
    """The first image after every step of EM, from the pooled start on the left: uint8 H x (N + 1) W x 3."""
    chosen, image = explanation.first.layer(layer), to_uint8(explanation.first.image)
    colors = distinct_colors(chosen.count)
    return np.concatenate([tint_image(image, chosen.labels(step), colors) for step in range(chosen.steps + 1)], axis=1)


def draw_memberships(explanation: Explanation, prototype: int, layer: str | None = None) -> Pixels:
    """How much of each pixel of the first image belongs to a prototype, white being the most there is: uint8 H x W."""
    chosen = explanation.first.layer(layer)
    soft = chosen.membership(prototype)
    fine = at_pixels(soft, chosen.size, chosen.seen, chosen.trace.stride)
    return draw_gray(fine / fine.max().clamp_min(1e-12))


def draw_prototype_frame(step: PrototypeFrame) -> Pixels:
    """A frame of a clip tinted by its families of prototypes, which keep their colors all along: H x W x 3."""
    shown, places = step.families.unique(return_inverse=True)
    return tint_image(frame_pixels(step.frame), places, label_colors(shown.tolist()))


def tint_image(image: Pixels, labels: Tensor, colors: Tensor, strength: float = STRENGTH) -> Pixels:
    """An image (H x W x 3) in gray, tinted by the colors (n x 3 in [0, 1]) of its labels (H x W): uint8 H x W x 3."""
    gray = image.astype(np.float32).mean(axis=2, keepdims=True)
    paint = (colors * 255).numpy().astype(np.float32)[labels.numpy()]
    return np.asarray(((1 - strength) * gray + strength * paint).round().clip(0, 255), dtype=np.uint8)
