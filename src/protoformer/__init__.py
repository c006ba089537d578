"""Optical flow, depth, tracking, stabilization and segmentation with a prototype-based encoder.

The names below are imported when they are first used: torch takes seconds to import, and neither the version nor the
command line's help needs it.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# OpenMP threads that wait for work spin only for a moment and then sleep: spinning takes the cores from other processes
# and from the worker processes of a batch, but a thread that sleeps at once has to be woken for every small operation,
# which makes tracking three times as slow. Both are read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from protoformer.batch.running import BatchResult as BatchResult
    from protoformer.batch.tasks import batch_flow as batch_flow
    from protoformer.batch.tasks import batch_videos as batch_videos
    from protoformer.depth.predictor import DepthPredictor as DepthPredictor
    from protoformer.depth.result import DepthResult as DepthResult
    from protoformer.depth.result import PointCloud as PointCloud
    from protoformer.depth.video import DepthFrame as DepthFrame
    from protoformer.depth.video import DepthVideo as DepthVideo
    from protoformer.errors import InputError as InputError
    from protoformer.errors import UntrainedWarning as UntrainedWarning
    from protoformer.explain.page import save_explanation as save_explanation
    from protoformer.explain.result import Explanation as Explanation
    from protoformer.export.exporter import ExportError as ExportError
    from protoformer.export.exporter import ExportResult as ExportResult
    from protoformer.export.exporter import export_model as export_model
    from protoformer.flow.predictor import FlowPredictor as FlowPredictor
    from protoformer.flow.result import FlowResult as FlowResult
    from protoformer.flow.video import FlowFrame as FlowFrame
    from protoformer.flow.video import FlowVideo as FlowVideo
    from protoformer.loading import Predictor as Predictor
    from protoformer.loading import load as load
    from protoformer.models.config import PRESETS as PRESETS
    from protoformer.models.config import ModelConfig as ModelConfig
    from protoformer.models.config import preset as preset
    from protoformer.models.protoformer import ProtoFormer as ProtoFormer
    from protoformer.segmentation.predictor import SegmentationPredictor as SegmentationPredictor
    from protoformer.segmentation.predictor import SegmentationVideo as SegmentationVideo
    from protoformer.segmentation.result import SegmentationFrame as SegmentationFrame
    from protoformer.stabilization.online import StabilizedVideo as StabilizedVideo
    from protoformer.stabilization.predictor import StabilizationPredictor as StabilizationPredictor
    from protoformer.stabilization.result import StabilizationResult as StabilizationResult
    from protoformer.stabilization.result import StabilizedFrame as StabilizedFrame
    from protoformer.tracking.predictor import TrackingPredictor as TrackingPredictor
    from protoformer.tracking.result import TrackedBox as TrackedBox
    from protoformer.tracking.result import TrackResult as TrackResult
    from protoformer.tracking.result import save_tracks as save_tracks
    from protoformer.tracking.tracker import Tracker as Tracker
    from protoformer.tracking.video import TrackFrame as TrackFrame
    from protoformer.tracking.video import Tracks as Tracks
    from protoformer.tracking.video import TrackVideo as TrackVideo
    from protoformer.video.reader import demo_clip as demo_clip
    from protoformer.video.reader import open_video as open_video

_EXPORTS = {
    "BatchResult": "protoformer.batch.running",
    "DepthFrame": "protoformer.depth.video",
    "DepthPredictor": "protoformer.depth.predictor",
    "DepthResult": "protoformer.depth.result",
    "DepthVideo": "protoformer.depth.video",
    "Explanation": "protoformer.explain.result",
    "ExportError": "protoformer.export.exporter",
    "ExportResult": "protoformer.export.exporter",
    "FlowFrame": "protoformer.flow.video",
    "FlowPredictor": "protoformer.flow.predictor",
    "FlowResult": "protoformer.flow.result",
    "FlowVideo": "protoformer.flow.video",
    "InputError": "protoformer.errors",
    "ModelConfig": "protoformer.models.config",
    "PRESETS": "protoformer.models.config",
    "Predictor": "protoformer.loading",
    "PointCloud": "protoformer.depth.result",
    "ProtoFormer": "protoformer.models.protoformer",
    "SegmentationFrame": "protoformer.segmentation.result",
    "SegmentationPredictor": "protoformer.segmentation.predictor",
    "SegmentationVideo": "protoformer.segmentation.predictor",
    "StabilizationPredictor": "protoformer.stabilization.predictor",
    "StabilizationResult": "protoformer.stabilization.result",
    "TrackResult": "protoformer.tracking.result",
    "TrackedBox": "protoformer.tracking.result",
    "Tracker": "protoformer.tracking.tracker",
    "TrackingPredictor": "protoformer.tracking.predictor",
    "StabilizedVideo": "protoformer.stabilization.online",
    "Tracks": "protoformer.tracking.video",
    "TrackVideo": "protoformer.tracking.video",
    "TrackFrame": "protoformer.tracking.video",
    "StabilizedFrame": "protoformer.stabilization.result",
    "UntrainedWarning": "protoformer.errors",
    "batch_flow": "protoformer.batch.tasks",
    "batch_videos": "protoformer.batch.tasks",
    "demo_clip": "protoformer.video.reader",
    "export_model": "protoformer.export.exporter",
    "load": "protoformer.loading",
    "open_video": "protoformer.video.reader",
    "preset": "protoformer.models.config",
    "save_explanation": "protoformer.explain.page",
    "save_tracks": "protoformer.tracking.result",
}
"""Public names, and the module that defines each."""

__all__ = [
    "PRESETS",
    "BatchResult",
    "DepthFrame",
    "DepthPredictor",
    "DepthResult",
    "DepthVideo",
    "Explanation",
    "ExportError",
    "ExportResult",
    "FlowFrame",
    "FlowPredictor",
    "FlowResult",
    "FlowVideo",
    "InputError",
    "ModelConfig",
    "PointCloud",
    "Predictor",
    "ProtoFormer",
    "SegmentationFrame",
    "SegmentationPredictor",
    "SegmentationVideo",
    "StabilizationPredictor",
    "StabilizationResult",
    "StabilizedFrame",
    "StabilizedVideo",
    "TrackFrame",
    "TrackResult",
    "TrackVideo",
    "TrackedBox",
    "Tracker",
    "TrackingPredictor",
    "Tracks",
    "UntrainedWarning",
    "batch_flow",
    "batch_videos",
    "demo_clip",
    "export_model",
    "load",
    "open_video",
    "preset",
    "save_explanation",
    "save_tracks",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
