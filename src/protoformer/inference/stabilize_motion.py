"""How a camera moves from frame to frame: similarities, from flows in which other things move as well."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Complex = npt.NDArray[np.complex128]
Array = npt.NDArray[np.float64]

ROUNDS = 12
SPREAD = 4.685
"""Residuals of so many standard deviations count for nothing: Tukey's weights."""
FINEST = 0.05
"""Pixels: residuals below this are all alike."""


@dataclass(frozen=True)
class Motion:
    """A similarity z -> turn z + shift of points z = x + iy, pixels from the centre of the frame.

    turn: scale and angle. trust: in [0, 1], the share of the frame that is known to move so.
    """

    turn: complex
    shift: complex
    trust: float

    def shared(self, parts: int) -> "Motion":
        """The motion that, done so many times, is this one."""
        turn = self.turn ** (1 / parts)
        total = sum(turn**power for power in range(parts))
        return Motion(turn, self.shift / total, self.trust)


def centred_cells(rows: int, columns: int, size: tuple[int, int]) -> Complex:
    """Centres of rows x columns equal cells of a frame of (height, width), pixels from its centre: rows x columns."""
    height, width = size
    x = (np.arange(columns) + 0.5) * width / columns - width / 2
    y = (np.arange(rows) + 0.5) * height / rows - height / 2
    return x[None] + 1j * y[:, None]


def fitted_motion(places: Complex, shifts: Complex, weights: Array) -> Motion:
    """The similarity that most of the points agree on. places: n; shifts: n, pixels that each moves; weights: n, >= 0.

    Reweighted least squares from the weighted median shift on: what moves by itself loses its weight.
    """
    total = float(weights.sum())
    if total <= 0:
        return Motion(1 + 0j, 0j, 0.0)
    turn, shift = 1 + 0j, _median(shifts.real, weights) + 1j * _median(shifts.imag, weights)
    kept = weights
    for _ in range(ROUNDS):
        away = np.abs(places + shifts - turn * places - shift)
        scale = max(FINEST, 1.4826 * _median(away, weights))
        kept = weights * np.square(np.clip(1 - np.square(away / (SPREAD * scale)), 0, None))
        turn, shift = _least_squares(places, places + shifts, kept)
    return Motion(turn, shift, float(kept.sum() / len(kept)))


def _least_squares(before: Complex, after: Complex, weights: Array) -> tuple[complex, complex]:
    share = weights / weights.sum()
    middle, goal = (share * before).sum(), (share * after).sum()
    away = before - middle
    energy = float((share * np.abs(away) ** 2).sum())
    turn = complex((share * away.conj() * (after - goal)).sum()) / energy if energy > 1e-9 else 1 + 0j
    return turn, complex(goal - turn * middle)


def _median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
