"""The paper: prototyping, synchronization, encoder, a decoder per task, presets."""

from protoformer.model.config import PRESETS, ModelConfig, preset
from protoformer.model.depth import DepthNetwork, DepthPrediction, build_depth
from protoformer.model.encoder import Encoder, EncoderOutput
from protoformer.model.flow import FlowNetwork, FlowPrediction, build_flow
from protoformer.model.fused.plain import nearest_prototype
from protoformer.model.prototyping import UPDATE_RULES, Prototypes, Prototyping
from protoformer.model.stabilize import StabilizeNetwork, StabilizePrediction, build_stabilize
from protoformer.model.synchronization import SYNCHRONIZATIONS
from protoformer.model.tracking import TrackNetwork, TrackPrediction, build_track

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
