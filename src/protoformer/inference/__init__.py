"""Networks made into tools: any image size, units, devices, files."""

from protoformer.inference.depth import DepthModel
from protoformer.inference.depth_results import DepthResult
from protoformer.inference.depth_video import DepthStep, DepthVideo
from protoformer.inference.flow import FlowModel
from protoformer.inference.flow_video import FlowStep, FlowVideo
from protoformer.inference.loading import UntrainedWarning, load
from protoformer.inference.point_cloud import PointCloud
from protoformer.inference.results import FlowResult
from protoformer.inference.stabilize import StabilizeModel
from protoformer.inference.stabilize_results import StabilizeResult
from protoformer.inference.track import Tracker, TrackModel
from protoformer.inference.track_results import TrackedBox, TrackResult

__all__ = [
    "DepthModel",
    "DepthResult",
    "DepthStep",
    "DepthVideo",
    "FlowModel",
    "FlowResult",
    "FlowStep",
    "FlowVideo",
    "PointCloud",
    "StabilizeModel",
    "StabilizeResult",
    "TrackModel",
    "TrackResult",
    "TrackedBox",
    "Tracker",
    "UntrainedWarning",
    "load",
]
