"""The network of each task."""

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
"""Every task there is, and what builds its network; a network keeps its configuration as `config`."""


MAX_PARAMETERS = 2**28
"""The most parameters of a network, 1 GiB of float32; the largest preset has less than a tenth."""


def build_network(task: str, config: ModelConfig) -> nn.Module:
    """The network of a task, with random weights; `InputError` if it would have more than `MAX_PARAMETERS`.

    The parameters are counted on shapes alone, before any memory is taken.
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
    """How many parameters the network of a task has; nothing but shapes is computed."""
    with meta_init():
        return sum(each.numel() for each in NETWORKS[task](config).parameters())
