"""Networks made into tools: any image size, units, devices, files."""

from protoformer.inference.flow import FlowModel
from protoformer.inference.flow_video import FlowStep, FlowVideo
from protoformer.inference.loading import UntrainedWarning, load
from protoformer.inference.results import FlowResult

__all__ = ["FlowModel", "FlowResult", "FlowStep", "FlowVideo", "UntrainedWarning", "load"]
