"""Corrections for a camera that is still filming: each is decided once a few frames after it are known."""

from collections.abc import Sequence

import numpy as np

from protoformer.inference.stabilize_motion import Motion
from protoformer.inference.stabilize_planner import (
    Corrections,
    Frame,
    bounded,
    chain_of,
    changes,
    held,
    resting,
    turns_and_shifts,
)

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
        terms = [held(resting(count, frame), HOME)]
        f, g = turns_and_shifts(self._motions)
        for order, weight in enumerate((VELOCITY, ACCELERATION, JERK)):
            if count > order + 1:
                terms.append(changes(f, g, order, np.sqrt(weight)))
        if past:
            terms.append(held(chain_of(self._decided, frame), FIRM))
        found = bounded(terms, frame, count)
        turn, shift = complex(found.turns[past]), complex(found.shifts[past])
        turns, shifts = np.append(self._decided.turns, turn), np.append(self._decided.shifts, shift)
        forgotten = max(0, len(turns) - MEMORY)
        self._decided = Corrections(turns[forgotten:], shifts[forgotten:])
        self._motions = self._motions[forgotten:]
        self._known -= 1
        return turn, shift


def planned_online(motions: Sequence[Motion], frame: Frame, delay: int) -> Corrections:
    """Corrections of n frames with n - 1 motions between them, none of which knows more than `delay` frames ahead."""
    planner = OnlinePlanner(frame, delay)
    found = [each for motion in motions if (each := planner.add(motion)) is not None]
    found += planner.rest()
    return Corrections(np.array([turn for turn, _ in found]), np.array([shift for _, shift in found]))
