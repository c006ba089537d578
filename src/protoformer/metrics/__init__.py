"""How good a motion is: flow, depth, tracking and stability, as `torchmetrics` classes and as plain functions.

The classes are imported when they are first asked for, as `torchmetrics` takes a second.
"""

from typing import TYPE_CHECKING, Any

from protoformer.metrics.depth import Crop, DepthScores, DepthTable, crop_window, depth_scores
from protoformer.metrics.depth_flicker import depth_flicker
from protoformer.metrics.flow import FlowScores, flow_scores
from protoformer.metrics.regions import adjusted_rand_index, boundary_recall, boundary_share
from protoformer.metrics.stability import StabilityScores, stability_scores
from protoformer.metrics.tracking import TrackScores, track_scores

if TYPE_CHECKING:
    from protoformer.metrics.accumulators import DepthMetric, FlowMetric, StabilityMetric, TrackMetric

__all__ = [
    "Crop",
    "DepthMetric",
    "DepthScores",
    "DepthTable",
    "FlowMetric",
    "FlowScores",
    "StabilityMetric",
    "StabilityScores",
    "TrackMetric",
    "TrackScores",
    "adjusted_rand_index",
    "boundary_recall",
    "boundary_share",
    "crop_window",
    "depth_flicker",
    "depth_scores",
    "flow_scores",
    "stability_scores",
    "track_scores",
]

_ACCUMULATORS = ("DepthMetric", "FlowMetric", "StabilityMetric", "TrackMetric")


def __getattr__(name: str) -> Any:
    if name not in _ACCUMULATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from protoformer.metrics import accumulators

    return getattr(accumulators, name)
