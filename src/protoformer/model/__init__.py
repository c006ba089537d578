"""The paper: prototyping, synchronization, encoder, a decoder per task, presets."""

from protoformer.model.config import PRESETS, ModelConfig, preset
from protoformer.model.encoder import Encoder, EncoderOutput
from protoformer.model.flow import FlowNetwork, FlowPrediction, build_flow
from protoformer.model.fused.plain import nearest_prototype
from protoformer.model.prototyping import UPDATE_RULES, Prototypes, Prototyping
from protoformer.model.synchronization import SYNCHRONIZATIONS
from protoformer.model.tracking import TrackNetwork, TrackPrediction, build_track

__all__ = [
    "PRESETS",
    "SYNCHRONIZATIONS",
    "UPDATE_RULES",
    "Encoder",
    "EncoderOutput",
    "FlowNetwork",
    "FlowPrediction",
    "ModelConfig",
    "Prototypes",
    "Prototyping",
    "TrackNetwork",
    "TrackPrediction",
    "build_flow",
    "build_track",
    "nearest_prototype",
    "preset",
]
