"""How steady a clip became, measured on its pictures, whatever made it."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from protoformer.inference.homographies import Features, Matrix, homography
from protoformer.metrics.stability import StabilityScores, stability_scores


@dataclass
class StabilityMeter:
    """Shown the frames of a clip one after the other, before and after; keeps homographies alone."""

    views: list[Matrix] = field(default_factory=list)
    motions: list[Matrix] = field(default_factory=list)
    latest: Features | None = None

    def add(self, before: Features, after: Features) -> None:
        """Features of a frame as it was and as it is shown; the very same of one that was left alone."""
        self.views.append(np.eye(3) if before is after else homography(before, after))
        if self.latest is not None:
            self.motions.append(homography(self.latest, after))
        self.latest = after

    def scores(self) -> StabilityScores:
        """The scores of all frames that were shown, one at least."""
        assert self.latest is not None
        return stability_scores(_stacked(self.views), _stacked(self.motions), self.latest.centre)


def _stacked(matrices: list[Matrix]) -> Tensor:
    return torch.from_numpy(np.stack(matrices)) if matrices else torch.empty(0, 3, 3, dtype=torch.float64)
