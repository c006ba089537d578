"""Explanations as pictures: every pixel in the colour of its prototype, the same one wherever the prototype is."""

import numpy as np
import torch
from torch import Tensor

from protoformer.inference.explanation import Explanation
from protoformer.inference.prototype_groups import at_pixels
from protoformer.inference.prototype_video import PrototypeStep
from protoformer.metrics.regions import boundaries
from protoformer.show.flow_frames import frame_pixels
from protoformer.show.prototypes import Pixels, colours_of, distinct_colours, grey_picture, picture

STRENGTH = 0.6
"""How much of a pixel is the colour of its prototype; the rest is the image."""


def prototype_colours(explanation: Explanation, layer: str | None = None, families: int | None = None) -> list[Tensor]:
    """Of each image, the colour of every prototype in a layer: K x 3 in [0, 1].

    By number, so that they are the same in every run; prototypes beside one another in the grid that they were pooled
    from have different hues. In the second image a prototype that is matched has the colour of its match, any other is
    a grey. families: similar prototypes share a colour, so that about so many are left; None: each has its own.
    """
    of_first = explanation.first.layer(layer)
    own = distinct_colours(of_first.count)
    if families is not None:
        own = own[of_first.families(families)]
    if explanation.second is None:
        return [own]
    shades = 0.25 + 0.5 * ((torch.arange(of_first.count).float() * 0.61803399) % 1)
    other = shades[:, None].repeat(1, 3)
    for match in explanation.matches(layer):
        other[match.second] = own[match.first]
    return [own, other]


def groups_pictures(explanation: Explanation, layer: str | None = None, families: int | None = None) -> list[Pixels]:
    """Each image with every pixel tinted by its prototype after the last step of EM: uint8 H x W x 3."""
    colours = prototype_colours(explanation, layer, families)
    return [
        tinted(picture(each.image), each.layer(layer).labels(), own)
        for each, own in zip(explanation.images, colours, strict=True)
    ]


def part_colours(count: int) -> Tensor:
    """The colour of each part by its number, and at the end black for what is in none: (count + 1) x 3 in [0, 1]."""
    return torch.cat((distinct_colours(count), torch.zeros(1, 3, dtype=torch.float32)))


def parts_pictures(explanation: Explanation, layer: str | None = None) -> list[Pixels]:
    """Both images with every pixel tinted by the part that it moves with, outlined: uint8 H x W x 3.

    A part has one colour in both. Dark in the second is where none of the first image arrives. Empty without a flow.
    """
    found = explanation.parts(layer)
    if found is None:
        return []
    colours, shown = part_colours(len(found.parts)), []
    for image, labels in zip(explanation.images, (found.labels, found.second), strict=True):
        painted = tinted(picture(image.image), labels, colours)
        painted[boundaries(labels).numpy()] //= 3
        shown.append(painted)
    return shown


def steps_picture(explanation: Explanation, layer: str | None = None) -> Pixels:
    """The first image after every step of EM, from the pooled start on the left: uint8 H x (N + 1) W x 3."""
    chosen, image = explanation.first.layer(layer), picture(explanation.first.image)
    colours = distinct_colours(chosen.count)
    return np.concatenate([tinted(image, chosen.labels(step), colours) for step in range(chosen.steps + 1)], axis=1)


def membership_picture(explanation: Explanation, prototype: int, layer: str | None = None) -> Pixels:
    """How much of each pixel of the first image belongs to a prototype, white being the most there is: uint8 H x W."""
    chosen = explanation.first.layer(layer)
    soft = chosen.membership(prototype)
    fine = at_pixels(soft, chosen.size, chosen.seen, chosen.trace.stride)
    return grey_picture(fine / fine.max().clamp_min(1e-12))


def prototype_frame(step: PrototypeStep) -> Pixels:
    """A frame of a clip tinted by its families of prototypes, which keep their colours all along: H x W x 3."""
    shown, places = step.families.unique(return_inverse=True)
    return tinted(frame_pixels(step.image), places, colours_of(shown.tolist()))


def tinted(image: Pixels, labels: Tensor, colours: Tensor, strength: float = STRENGTH) -> Pixels:
    """An image (H x W x 3) in grey, tinted by the colours (n x 3 in [0, 1]) of its labels (H x W): uint8 H x W x 3."""
    grey = image.astype(np.float32).mean(axis=2, keepdims=True)
    paint = (colours * 255).numpy().astype(np.float32)[labels.numpy()]
    return np.asarray(((1 - strength) * grey + strength * paint).round().clip(0, 255), dtype=np.uint8)
