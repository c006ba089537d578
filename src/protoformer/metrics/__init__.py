"""How good a motion is: flow, depth, tracking and stability, as `torchmetrics` classes and as plain functions."""

from protoformer.metrics.depth import Crop, DepthMetric, DepthScores, DepthTable, crop_window, depth_scores
from protoformer.metrics.depth_flicker import depth_flicker
from protoformer.metrics.flow import FlowMetric, FlowScores, flow_scores
from protoformer.metrics.regions import adjusted_rand_index, boundary_recall, boundary_share
from protoformer.metrics.stability import StabilityMetric, StabilityScores, stability_scores
from protoformer.metrics.tracking import TrackMetric, TrackScores, track_scores

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
