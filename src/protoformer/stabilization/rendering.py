"""Rendering of stabilized frames."""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from protoformer.video.types import ImageArray

Field = npt.NDArray[np.float32]

FADE = 0.08
"""Fraction of a side over which local warps fade out towards the border of the crop, so that no pixel outside the frame
is sampled."""


@dataclass(frozen=True, eq=False)
class View:
    """Position of a stabilized frame in the input frame.

    It maps z to turn crop_fraction z + shift, in pixels from the center, plus `local`.

    Attributes:
        turn: Scale and rotation.
        shift: Translation, pixels.
        crop_fraction: Fraction of the sides that is shown.
        local: Local warp, 2 x h x w, pixels, at the centers of cells of the frame, or None.
    """

    turn: complex
    shift: complex
    crop_fraction: float
    local: Field | None

    def matrix(self, size: tuple[int, int]) -> npt.NDArray[np.float64]:
        """Return the affine map from pixels (x, y, 1) of the output to the input, without `local`: 2 x 3."""
        center = (size[1] - 1) / 2 + 1j * (size[0] - 1) / 2
        turn = self.crop_fraction * self.turn
        origin = center + self.shift - turn * center
        return np.array([[turn.real, -turn.imag, origin.real], [turn.imag, turn.real, origin.imag]])


def render_stabilized(image: ImageArray, view: View, border: bool = False) -> ImageArray:
    """Warp an input frame, uint8 H x W x 3, to the stabilized one.

    Pixels outside the input frame are black with `border`; otherwise its border is replicated.
    """
    size = image.shape[:2]
    border_mode = cv2.BORDER_CONSTANT if border else cv2.BORDER_REPLICATE
    matrix = view.matrix(size)
    if view.local is None:
        flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        return np.asarray(cv2.warpAffine(image, matrix, size[::-1], flags=flags, borderMode=border_mode), np.uint8)
    x, y = sample_field(view, size)
    return np.asarray(cv2.remap(image, x, y, cv2.INTER_CUBIC, borderMode=border_mode), np.uint8)


def sample_field(view: View, size: tuple[int, int]) -> tuple[Field, Field]:
    """Return the column and row in the input frame of each pixel of the stabilized frame: H x W each."""
    height, width = size
    matrix = view.matrix(size).astype(np.float32)
    x, y = np.arange(width, dtype=np.float32)[None], np.arange(height, dtype=np.float32)[:, None]
    coordinates = [row[0] * x + row[1] * y + row[2] for row in matrix]
    if view.local is not None:
        fade = np.minimum(_fade_weights(width)[None], _fade_weights(height)[:, None])
        coordinates = [
            values + fade * _resample_local(view, component, size)
            for values, component in zip(coordinates, view.local, strict=True)
        ]
    return coordinates[0], coordinates[1]


def _fade_weights(side: int) -> Field:
    """Return weights along a side: 0 at both ends, 1 from a fraction FADE on."""
    index = np.arange(side, dtype=np.float32)
    distance = np.minimum(index, side - 1 - index) / max(1.0, FADE * side)
    return np.minimum(1, distance).astype(np.float32)


def _resample_local(view: View, component: Field, size: tuple[int, int]) -> Field:
    """Interpolate one component of the local warp, h x w, at every pixel of the crop: H x W."""
    rows, columns = component.shape
    scale_y, scale_x = rows / size[0], columns / size[1]
    # From pixels of the output to pixels of the frame, and from there to cells.
    offset = [
        ((1 - view.crop_fraction) * side / 2) * scale - 0.5 + 0.5 * view.crop_fraction * scale
        for side, scale in ((size[1], scale_x), (size[0], scale_y))
    ]
    matrix = np.array([[view.crop_fraction * scale_x, 0, offset[0]], [0, view.crop_fraction * scale_y, offset[1]]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    resampled = cv2.warpAffine(component, matrix, size[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(resampled, np.float32)
