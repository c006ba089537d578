"""The smoothest path a camera could have taken within what its frames show.

A frame of the steady clip is found in the shaky one by a similarity z -> c z + d of points z = x + iy, pixels from the
center of the frame. With f, g the shaky motion from a frame to the next, the steady one is, as seen in the next shaky
frame, (f c, f d + g) - (c, d) of the next: linear in all c and d. So is the demand that the corners of the crop stay
inside every frame. First the path is smoothed as if frames had no end, by least squares of its jerk; then the path is
sought that goes beside this one as evenly as the bounds allow: a quadratic program over a chain of frames.
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

LEAST_SCALE = 0.95
"""A correction may show 5 % less of a frame than the crop does, for a while, where it needs more room."""
PERIODS = 5
"""Sways that a clip may keep: what is slower than a fifth of it is taken for intended."""
SLOWEST, FASTEST = 300, 30
"""Frames: bounds of that."""
PLACE = 0.003
"""Weight of the distance from the smooth path, beside that of a change of this distance from frame to frame."""
LOOSE = 1e-6
"""The same weight where a camera is to stand still, which leaves open where."""
WALL = 1e-4
"""Share of a frame that is kept free at its rim, against rounding."""
LEAST_ROOM = 2 * WALL
"""Share of a frame beside the crop up to which there is no room for corrections: the rim takes half of it."""


@dataclass(frozen=True)
class Corrections:
    """Where steady frames lie in shaky ones: z -> turns z + shifts, n each; pixels from the center."""

    turns: Complex
    shifts: Complex

    @staticmethod
    def none(count: int) -> "Corrections":
        """Frames that stay as they are."""
        return Corrections(np.ones(count, np.complex128), np.zeros(count, np.complex128))


@dataclass(frozen=True)
class Frame:
    """What corrections move about in. wide, high: half the sides of a frame, from center to center of its pixels.

    share: of a frame that the crop shows, in (0, 1).
    """

    wide: float
    high: float
    share: float

    @staticmethod
    def of(size: tuple[int, int], share: float) -> "Frame":
        """Of pictures of (height, width)."""
        return Frame(max(size[1] - 1, 1) / 2, max(size[0] - 1, 1) / 2, share)

    @property
    def radius(self) -> float:
        """Pixels by which a turn or a zoom counts beside a shift.

        Those of a point at about twice the distance of the rim: a horizon that sways is seen before a shift of as many
        pixels is, and room is cheaper to shift in.
        """
        return self.wide + self.high


def plan_path(motions: Sequence[Motion], frame: Frame, tripod: bool = False) -> Corrections:
    """Corrections of n frames with n - 1 motions between them. tripod: towards a camera that stands still."""
    count = len(motions) + 1
    if count < 2:
        return Corrections.none(count)
    f, g = turns_and_shifts(motions)
    if tripod:
        return bound_corrections(
            (hold_still(static_path(count, frame), LOOSE), path_changes(f, g, 0, 1.0)), frame, count
        )
    wanted = _unbounded(f, g, frame)
    blocks, _ = path_changes(np.ones_like(f), np.zeros_like(g), 0, 1.0)
    return bound_corrections((hold_still(wanted, PLACE), (blocks, wanted[:-1] - wanted[1:])), frame, count)


def bound_corrections(terms: Sequence[Terms], frame: Frame, count: int) -> Corrections:
    """The corrections of least energy that keep the crop inside every frame; none where it leaves hardly any room."""
    if 1 - frame.share <= LEAST_ROOM:
        return Corrections.none(count)
    sides, limits = _bounds(frame, count)
    return to_corrections(solve(QuadraticProgram(tuple(terms), sides, limits), static_path(count, frame)), frame)


def to_corrections(chain: Array, frame: Frame) -> Corrections:
    """A chain of numbers, n x 4, as what it means."""
    pairs: Complex = chain[:, ::2] + 1j * chain[:, 1::2]
    return Corrections(pairs[:, 0] / frame.radius, pairs[:, 1])


def build_program(corrections: Corrections, frame: Frame) -> Array:
    """The inverse: n x 4, pixels all."""
    turns = frame.radius * corrections.turns
    return np.stack((turns.real, turns.imag, corrections.shifts.real, corrections.shifts.imag), axis=1)


def turns_and_shifts(motions: Sequence[Motion]) -> tuple[Complex, Complex]:
    """Motions as two arrays."""
    return np.array([motion.turn for motion in motions]), np.array([motion.shift for motion in motions])


def stabilized_motions(motions: Sequence[Motion], corrections: Corrections) -> list[Motion]:
    """The motions between corrected frames, in the pixels of these."""
    found = []
    for place, motion in enumerate(motions):
        here, there = corrections.turns[place], corrections.turns[place + 1]
        shift = motion.turn * corrections.shifts[place] + motion.shift - corrections.shifts[place + 1]
        found.append(Motion(complex(motion.turn * here / there), complex(shift / there), motion.trust))
    return found


def largest_crop(corrections: Corrections, frame: Frame) -> float:
    """The largest share of a frame that a crop can show without leaving any frame, at most 1."""
    turn = np.abs(corrections.turns.real), np.abs(corrections.turns.imag)
    room = []
    for half, other, shift in (
        (frame.wide, frame.high, corrections.shifts.real),
        (frame.high, frame.wide, corrections.shifts.imag),
    ):
        room.append((half - np.abs(shift)) / (turn[0] * half + turn[1] * other))
    return min(1.0, float(np.min(room)))


def _unbounded(f: Complex, g: Complex, frame: Frame) -> Array:
    """The chain of corrections onto a path without what is faster than the slowest sways."""
    count = len(f) + 1
    rest = static_path(count, frame)
    if count < 4:
        return rest
    period = min(SLOWEST, max(FASTEST, count / PERIODS))
    bands, right = objective_bands((hold_still(rest, 1.0), path_changes(f, g, 2, (period / (2 * math.pi)) ** 3)), count)
    return BandedMatrix(bands).solve(right)


def static_path(count: int, frame: Frame) -> Array:
    """The chain of frames that stay as they are."""
    chain = np.zeros((count, 4))
    chain[:, 0] = frame.radius
    return chain


def hold_still(chain: Array, weight: float) -> Terms:
    """Links drawn to where they are in a chain."""
    root = math.sqrt(weight)
    return np.tile(root * np.eye(4), (len(chain), 1, 1, 1)), root * chain


def path_changes(f: Complex, g: Complex, order: int, weight: float) -> Terms:
    """Steady velocities (order 0), or their differences of an order, times a weight."""
    signs = np.array([(1.0,), (-1.0, 1.0), (1.0, -2.0, 1.0)][order])
    count = len(f) - order
    blocks, wanted = np.zeros((count, order + 2, 4, 4)), np.zeros((count, 4))
    for place, sign in enumerate(weight * signs):
        turn, shift = f[place : place + count], g[place : place + count]
        for corner in (0, 2):
            blocks[:, place, corner, corner] += sign * turn.real
            blocks[:, place, corner + 1, corner + 1] += sign * turn.real
            blocks[:, place, corner, corner + 1] -= sign * turn.imag
            blocks[:, place, corner + 1, corner] += sign * turn.imag
        blocks[:, place + 1] -= sign * np.eye(4)
        wanted[:, 2] -= sign * shift.real
        wanted[:, 3] -= sign * shift.imag
    return blocks, wanted


def _bounds(frame: Frame, count: int) -> tuple[Array, Array]:
    """The corners of the crop lie inside each frame, and it is not enlarged too much: n x 9 x 4 and n x 9."""
    wide, high = frame.share * frame.wide / frame.radius, frame.share * frame.high / frame.radius
    sides, limits = [], []
    for out in (1.0, -1.0):
        for turned in (1.0, -1.0):
            sides += [(wide, turned * high, out, 0.0), (high, turned * wide, 0.0, out)]
            limits += [(1 - WALL) * frame.wide, (1 - WALL) * frame.high]
    sides.append((-1.0, 0.0, 0.0, 0.0))
    limits.append(-LEAST_SCALE * frame.radius)
    return np.tile(np.array(sides), (count, 1, 1)), np.tile(np.array(limits), (count, 1))


MEMORY = 3
"""Frames before the one that is decided, whose corrections stay: an acceleration and its change reach so far."""
HOME, VELOCITY, ACCELERATION, JERK = 2e-4, 1e-3, 1.0, 10.0
"""Weights: corrections go back to rest in time, since nobody knows what comes; the path bends softly."""
FIRM = 1e6
"""Weight of what stays."""


class OnlinePlanner:
    """Takes the motion to each next frame, and says the correction of the frame `delay` frames before it."""

    def __init__(self, frame: Frame, delay: int) -> None:
        self._frame, self._delay = frame, delay
        self._motions: list[Motion] = []
        """From the earliest frame that is remembered on."""
        self._decided = Corrections.none(0)
        self._known = 1

    def add(self, motion: Motion) -> tuple[complex, complex] | None:
        """The turn and shift of the frame that can be decided now; None while there is none."""
        self._motions.append(motion)
        self._known += 1
        return self._decide() if self._known > self._delay else None

    def rest(self) -> list[tuple[complex, complex]]:
        """Those of the last frames, when no more come."""
        return [self._decide() for _ in range(self._known)]

    def _decide(self) -> tuple[complex, complex]:
        past, frame = len(self._decided.turns), self._frame
        count = len(self._motions) + 1
        terms = [hold_still(static_path(count, frame), HOME)]
        f, g = turns_and_shifts(self._motions)
        for order, weight in enumerate((VELOCITY, ACCELERATION, JERK)):
            if count > order + 1:
                terms.append(path_changes(f, g, order, np.sqrt(weight)))
        if past:
            terms.append(hold_still(build_program(self._decided, frame), FIRM))
        found = bound_corrections(terms, frame, count)
        turn, shift = complex(found.turns[past]), complex(found.shifts[past])
        turns, shifts = np.append(self._decided.turns, turn), np.append(self._decided.shifts, shift)
        forgotten = max(0, len(turns) - MEMORY)
        self._decided = Corrections(turns[forgotten:], shifts[forgotten:])
        self._motions = self._motions[forgotten:]
        self._known -= 1
        return turn, shift


def plan_online(motions: Sequence[Motion], frame: Frame, delay: int) -> Corrections:
    """Corrections of n frames with n - 1 motions between them, none of which knows more than `delay` frames ahead."""
    planner = OnlinePlanner(frame, delay)
    found = [each for motion in motions if (each := planner.add(motion)) is not None]
    found += planner.rest()
    return Corrections(np.array([turn for turn, _ in found]), np.array([shift for _, shift in found]))
