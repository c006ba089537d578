"""Construction of the network of each task."""

from collections.abc import Callable
from functools import lru_cache

from torch import nn

from protoformer.errors import InputError
from protoformer.models.config import ModelConfig
from protoformer.models.heads.depth import build_depth
from protoformer.models.heads.flow import build_flow
from protoformer.models.heads.stabilization import build_stabilize
from protoformer.models.heads.tracking import build_track
from protoformer.models.layers import float32_by_default, meta_init

NETWORKS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "flow": build_flow,
    "depth": build_depth,
    "track": build_track,
    "stabilize": build_stabilize,
}
"""Builders of the networks by task; every network has its configuration as `config`."""


MAX_PARAMETERS = 2**28
"""Largest number of parameters of a network, 1 GiB of float32; the largest preset has less than a tenth."""


def build_network(task: str, config: ModelConfig) -> nn.Module:
    """Build the network of a task with random weights.

    The parameters are counted on the meta device before memory is allocated.

    Args:
        task: A key of `NETWORKS`.
        config: Configuration of the network.

    Raises:
        InputError: If the network would have more than `MAX_PARAMETERS` parameters.
    """
    count = parameter_count(task, config)
    if count > MAX_PARAMETERS:
        raise InputError(
            f"the network of {task} would have {count} parameters, and at most {MAX_PARAMETERS} are built; choose "
            "smaller widths or fewer layers."
        )
    with float32_by_default():
        return NETWORKS[task](config)


@lru_cache(maxsize=32)
def parameter_count(task: str, config: ModelConfig) -> int:
    """Return the number of parameters of the network of a task, counted on the meta device."""
    with meta_init():
        return sum(parameter.numel() for parameter in NETWORKS[task](config).parameters())
