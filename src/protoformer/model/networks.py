"""The network of each task."""

from collections.abc import Callable

from torch import nn

from protoformer.model.config import ModelConfig
from protoformer.model.depth import build_depth
from protoformer.model.flow import build_flow
from protoformer.model.initialization import float32_by_default
from protoformer.model.stabilize import build_stabilize
from protoformer.model.tracking import build_track

NETWORKS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "flow": build_flow,
    "depth": build_depth,
    "track": build_track,
    "stabilize": build_stabilize,
}
"""Every task there is, and what builds its network; a network keeps its configuration as `config`."""


def build_network(task: str, config: ModelConfig) -> nn.Module:
    """The network of a task, with random weights."""
    with float32_by_default():
        return NETWORKS[task](config)
