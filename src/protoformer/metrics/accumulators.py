"""Scores over many samples, as `torchmetrics` classes: they add up over batches and processes.

`torchmetrics` takes a second to be imported: nothing imports this module before there is something to accumulate.
"""

import torch
from torch import Tensor

from protoformer.metrics.averages import Averages
from protoformer.metrics.depth import COLUMNS as DEPTH_COLUMNS
from protoformer.metrics.depth import ROWS as DEPTH_ROWS
from protoformer.metrics.depth import Crop, DepthTable, check_depth_options, depth_tally, mean_depth_table
from protoformer.metrics.flow import COLUMNS as FLOW_COLUMNS
from protoformer.metrics.flow import FlowScores, flow_tally, mean_flow_scores
from protoformer.metrics.stability import Place, StabilityScores, mean_stability_scores, video_scores
from protoformer.metrics.tally import Tally
from protoformer.metrics.tracking import FRACTIONS, OVERLAPS, PIXELS, TrackScores, mean_track_scores, track_curves


class FlowMetric(Averages):
    """Scores over all flows it is shown; `compute` returns FlowScores. Sums are kept in float64."""

    higher_is_better = False

    def __init__(self) -> None:
        super().__init__(FLOW_COLUMNS)

    def update(self, flow: Tensor, truth: Tensor, valid: Tensor, occlusion: Tensor | None = None) -> None:
        """Add N samples, in the terms of `flow_scores`; `occlusion` may be known for some calls and not for others."""
        self.add(flow_tally(flow, truth, valid, occlusion))

    def compute(self) -> FlowScores:
        """The scores of everything shown since the last reset."""
        return mean_flow_scores(self.total())


class DepthMetric(Averages):
    """Scores over all depths it is shown; `compute` returns a DepthTable. Options as of `depth_scores`."""

    def __init__(self, *, minimum: float = 1e-3, maximum: float = 80.0, crop: Crop | None = None) -> None:
        super().__init__(DEPTH_ROWS * DEPTH_COLUMNS)
        check_depth_options(minimum, maximum, crop)
        self.minimum, self.maximum, self.crop = minimum, maximum, crop

    def update(self, depth: Tensor, truth: Tensor, valid: Tensor) -> None:
        """Add N samples, in the terms of `depth_scores`."""
        self.add(depth_tally(depth, truth, valid, self.minimum, self.maximum, self.crop))

    def compute(self) -> DepthTable:
        """The scores of everything shown since the last reset."""
        return mean_depth_table(self.total())


class StabilityMetric(Averages):
    """Scores over all videos it is shown, each weighed alike; `compute` returns StabilityScores."""

    higher_is_better = True
    seen: Tensor

    def __init__(self) -> None:
        super().__init__(8)
        self.add_state("seen", torch.zeros(4, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, input_to_output: Tensor, output_motions: Tensor, centre: Place = (0.0, 0.0)) -> None:
        """Add one video, in the terms of `stability_scores`."""
        row, counts = video_scores(input_to_output, output_motions, centre)
        self.add(Tally.of_rows(row[None]))
        self.seen = self.seen + counts.to(self.seen.device)

    def compute(self) -> StabilityScores:
        """The scores of everything shown since the last reset."""
        return mean_stability_scores(self.total(), self.seen)


class TrackMetric(Averages):
    """Scores over all sequences it is shown, each weighed alike; `compute` returns TrackScores."""

    higher_is_better = True
    frames: Tensor

    def __init__(self) -> None:
        super().__init__(OVERLAPS + PIXELS + FRACTIONS)
        self.add_state("frames", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, truth: Tensor, present: Tensor) -> None:
        """Add one sequence, in the terms of `track_scores`."""
        curves, frames = track_curves(predicted, truth, present)
        self.add(Tally.of_rows(curves[None]))
        self.frames = self.frames + frames

    def compute(self) -> TrackScores:
        """The scores of everything shown since the last reset."""
        return mean_track_scores(self.total(), int(self.frames))
