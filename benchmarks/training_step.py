"""Measure how much prototypes add to the time of a training step, compared with a network without mixers.

    python benchmarks/training_step.py --preset fast --batch 12 --height 320 --width 448

A step is forward, backward and AdamW on random images, under bfloat16 autocast on CUDA and in float32 on a CPU. On CUDA
each step is also captured in a CUDA graph, which removes the overhead of kernel launches.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from measuring import capture_graph, synchronize
from protoformer.models.config import preset
from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch
from protoformer.models.protoformer import ProtoFormer, build_network

WARM_UP = 2


class ZeroMixer(nn.Module):
    """Replacement for a mixer whose update is zero."""

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """Return a scalar zero for tokens, B x HW x C, of a map of (H, W)."""
        return tokens.new_zeros(())


def remove_mixers(network: ProtoFormer) -> ProtoFormer:
    """Replace every mixer of a network by a `ZeroMixer`, in place, so that its encoder has only MLPs."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Mixer):
                setattr(parent, name, ZeroMixer())
    return network


def training_step(network: ProtoFormer, images: Tensor) -> Callable[[], None]:
    """Return a function that trains the network on a batch of image pairs, 2 x B x 3 x H x W."""
    device = images.device
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, capturable=device.type == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            prediction = network(*images, return_all=True)
        loss = sum(output.float().abs().mean() for output in (*prediction.flows, *prediction.log_scales))
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()

    return step


def measure_milliseconds(step: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Measure the median time of a step after `WARM_UP` steps."""
    times = []
    for _ in range(repeats + WARM_UP):
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[WARM_UP:])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device to measure on")
    parser.add_argument("--preset", default="fast", help="preset of the network")
    parser.add_argument("--batch", type=int, default=12, help="batch size")
    parser.add_argument("--height", type=int, default=320, help="height of the images, pixels")
    parser.add_argument("--width", type=int, default=448, help="width of the images, pixels")
    parser.add_argument("--repeats", type=int, default=10, help="number of timed steps")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    images = 2 * torch.rand(2, arguments.batch, 3, arguments.height, arguments.width, device=device) - 1
    config = preset(arguments.preset)
    networks: dict[str, tuple[str, Callable[[], ProtoFormer]]] = {
        "without prototypes": ("fused", lambda: remove_mixers(build_network(config, "flow"))),
        "prototypes, fused": ("fused", lambda: build_network(config, "flow")),
        "prototypes, plain": ("plain", lambda: build_network(config, "flow")),
    }
    baseline: dict[str, float] = {}
    for name, (version, build) in networks.items():
        with dispatch.use_version(version):
            step = training_step(build(), images)
            times = {"eager": measure_milliseconds(step, device, arguments.repeats)}
            if device.type == "cuda":
                try:
                    graph = capture_graph(step)
                    times["in a CUDA graph"] = measure_milliseconds(graph, device, arguments.repeats)
                except RuntimeError as error:
                    print(f"{name}: no CUDA graph ({str(error)[:200]})")
        for mode, milliseconds in times.items():
            ratio = milliseconds / baseline.setdefault(mode, milliseconds)
            print(f"{name:20} {mode:16} {milliseconds:8.1f} ms  x {ratio:.2f}")


if __name__ == "__main__":
    main()
