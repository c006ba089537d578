"""Measure the speedup of each group of Triton kernels: inference and a flow training step with and without it.

    python benchmarks/kernels.py --json out/kernels.json
    python benchmarks/kernels.py --groups gru norm --minutes 3

The groups of `dispatch.KERNEL_GROUPS` are replaced one at a time. Inference runs on one image pair in a CUDA graph; the
replacement is plain torch in a graph of its own. Training runs forward, flow loss, backward and AdamW on one batch in a
CUDA graph, and the replacement is plain torch compiled by torch.compile, except for groups inside a custom operator,
which torch.compile does not enter. The two variants are timed in alternation, so that a change of the GPU's clock
affects both. A group is marked if neither inference nor training takes 5 % longer without it.

Without a GPU no kernel runs: the program is then a dry run of every step at a small size, and its times do not measure
the kernels.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from measuring import capture_graph, synchronize
from protoformer.flow.losses import flow_loss
from protoformer.io.files import write_atomically
from protoformer.models.config import preset
from protoformer.models.kernels.dispatch import KERNEL_GROUPS, disabled
from protoformer.models.protoformer import build_network

THRESHOLD = 5.0
"""Minimum slowdown without a group of kernels, percent of an inference or training step, that justifies the group."""
PLAIN_VERSIONS: dict[str, tuple[str, ...]] = {
    "norm": ("models.layers:TokenNorm.forward", "models.layers:MapNorm.forward"),
    "activation": ("models.layers:FusedConv.forward",),
    "position": ("models.layers:PositionConv.forward",),
    "gru": ("models.heads.update:gru_gates", "models.heads.update:gru_state"),
    "upsampling": ("models.heads.update:convex_upsample",),
    "lookup": ("models.heads.correlation:StoredCorrelation.windows",),
    "loss": ("flow.losses:error_sums",),
    "mixing": ("models.encoder:Mixer.forward",),
    "projection": (),
    "centers": (),
    "mlp": (),
}
"""Functions that torch.compile compiles when a group is disabled in training, as module:name in the package."""
INFERENCE, TRAINING = "inference", "training"
Step = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """Sizes of the measurement.

    Attributes:
        preset: Preset of the network.
        inference_size: (height, width) of the images in inference.
        training_size: (height, width) of the images in training.
        batch_size: Image pairs in a training batch.
        rounds: Number of measurements, of which the median is taken.
        calls: Calls per measurement.
    """

    preset: str
    inference_size: tuple[int, int]
    training_size: tuple[int, int]
    batch_size: int
    rounds: int
    calls: int


GPU_WORKLOAD = Workload("fast", (440, 1024), (352, 640), batch_size=16, rounds=5, calls=5)
DRY_RUN = Workload("tiny", (64, 64), (64, 64), batch_size=1, rounds=1, calls=1)


@dataclass(frozen=True)
class Comparison:
    """Times with all kernels and without one group.

    Attributes:
        enabled: Milliseconds with all kernels.
        disabled: Milliseconds without the group.
    """

    enabled: float
    disabled: float

    @property
    def percent(self) -> float:
        """Slowdown without the group, percent."""
        return 100 * (self.disabled / self.enabled - 1)


def inference_step(workload: Workload, device: torch.device) -> Step:
    """Return a function that runs the network on one pair of random images."""
    network = _build_network(workload, device).eval()
    first, second = _random_images(1, workload.inference_size, device)

    @torch.no_grad()
    def step() -> Tensor:
        with _autocast(device):
            flow: Tensor = network(first, second).flows[-1]
        return flow

    return step


def training_step(workload: Workload, device: torch.device) -> Step:
    """Return a function that trains the network on one batch of random images and flow."""
    network = _build_network(workload, device).train()
    size, batch = workload.training_size, workload.batch_size
    first, second = _random_images(batch, size, device)
    flow = 5 * torch.randn(batch, 2, *size, device=device)
    valid = torch.ones(batch, 1, *size, dtype=torch.bool, device=device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True, capturable=device.type == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with _autocast(device):
            prediction = network(first, second, return_all=True)
        flow_loss(prediction, flow, valid).total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    return step


def _build_network(workload: Workload, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    network = build_network(preset(workload.preset), "flow").to(device)
    return network.to(memory_format=torch.channels_last) if device.type == "cuda" else network  # type: ignore[call-overload,no-any-return]


def _random_images(batch: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return the first and second images, 2 x B x 3 x H x W in [-1, 1]."""
    return 2 * torch.rand(2, batch, 3, *size, device=device) - 1


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


STEPS = {INFERENCE: inference_step, TRAINING: training_step}


def prepare(kind: str, group: str | None, workload: Workload, device: torch.device) -> Step:
    """Return a step without one group of kernels, or with all of them; on CUDA it is captured in a graph.

    Args:
        kind: A key of `STEPS`.
        group: A key of `KERNEL_GROUPS`, or None for all kernels.
        workload: Sizes.
        device: Device to run on.
    """
    step = STEPS[kind](workload, device)
    use_compile = kind == TRAINING and device.type == "cuda"
    patches = [] if group is None else [_resolve(path) for path in PLAIN_VERSIONS[group]]
    functions = [torch.compile(value, dynamic=False) if use_compile else value for *_, value in patches]

    def run() -> None:
        with ExitStack() as stack:
            if group is not None:
                stack.enter_context(disabled(group))
            for (owner, name, _), function in zip(patches, functions, strict=True):
                stack.enter_context(mock.patch.object(owner, name, function))
            step()

    return capture_graph(run) if device.type == "cuda" else run


def _resolve(path: str) -> tuple[Any, str, Callable[..., Any]]:
    """Return the owner, name and value of a function given as in `PLAIN_VERSIONS`."""
    module, _, qualified = path.partition(":")
    owner: Any = import_module(f"protoformer.{module}")
    *parents, name = qualified.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name, getattr(owner, name)


def compare(baseline: Step, variant: Step, workload: Workload, device: torch.device) -> Comparison:
    """Time two steps in alternation and return the medians."""
    step_times: tuple[list[float], list[float]] = ([], [])
    for _ in range(workload.rounds + 1):  # the first round is the warm-up
        for step, times in zip((baseline, variant), step_times, strict=True):
            synchronize(device)
            start = time.perf_counter()
            for _ in range(workload.calls):
                step()
            synchronize(device)
            times.append(1000 * (time.perf_counter() - start) / workload.calls)
    return Comparison(*(statistics.median(times[1:]) for times in step_times))


def measure(
    groups: list[str], workload: Workload, device: torch.device, minutes: float
) -> dict[str, dict[str, Comparison]]:
    """Compare inference and training with and without each group.

    Args:
        groups: Keys of `KERNEL_GROUPS`.
        workload: Sizes.
        device: Device to run on.
        minutes: Time after which no further measurement starts.

    Returns:
        Comparisons by kind and group. What failed or did not fit in the time is missing.
    """
    results: dict[str, dict[str, Comparison]] = {}
    deadline = time.monotonic() + 60 * minutes
    for kind in STEPS:
        results[kind] = {}
        try:
            baseline = prepare(kind, None, workload, device)
        except Exception as error:  # continue with the other kind
            print(f"{kind}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        for group in groups:
            if time.monotonic() > deadline:
                print(f"{kind} without {group}: not measured, the time is over; raise --minutes or choose --groups")
                continue
            start = time.monotonic()
            try:
                comparison = compare(baseline, prepare(kind, group, workload, device), workload, device)
            except Exception as error:  # continue with the other groups
                print(f"{kind} without {group}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            finally:
                gc.collect()
                torch.compiler.reset()
            results[kind][group] = comparison
            seconds = time.monotonic() - start
            print(f"{kind} without {group}: {comparison.percent:+.1f} % (measured in {seconds:.0f} s)", flush=True)
    return results


def is_below_threshold(group: str, results: dict[str, dict[str, Comparison]]) -> bool | None:
    """Return whether the slowdown without a group is below `THRESHOLD` in both inference and training.

    None if that is unknown.
    """
    percents = [results[kind][group].percent if group in results[kind] else None for kind in STEPS]
    if any(percent is not None and percent >= THRESHOLD for percent in percents):
        return False
    return None if None in percents else True


def format_table(groups: list[str], results: dict[str, dict[str, Comparison]], mark: bool = True) -> str:
    """Format a Markdown table with one row per group; mark: mark the groups below the threshold."""
    lines = [
        "| group | inference, ms | without | difference | training, ms | without | difference | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for group in groups:
        cells = [group]
        for kind in STEPS:
            comparison = results[kind].get(group)
            if comparison is None:
                cells += ["-", "-", "-"]
            else:
                cells += [f"{comparison.enabled:.2f}", f"{comparison.disabled:.2f}", f"{comparison.percent:+.1f} %"]
        cells.append(f"below {THRESHOLD:.0f} %" if mark and is_below_threshold(group, results) else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=KERNEL_GROUPS,
        default=list(KERNEL_GROUPS),
        metavar="GROUP",
        help="groups of kernels to measure",
    )
    parser.add_argument("--minutes", type=float, default=6.5, help="time after which no further measurement starts")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    use_gpu = torch.cuda.is_available()
    device, workload = (torch.device("cuda"), GPU_WORKLOAD) if use_gpu else (torch.device("cpu"), DRY_RUN)
    if use_gpu:
        torch._dynamo.config.recompile_limit = 64  # convolutions of one class have many shapes
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    else:
        print("Dry run on a CPU: no kernel runs, so the times do not measure the kernels. Measuring needs a GPU.")
    results = measure(arguments.groups, workload, device, arguments.minutes)
    print(format_table(arguments.groups, results, mark=use_gpu))
    if arguments.json:
        figures = {
            "dry_run": not use_gpu,
            "device": torch.cuda.get_device_name() if use_gpu else "cpu",
            "torch": torch.__version__,
            "workload": asdict(workload),
            "groups": {
                group: {
                    **{
                        kind: {**asdict(results[kind][group]), "percent": results[kind][group].percent}
                        for kind in STEPS
                        if group in results[kind]
                    },
                    "below_threshold": is_below_threshold(group, results) if use_gpu else None,
                }
                for group in arguments.groups
            },
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(figures, indent=1).encode())


if __name__ == "__main__":
    main()
