"""Planning of a smooth camera path within the crop.

A stabilized frame is sampled from the input frame by a similarity z -> c z + d of points z = x + iy, in pixels from the
center of the frame. With f, g the camera motion from a frame to the next, the stabilized motion is, in coordinates of
the next input frame, (f c, f d + g) - (c, d) of the next: linear in all c and d. So is the constraint that the corners
of the crop stay inside every frame. First the path is smoothed without bounds, by least squares of its jerk; then a
quadratic program over all frames finds the path that follows this one as evenly as the bounds allow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protoformer.stabilization.camera_motion import Complex, Motion
from protoformer.stabilization.quadratic_program import (
    Array,
    BandedMatrix,
    QuadraticProgram,
    Terms,
    objective_bands,
    solve,
)

MIN_SCALE = 0.95
"""Smallest scale of a correction: a frame that needs more room temporarily shows 5 % less than the crop."""
PERIODS = 5
"""Motion slower than a fifth of the clip is taken as intended."""
MAX_PERIOD, MIN_PERIOD = 300, 30
"""Bounds of that period, frames."""
POSITION_WEIGHT = 0.003
"""Weight of the distance from the smooth path, relative to that of its change from frame to frame."""
TRIPOD_WEIGHT = 1e-6
"""The same weight for a static camera, whose position is free."""
MARGIN = 1e-4
"""Fraction of a frame that is kept free at its border, against rounding."""
MIN_ROOM = 2 * MARGIN
"""Fraction of a frame outside the crop up to which there is no room for corrections: the margin takes half of it."""


@dataclass(frozen=True)
class Corrections:
    """Positions of stabilized frames in the input frames: z -> turns z + shifts.

    Attributes:
        turns: n, complex, scale and rotation.
        shifts: n, complex, pixels from the center.
    """

    turns: Complex
    shifts: Complex

    @staticmethod
    def none(count: int) -> "Corrections":
        """Return the identity for `count` frames."""
        return Corrections(np.ones(count, np.complex128), np.zeros(count, np.complex128))


@dataclass(frozen=True)
class Frame:
    """Frame and crop size.

    Attributes:
        half_width: Half the width of a frame, between centers of pixels.
        half_height: Half the height.
        crop: Fraction of the sides that the crop shows, in (0, 1).
    """

    half_width: float
    half_height: float
    crop: float

    @staticmethod
    def of(size: tuple[int, int], crop: float) -> "Frame":
        """Make one from the (height, width) of images, pixels."""
        return Frame(max(size[1] - 1, 1) / 2, max(size[0] - 1, 1) / 2, crop)

    @property
    def radius(self) -> float:
        """Distance in pixels that converts rotation and zoom to shifts.

        It is about twice the distance of the border: a swaying horizon is more visible than a shift of as many pixels,
        and a shift needs less room.
        """
        return self.half_width + self.half_height


def plan_path(motions: Sequence[Motion], frame: Frame, tripod: bool = False) -> Corrections:
    """Plan the corrections of a shot with all motions known.

    Args:
        motions: n - 1 motions between n frames.
        frame: Size of the frames and the crop.
        tripod: Whether to approximate a static camera.

    Returns:
        Corrections of n frames.
    """
    count = len(motions) + 1
    if count < 2:
        return Corrections.none(count)
    f, g = turns_and_shifts(motions)
    if tripod:
        return bound_corrections(
            (position_terms(static_path(count, frame), TRIPOD_WEIGHT), motion_terms(f, g, 0, 1.0)), frame, count
        )
    smooth = _smooth_unbounded(f, g, frame)
    blocks, _ = motion_terms(np.ones_like(f), np.zeros_like(g), 0, 1.0)
    return bound_corrections(
        (position_terms(smooth, POSITION_WEIGHT), (blocks, smooth[:-1] - smooth[1:])), frame, count
    )


def bound_corrections(terms: Sequence[Terms], frame: Frame, count: int) -> Corrections:
    """Minimize an objective such that the crop stays inside every frame; identity if there is no room."""
    if 1 - frame.crop <= MIN_ROOM:
        return Corrections.none(count)
    sides, limits = _crop_bounds(frame, count)
    return to_corrections(solve(QuadraticProgram(tuple(terms), sides, limits), static_path(count, frame)), frame)


def to_corrections(variables: Array, frame: Frame) -> Corrections:
    """Convert the variables of the quadratic program, n x 4, to corrections."""
    pairs: Complex = variables[:, ::2] + 1j * variables[:, 1::2]
    return Corrections(pairs[:, 0] / frame.radius, pairs[:, 1])


def to_variables(corrections: Corrections, frame: Frame) -> Array:
    """Convert corrections to the variables of the quadratic program: n x 4, all in pixels."""
    turns = frame.radius * corrections.turns
    return np.stack((turns.real, turns.imag, corrections.shifts.real, corrections.shifts.imag), axis=1)


def turns_and_shifts(motions: Sequence[Motion]) -> tuple[Complex, Complex]:
    """Return the turns and the shifts of motions as two arrays."""
    return np.array([motion.turn for motion in motions]), np.array([motion.shift for motion in motions])


def stabilized_motions(motions: Sequence[Motion], corrections: Corrections) -> list[Motion]:
    """Return the motions between corrected frames, in pixels of the corrected frames."""
    output = []
    for index, motion in enumerate(motions):
        turn, next_turn = corrections.turns[index], corrections.turns[index + 1]
        shift = motion.turn * corrections.shifts[index] + motion.shift - corrections.shifts[index + 1]
        output.append(
            Motion(complex(motion.turn * turn / next_turn), complex(shift / next_turn), motion.inlier_fraction)
        )
    return output


def largest_crop(corrections: Corrections, frame: Frame) -> float:
    """Return the largest crop, as a fraction of the sides up to 1, that stays inside all frames."""
    turn = np.abs(corrections.turns.real), np.abs(corrections.turns.imag)
    crops = []
    for half, other, shift in (
        (frame.half_width, frame.half_height, corrections.shifts.real),
        (frame.half_height, frame.half_width, corrections.shifts.imag),
    ):
        crops.append((half - np.abs(shift)) / (turn[0] * half + turn[1] * other))
    return min(1.0, float(np.min(crops)))


def _smooth_unbounded(f: Complex, g: Complex, frame: Frame) -> Array:
    """Smooth the path without bounds: the variables of a path without motion faster than the cutoff period."""
    count = len(f) + 1
    static = static_path(count, frame)
    if count < 4:
        return static
    period = min(MAX_PERIOD, max(MIN_PERIOD, count / PERIODS))
    bands, right = objective_bands(
        (position_terms(static, 1.0), motion_terms(f, g, 2, (period / (2 * math.pi)) ** 3)), count
    )
    return BandedMatrix(bands).solve(right)


def static_path(count: int, frame: Frame) -> Array:
    """Return the variables of uncorrected frames."""
    variables = np.zeros((count, 4))
    variables[:, 0] = frame.radius
    return variables


def position_terms(variables: Array, weight: float) -> Terms:
    """Return terms for the squared distance from given variables."""
    root = math.sqrt(weight)
    return np.tile(root * np.eye(4), (len(variables), 1, 1, 1)), root * variables


def motion_terms(f: Complex, g: Complex, order: int, weight: float) -> Terms:
    """Return terms for stabilized velocities (order 0) or their differences of an order, times a weight."""
    signs = np.array([(1.0,), (-1.0, 1.0), (1.0, -2.0, 1.0)][order])
    count = len(f) - order
    blocks, goal = np.zeros((count, order + 2, 4, 4)), np.zeros((count, 4))
    for index, sign in enumerate(weight * signs):
        turn, shift = f[index : index + count], g[index : index + count]
        for corner in (0, 2):
            blocks[:, index, corner, corner] += sign * turn.real
            blocks[:, index, corner + 1, corner + 1] += sign * turn.real
            blocks[:, index, corner, corner + 1] -= sign * turn.imag
            blocks[:, index, corner + 1, corner] += sign * turn.imag
        blocks[:, index + 1] -= sign * np.eye(4)
        goal[:, 2] -= sign * shift.real
        goal[:, 3] -= sign * shift.imag
    return blocks, goal


def _crop_bounds(frame: Frame, count: int) -> tuple[Array, Array]:
    """Return constraints that keep the corners of the crop inside each frame and its scale large enough.

    Returns:
        Sides, n x 9 x 4, and limits, n x 9, as in `QuadraticProgram`.
    """
    width, height = frame.crop * frame.half_width / frame.radius, frame.crop * frame.half_height / frame.radius
    sides, limits = [], []
    for direction in (1.0, -1.0):
        for turned in (1.0, -1.0):
            sides += [(width, turned * height, direction, 0.0), (height, turned * width, 0.0, direction)]
            limits += [(1 - MARGIN) * frame.half_width, (1 - MARGIN) * frame.half_height]
    sides.append((-1.0, 0.0, 0.0, 0.0))
    limits.append(-MIN_SCALE * frame.radius)
    return np.tile(np.array(sides), (count, 1, 1)), np.tile(np.array(limits), (count, 1))


NUM_DECIDED = 3
"""Decided frames that the online planner keeps: an acceleration and its change reach that far back."""
REST_WEIGHT, VELOCITY, ACCELERATION, JERK = 2e-4, 1e-3, 1.0, 10.0
"""Weights of the online planner: the distance from the uncorrected path, which keeps room for unknown motion, and
derivatives of the stabilized path."""
FIXED_WEIGHT = 1e6
"""Weight of corrections that are already decided."""


class OnlinePlanner:
    """Plans corrections with a fixed delay: takes the motion to each next frame, returns one correction at a time."""

    def __init__(self, frame: Frame, delay: int) -> None:
        """Start a shot in which each correction is decided from `delay` later frames."""
        self._frame, self._delay = frame, delay
        self._motions: list[Motion] = []
        """Motions from the earliest kept frame on."""
        self._decided = Corrections.none(0)
        self._num_pending = 1

    def add(self, motion: Motion) -> tuple[complex, complex] | None:
        """Add the motion to the next frame; returns the turn and shift of the frame decided now, or None."""
        self._motions.append(motion)
        self._num_pending += 1
        return self._decide() if self._num_pending > self._delay else None

    def rest(self) -> list[tuple[complex, complex]]:
        """Return the turns and shifts of the remaining frames at the end of the shot."""
        return [self._decide() for _ in range(self._num_pending)]

    def _decide(self) -> tuple[complex, complex]:
        past, frame = len(self._decided.turns), self._frame
        count = len(self._motions) + 1
        terms = [position_terms(static_path(count, frame), REST_WEIGHT)]
        f, g = turns_and_shifts(self._motions)
        for order, weight in enumerate((VELOCITY, ACCELERATION, JERK)):
            if count > order + 1:
                terms.append(motion_terms(f, g, order, np.sqrt(weight)))
        if past:
            terms.append(position_terms(to_variables(self._decided, frame), FIXED_WEIGHT))
        corrections = bound_corrections(terms, frame, count)
        turn, shift = complex(corrections.turns[past]), complex(corrections.shifts[past])
        turns, shifts = np.append(self._decided.turns, turn), np.append(self._decided.shifts, shift)
        num_dropped = max(0, len(turns) - NUM_DECIDED)
        self._decided = Corrections(turns[num_dropped:], shifts[num_dropped:])
        self._motions = self._motions[num_dropped:]
        self._num_pending -= 1
        return turn, shift


def plan_online(motions: Sequence[Motion], frame: Frame, delay: int) -> Corrections:
    """Plan the corrections of n frames from n - 1 motions with a fixed delay: each uses `delay` later frames."""
    planner = OnlinePlanner(frame, delay)
    decided = [each for motion in motions if (each := planner.add(motion)) is not None]
    decided += planner.rest()
    return Corrections(np.array([turn for turn, _ in decided]), np.array([shift for _, shift in decided]))
