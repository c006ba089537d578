"""What a network made of a pair of crops, drawn."""

import numpy as np
from torch import Tensor

from protoformer.show.prototypes import Pixels, picture
from protoformer.world import TrackPairs

GIVEN, TRUE, FOUND = (255, 255, 255), (60, 220, 60), (255, 60, 60)
"""Colours of the target's box where it is known, where it is, and where it was found."""


def pair_picture(pairs: TrackPairs, found: Tensor) -> Pixels:
    """Reference and search side by side, uint8 S x (R + S) x 3; found: 5, box in search pixels and score in [0, 1].

    The true box is drawn where there is one. Below the reference a bar as long as the score: full is sure.
    """
    reference, search = picture(pairs.reference[0]), picture(pairs.search[0])
    _frame(reference, pairs.reference_boxes[0], GIVEN)
    if bool(pairs.located[0]):
        _frame(search, pairs.boxes[0], TRUE)
    _frame(search, found[:4], FOUND)
    height, wide = max(len(reference), len(search)), reference.shape[1]
    sheet = np.zeros((height, wide + search.shape[1], 3), dtype=np.uint8)
    sheet[: len(reference), :wide] = reference
    sheet[: len(search), wide:] = search
    sheet[-3:, : round(wide * float(found[4].clamp(0, 1)))] = FOUND
    return sheet


def _frame(pixels: Pixels, box: Tensor, colour: tuple[int, int, int]) -> None:
    """Draw the outline of a box (x, y, w, h), one pixel wide, as far as it lies on the picture."""
    height, width = pixels.shape[:2]
    x, y, across, down = box.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).tolist()
    left, right = (round(min(max(place, 0), width - 1)) for place in (x, x + across - 1))
    top, bottom = (round(min(max(place, 0), height - 1)) for place in (y, y + down - 1))
    pixels[top : bottom + 1, (left, right)] = colour
    pixels[(top, bottom), left : right + 1] = colour
