"""How steady a clip became, measured on its pictures, whatever made it."""

from array import array
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from protoformer.inference.homographies import Features, homography
from protoformer.metrics.stability import StabilityScores, stability_scores


@dataclass
class StabilityMeter:
    """Shown the frames of a clip one after the other, before and after; keeps homographies alone.

    views, motions: their nine entries one after the other. Many small arrays would lie scattered among the temporaries
    of each frame, whose memory could then not be used again.
    """

    views: "array[float]" = field(default_factory=lambda: array("d"))
    motions: "array[float]" = field(default_factory=lambda: array("d"))
    latest: Features | None = None

    def add(self, before: Features, after: Features) -> None:
        """Features of a frame as it was and as it is shown; the very same of one that was left alone."""
        self.views.extend((np.eye(3) if before is after else homography(before, after)).ravel().tolist())
        if self.latest is not None:
            self.motions.extend(homography(self.latest, after).ravel().tolist())
        self.latest = after

    def scores(self) -> StabilityScores:
        """The scores of all frames that were shown, one at least."""
        assert self.latest is not None
        return stability_scores(_stacked(self.views), _stacked(self.motions), self.latest.centre)


def _stacked(entries: "array[float]") -> Tensor:
    return torch.tensor(entries, dtype=torch.float64).view(-1, 3, 3)
