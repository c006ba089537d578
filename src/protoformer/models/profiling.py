"""Parameters, floating-point operations and run time of networks."""

import statistics
import time
from functools import lru_cache

import torch
from torch import Tensor, nn

from protoformer.models.config import ModelConfig
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import CudaGraph, flop_counter, meta_init, use_half_precision


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def count_parts(network: ProtoFormer) -> dict[str, int]:
    """Return the number of parameters of each part of a flow network; their sum is that of the network."""
    head = network.flow_head
    assert head is not None
    decoder = head.decoder
    parts: dict[str, nn.Module] = {
        "feature encoder": network.encoder,
        **({"context encoder": head.context_encoder} if head.context_encoder is not None else {}),
        "correlation projection": head.feature_proj,
        "context projection": head.context_proj,
        **({"global matching": head.matching} if head.matching is not None else {}),
        "costs": decoder.costs,
        "motion encoder": decoder.update.motion,
        "motion aggregation": decoder.update.aggregation,
        "recurrent unit": decoder.update.gru,
        "flow and log-scale head": decoder.update.delta_head,
        "upsampling head": decoder.update.upsampling_head,
    }
    return {name: count_parameters(module) for name, module in parts.items()}


def count_flow_operations(config: ModelConfig, height: int, width: int) -> int:
    """Return the floating-point operations of the flow of one pair of images at the configured number of updates.

    Matrix products and convolutions are counted, with 2 operations per multiply-add. The network runs on the meta
    device with one update and with two, and further updates are extrapolated.

    Args:
        config: Configuration of the network.
        height: Height of the images, pixels.
        width: Width of the images, pixels.
    """
    with meta_init():
        network = build_network(config, "flow").eval().requires_grad_(False)
        image = torch.empty(1, 3, height, width)
    counts = []
    for updates in (1, 2):
        with torch.no_grad(), flop_counter() as counter:
            network(image, image, num_updates=updates, low_memory=False)
        counts.append(int(counter.get_total_flops()))
    return counts[0] + (config.flow.num_updates - 1) * (counts[1] - counts[0])


def count_depth_operations(config: ModelConfig, height: int, width: int) -> int:
    """Return the floating-point operations of the depth of one image; see `count_flow_operations`."""
    with meta_init():
        network = build_network(config, "depth").eval().requires_grad_(False)
        image = torch.empty(1, 3, height, width)
    with torch.no_grad(), flop_counter() as counter:
        network(image)
    return int(counter.get_total_flops())


OPERATIONS = {"flow": count_flow_operations, "depth": count_depth_operations}
"""Functions that count floating-point operations, by task."""


@lru_cache
def count_operations(task: str, config: ModelConfig, height: int, width: int) -> int:
    """Return the floating-point operations of the flow of one pair or of the depth of one image."""
    return OPERATIONS[task](config, height, width)


REPEATS = {"cuda": 20, "cpu": 3}
"""Number of timed forward passes by device type."""


@torch.no_grad()
def measure_forward_ms(network: ProtoFormer, size: tuple[int, int]) -> float:
    """Return the median time of a forward pass in milliseconds, as for the frames of a video.

    A GPU replays a CUDA graph, in bfloat16 if it supports that.

    Args:
        network: A flow or depth network.
        size: (height, width) of the images.
    """
    device = next(network.parameters()).device
    is_flow = network.tasks == ("flow",)
    count = 2 if is_flow else 1
    noise = torch.rand(count, 1, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    images = tuple(2 * image.to(device) - 1 for image in noise)

    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16, enabled=use_half_precision(device, "auto")):
            prediction = network(*inputs)
        return (prediction.flows[-1] if is_flow else prediction.log_depths[-1],)

    call = CudaGraph(forward) if device.type == "cuda" else forward
    for _ in range(3 if device.type == "cuda" else 1):  # the third call records the graph
        call(*images)
    times = []
    for _ in range(REPEATS[device.type]):
        _synchronize(device)
        start = time.perf_counter()
        call(*images)
        _synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
