"""The method as plain modules: prototyping, synchronization, the encoder, one head per task, presets."""

from protoformer.models.config import PRESETS, ModelConfig, preset
from protoformer.models.encoder import Encoder, EncoderOutput
from protoformer.models.heads.depth import DepthNetwork, DepthPrediction, build_depth
from protoformer.models.heads.flow import FlowNetwork, FlowPrediction, build_flow
from protoformer.models.heads.stabilization import StabilizeNetwork, StabilizePrediction, build_stabilize
from protoformer.models.heads.tracking import TrackNetwork, TrackPrediction, build_track
from protoformer.models.kernels.reference import nearest_prototype
from protoformer.models.prototyping import UPDATE_RULES, Prototypes, Prototyping
from protoformer.models.synchronization import SYNCHRONIZATIONS

__all__ = [
    "PRESETS",
    "SYNCHRONIZATIONS",
    "UPDATE_RULES",
    "DepthNetwork",
    "DepthPrediction",
    "Encoder",
    "EncoderOutput",
    "FlowNetwork",
    "FlowPrediction",
    "ModelConfig",
    "Prototypes",
    "Prototyping",
    "StabilizeNetwork",
    "StabilizePrediction",
    "TrackNetwork",
    "TrackPrediction",
    "build_depth",
    "build_flow",
    "build_stabilize",
    "build_track",
    "nearest_prototype",
    "preset",
]
