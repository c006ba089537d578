"""How large a network is, and how much work it does."""

from functools import lru_cache

import torch
from torch import nn

from protoformer.model.config import ModelConfig
from protoformer.model.depth import build_depth
from protoformer.model.flow import FlowNetwork, build_flow
from protoformer.model.fused.flops import flop_counter
from protoformer.model.initialization import shapes_alone


def parameters(module: nn.Module) -> int:
    """How many numbers training sets."""
    return sum(parameter.numel() for parameter in module.parameters())


def parts(network: FlowNetwork) -> dict[str, int]:
    """Parameters of each part of a flow network; they add up to all of them."""
    decoder = network.decoder
    named: dict[str, nn.Module] = {
        "feature encoder": network.features,
        **({"context encoder": network.context} if network.context is not None else {}),
        "matching projection": network.match,
        "context projection": network.describe,
        **({"global matching": network.matching} if network.matching is not None else {}),
        "costs": decoder.costs,
        "motion encoder": decoder.update.motion,
        "motion aggregation": decoder.update.aggregation,
        "recurrent unit": decoder.update.gru,
        "flow and confidence head": decoder.update.change,
        "upsampling head": decoder.update.weights,
    }
    return {name: parameters(module) for name, module in named.items()}


def flow_operations(config: ModelConfig, height: int, width: int) -> int:
    """Floating-point operations of one pair at the configured updates: matrix products and convolutions, 2 a product.

    Nothing is computed: the network runs on shapes alone, for one update and for two, as every further one is the same.
    """
    with shapes_alone():
        network = build_flow(config).eval().requires_grad_(False)
        image = torch.empty(1, 3, height, width)
    counts = []
    for updates in (1, 2):
        with torch.no_grad(), flop_counter() as counter:
            network(image, image, updates=updates, low_memory=False)
        counts.append(int(counter.get_total_flops()))
    return counts[0] + (config.updates - 1) * (counts[1] - counts[0])


def depth_operations(config: ModelConfig, height: int, width: int) -> int:
    """As `flow_operations`, of the depth of one image."""
    with shapes_alone():
        network = build_depth(config).eval().requires_grad_(False)
        image = torch.empty(1, 3, height, width)
    with torch.no_grad(), flop_counter() as counter:
        network(image)
    return int(counter.get_total_flops())


OPERATIONS = {"flow": flow_operations, "depth": depth_operations}
"""What counts them, by task."""


@lru_cache
def operations(task: str, config: ModelConfig, height: int, width: int) -> int:
    """Floating-point operations of the flow of a pair, or of the depth of an image."""
    return OPERATIONS[task](config, height, width)
