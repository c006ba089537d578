"""Networks made into tools: any image size, units, devices, files."""

from protoformer.inference.flow import FlowModel
from protoformer.inference.flow_video import FlowStep, FlowVideo
from protoformer.inference.loading import UntrainedWarning, load
from protoformer.inference.results import FlowResult
from protoformer.inference.track import Tracker, TrackModel
from protoformer.inference.track_results import TrackedBox, TrackResult

__all__ = [
    "FlowModel",
    "FlowResult",
    "FlowStep",
    "FlowVideo",
    "TrackModel",
    "TrackResult",
    "TrackedBox",
    "Tracker",
    "UntrainedWarning",
    "load",
]
