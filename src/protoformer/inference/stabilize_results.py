"""What stabilizing returns: frozen records in plain units."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from protoformer.inference.brief import Brief, count_fact, size_fact, training_fact
from protoformer.inference.stabilize_planner import Corrections
from protoformer.inference.stabilize_render import Field, View

Path = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class StabilizeResult(Brief):
    """How each of T frames is to be shown so that the clip is steady.

    corrections: where the steady frame lies in the shaky one: z -> turns z + shifts, pixels from the centre. local: one
    a frame, 2 x h x w, pixels, what the network adds at the centres of cells, read from a temporary file that is gone
    with the result; none where it adds nothing. share: of a
    frame's sides that the crop shows; border: it is not enlarged to fill the frame, so what lies beyond is black.
    path_before, path_after: T x 4, x and y (pixels), angle (radians) and logarithm of the scale, added up from frame to
    frame, from zero in every shot. cuts: places, from 0 on, of the frames that begin a new shot. bridged: of those that
    gave nothing to go by, blank or blurred. times, numbers: of the frames, in the whole clip. trained: whether the
    weights were.
    """

    size: tuple[int, int]
    corrections: Corrections
    local: Sequence[Field]
    share: float
    border: bool
    path_before: Path
    path_after: Path
    cuts: tuple[int, ...]
    bridged: tuple[int, ...]
    times: tuple[Fraction, ...]
    numbers: tuple[int, ...]
    trained: bool = True

    def view(self, place: int) -> View:
        """Where the steady frame of a place, from 0 on, is found in the shaky one."""
        turn, shift = self.corrections.turns[place], self.corrections.shifts[place]
        zoom = 1.0 if self.border else self.share
        return View(complex(turn), complex(shift), zoom, self.local[place] if self.local else None)

    @property
    def cropping(self) -> float:
        """Mean share of a frame's sides that the steady frame shows."""
        return float((1.0 if self.border else self.share) * np.abs(self.corrections.turns).mean())

    @property
    def acceleration(self) -> tuple[float, float]:
        """Mean length of the change of velocity, pixels a frame, before and after."""
        return mean_acceleration(self.path_before, self.cuts), mean_acceleration(self.path_after, self.cuts)

    def _facts(self) -> tuple[str, ...]:
        before, after = self.acceleration
        return (
            f"{count_fact(len(self.times), 'frame')} of {size_fact(*self.size)}",
            f"{self.cropping:.1%} of each side is shown",
            f"velocity changes by {after:.2f} px a frame, {before:.2f} before",
            training_fact(self.trained),
        )


def mean_acceleration(path: Path, cuts: tuple[int, ...] = ()) -> float:
    """Mean length of the second differences of a path's x and y, none of which reaches over a cut; 0 of none."""
    bends = []
    for first, last in zip((0, *cuts), (*cuts, len(path)), strict=True):
        bends.append(np.linalg.norm(np.diff(path[first:last, :2], n=2, axis=0), axis=1))
    all_bends = np.concatenate(bends)
    return float(all_bends.mean()) if len(all_bends) else 0.0
