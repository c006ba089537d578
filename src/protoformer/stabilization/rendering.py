"""Frames as a steady camera would have taken them."""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.video.types import ImageArray

Field = npt.NDArray[np.float32]

REACH = 0.08
"""Share of a side within which local warps fade out towards the rim of the crop: no place beyond a frame is shown."""


@dataclass(frozen=True, eq=False)
class View:
    """Where a steady frame is found in a shaky one, pixels from their centers: z -> turn share z + shift, plus `local`.

    share: of a frame's sides that is shown. local: 2 x h x w, pixels, at the centers of cells of the frame; None of a
    frame that moves as a whole.
    """

    turn: complex
    shift: complex
    share: float
    local: Field | None

    def matrix(self, size: tuple[int, int]) -> npt.NDArray[np.float64]:
        """From pixels (x, y, 1) of the steady frame to those of the shaky one, but for `local`: 2 x 3."""
        center = (size[1] - 1) / 2 + 1j * (size[0] - 1) / 2
        turn = self.share * self.turn
        origin = center + self.shift - turn * center
        return np.array([[turn.real, -turn.imag, origin.real], [turn.imag, turn.real, origin.imag]])


def render_stabilized(picture: ImageArray, view: View, border: bool = False) -> ImageArray:
    """A shaky frame, uint8 HxWx3, as the steady one of the same size. border: what it does not show is black."""
    size = picture.shape[:2]
    edge = cv2.BORDER_CONSTANT if border else cv2.BORDER_REPLICATE
    matrix = view.matrix(size)
    if view.local is None:
        flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        return np.asarray(cv2.warpAffine(picture, matrix, size[::-1], flags=flags, borderMode=edge), np.uint8)
    across, down = sample_field(view, size)
    return np.asarray(cv2.remap(picture, across, down, cv2.INTER_CUBIC, borderMode=edge), np.uint8)


def sample_field(view: View, size: tuple[int, int]) -> tuple[Field, Field]:
    """The column and row of the shaky frame that each pixel of the steady one shows: H x W each."""
    height, width = size
    matrix = view.matrix(size).astype(np.float32)
    x, y = np.arange(width, dtype=np.float32)[None], np.arange(height, dtype=np.float32)[:, None]
    places = [row[0] * x + row[1] * y + row[2] for row in matrix]
    if view.local is not None:
        fade = np.minimum(_from_rim(width)[None], _from_rim(height)[:, None])
        places = [place + fade * _spread(view, part, size) for place, part in zip(places, view.local, strict=True)]
    return places[0], places[1]


def _from_rim(side: int) -> Field:
    """0 at both ends of a side, 1 from REACH of it on."""
    place = np.arange(side, dtype=np.float32)
    distance = np.minimum(place, side - 1 - place) / max(1.0, REACH * side)
    return np.minimum(1, distance).astype(np.float32)


def _spread(view: View, part: Field, size: tuple[int, int]) -> Field:
    """One direction of the local warp, h x w, at every pixel of the crop: H x W."""
    rows, columns = part.shape
    down, across = rows / size[0], columns / size[1]
    # From a pixel of the output to its place in the crop, and from there to cells.
    first = [
        ((1 - view.share) * side / 2) * scale - 0.5 + 0.5 * view.share * scale
        for side, scale in ((size[1], across), (size[0], down))
    ]
    matrix = np.array([[view.share * across, 0, first[0]], [0, view.share * down, first[1]]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    spread = cv2.warpAffine(part, matrix, size[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(spread, np.float32)
