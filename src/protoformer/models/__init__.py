"""The method as plain modules: one encoder with prototypes, one head per task, presets. Start with `protoformer`."""

from protoformer.models.config import PRESETS, ModelConfig, preset
from protoformer.models.encoder import Encoder, EncoderOutput
from protoformer.models.heads.depth import DepthHead, DepthPrediction
from protoformer.models.heads.flow import FlowHead, FlowPrediction
from protoformer.models.heads.stabilization import StabilizationHead, StabilizationPrediction
from protoformer.models.heads.tracking import TrackingHead, TrackingPrediction
from protoformer.models.kernels.reference import nearest_prototype
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.prototyping import E_STEPS, Prototypes, Prototyping
from protoformer.models.synchronization import SYNCHRONIZATIONS

__all__ = [
    "E_STEPS",
    "PRESETS",
    "SYNCHRONIZATIONS",
    "DepthHead",
    "DepthPrediction",
    "Encoder",
    "EncoderOutput",
    "FlowHead",
    "FlowPrediction",
    "ModelConfig",
    "ProtoFormer",
    "Prototypes",
    "Prototyping",
    "StabilizationHead",
    "StabilizationPrediction",
    "TrackingHead",
    "TrackingPrediction",
    "build_network",
    "nearest_prototype",
    "preset",
]
