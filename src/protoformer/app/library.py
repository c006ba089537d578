"""What `import protoformer` offers."""

from protoformer.app.batch_flow import batch_flow
from protoformer.errors import InputError
from protoformer.inference import (
    DepthModel,
    DepthResult,
    DepthStep,
    DepthVideo,
    FlowModel,
    FlowResult,
    FlowStep,
    FlowVideo,
    PointCloud,
    StabilizeModel,
    StabilizeResult,
    TrackedBox,
    Tracker,
    TrackModel,
    TrackResult,
    UntrainedWarning,
    load,
)
from protoformer.inference.batch import BatchResult
from protoformer.inference.explanation import Explanation
from protoformer.inference.export import Exported, ExportError, export
from protoformer.inference.track_table import save_tracks
from protoformer.model import PRESETS, ModelConfig, preset
from protoformer.show.explanation_page import save_explanation

__all__ = [
    "PRESETS",
    "BatchResult",
    "DepthModel",
    "DepthResult",
    "DepthStep",
    "DepthVideo",
    "Explanation",
    "ExportError",
    "Exported",
    "FlowModel",
    "FlowResult",
    "FlowStep",
    "FlowVideo",
    "InputError",
    "ModelConfig",
    "PointCloud",
    "StabilizeModel",
    "StabilizeResult",
    "TrackModel",
    "TrackResult",
    "TrackedBox",
    "Tracker",
    "UntrainedWarning",
    "batch_flow",
    "export",
    "load",
    "preset",
    "save_explanation",
    "save_tracks",
]
