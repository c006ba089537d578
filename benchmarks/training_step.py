"""What prototypes cost a training step of a preset: the step with them, and with every mixer left out of its block.

    python benchmarks/training_step.py --preset fast --batch 12 --height 320 --width 448

Forward, backward and AdamW under bfloat16 autocast on CUDA (float32 on a CPU), on random images. On CUDA each is also
recorded in a CUDA graph, where launching kernels costs nothing and what is left is the GPU's own time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from measuring import captured, synchronize
from protoformer.models.config import preset
from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch
from protoformer.models.protoformer import ProtoFormer, build_network


class Nothing(nn.Module):
    """Stands where a mixer stood, and adds nothing."""

    def forward(self, tokens: Tensor, size: tuple[int, int], requested: bool) -> tuple[Tensor, None]:
        """tokens: B x HW x C; there are no prototypes to ask for."""
        return tokens.new_zeros(()), None


def without_mixers(network: ProtoFormer) -> ProtoFormer:
    """The same network with MLPs alone in its encoder's blocks."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Mixer):
                setattr(parent, name, Nothing())
    return network


def step_of(network: ProtoFormer, images: Tensor) -> Callable[[], None]:
    """One training step on two random images."""
    device = images.device
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, capturable=device.type == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            prediction = network(*images, return_all=True)
        loss = sum(each.float().abs().mean() for each in (*prediction.flows, *prediction.log_scales))
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()

    return step


def milliseconds(step: Callable[[], None], device: torch.device, repeats: int) -> float:
    """The median, after two steps to warm up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--height", type=int, default=320)
    parser.add_argument("--width", type=int, default=448)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    images = 2 * torch.rand(2, arguments.batch, 3, arguments.height, arguments.width, device=device) - 1
    config = preset(arguments.preset)
    networks: dict[str, tuple[str, Callable[[], ProtoFormer]]] = {
        "without prototypes": ("fused", lambda: without_mixers(build_network(config, "flow"))),
        "prototypes, fused": ("fused", lambda: build_network(config, "flow")),
        "prototypes, plain": ("plain", lambda: build_network(config, "flow")),
    }
    base: dict[str, float] = {}
    for name, (version, build) in networks.items():
        with dispatch.use_version(version):
            step = step_of(build(), images)
            spent = {"eager": milliseconds(step, device, arguments.repeats)}
            if device.type == "cuda":
                try:
                    spent["in a CUDA graph"] = milliseconds(captured(step), device, arguments.repeats)
                except RuntimeError as error:
                    print(f"{name}: no CUDA graph ({str(error)[:200]})")
        for way, duration in spent.items():
            ratio = duration / base.setdefault(way, duration)
            print(f"{name:20} {way:16} {duration:8.1f} ms  x {ratio:.2f}")


if __name__ == "__main__":
    main()
