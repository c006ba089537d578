"""What following a target returns: frozen records in plain units."""

from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from protoformer.inference.brief import Brief, count_fact, training_fact


@dataclass(frozen=True)
class TrackedBox:
    """Where a target is in a frame.

    box: (x, y, w, h) in pixels, top-left; a pixel i reaches from i to i + 1. score: in [0, 1]. lost: whether the target
    is not seen; the box is then the last one that was.
    """

    box: tuple[float, float, float, float]
    score: float
    lost: bool


@dataclass(frozen=True, repr=False)
class TrackResult(Brief):
    """One target through a clip of T frames.

    boxes: T x 4, float, (x, y, w, h) in pixels. scores: T in [0, 1]. lost: T, bool. times: T, seconds, exact. numbers:
    of the frames, from 0 in the whole clip. trained: whether the weights were.
    """

    boxes: Tensor
    scores: Tensor
    lost: Tensor
    times: tuple[Fraction, ...]
    numbers: tuple[int, ...]
    trained: bool = True

    def _facts(self) -> tuple[str, ...]:
        if not self.times:
            return (count_fact(0, "frame"), training_fact(self.trained))
        return (
            count_fact(len(self.times), "frame"),
            f"{float(self.times[0]):.3f} to {float(self.times[-1]):.3f} s",
            f"lost in {int(self.lost.sum())}",
            f"mean score {self.scores.float().mean():.2f}",
            training_fact(self.trained),
        )
