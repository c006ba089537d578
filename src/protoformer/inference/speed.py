"""How long a network takes for one pair, or one image."""

import statistics
import time

import torch
from torch import Tensor, nn

from protoformer.inference.flow_windows import takes_half
from protoformer.inference.graphs import Graphed
from protoformer.model.flow import FlowNetwork

REPEATS = {"cuda": 20, "cpu": 3}
"""How many passes are timed, by the kind of the device."""


@torch.no_grad()
def forward_milliseconds(network: nn.Module, size: tuple[int, int]) -> float:
    """The median time of a forward pass at a size (height, width), as a stream of frames has it.

    A GPU replays a recorded graph, in bfloat16 where it is made for that. The network is one of flow or of depth.
    """
    device = next(network.parameters()).device
    count = 2 if isinstance(network, FlowNetwork) else 1
    noise = torch.rand(count, 1, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    images = tuple(2 * image.to(device) - 1 for image in noise)

    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16, enabled=takes_half(device, "auto")):
            found = network(*inputs)
        return (found.flows[-1] if isinstance(network, FlowNetwork) else found.logs[-1],)

    call = Graphed(forward) if device.type == "cuda" else forward
    for _ in range(3 if device.type == "cuda" else 1):  # the third is the one that is recorded
        call(*images)
    times = []
    for _ in range(REPEATS[device.type]):
        _wait(device)
        start = time.perf_counter()
        call(*images)
        _wait(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
