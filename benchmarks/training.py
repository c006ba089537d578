"""Measure the training speed of a recipe, with and without its data, next to RAFT-large.

    python benchmarks/training.py                                       flow-synthetic on this machine's GPU
    python benchmarks/training.py --recipe depth-synthetic --no-raft    another recipe, of any task
    python benchmarks/training.py --execution eager graph --json out/training.json
    python benchmarks/training.py --device cpu --set model.preset=tiny --set data.batch_size=2

One row per execution mode. "alone" repeats one batch; "with data" makes new batches as in a run, and "data, %" is the
fraction of the step that this adds. Pairs per second are with data; memory is the peak GPU memory.

Where torchvision is installed, its RAFT-large (12 updates, as published) is trained on the same number of random images
of the same size, without data, in the same precision and with the same optimizer, eager and compiled; --no-raft leaves
it out.
A measurement that fails, for lack of memory or of a compiler, is reported and left out.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from measuring import synchronize
from protoformer.io.files import write_atomically
from protoformer.tasks import task_of
from protoformer.training.distributed import launch
from protoformer.training.engine import build_engine
from protoformer.training.prefetch import InFlight
from protoformer.training.recipe import Recipe, read_recipe

WARM_UP = 6
DATA_WARM_UP = 120
"""Warm-up steps on a GPU; the first batch of each family compiles kernels for seconds."""
RAFT_UPDATES, RAFT_GAMMA = 12, 0.8


@dataclass(frozen=True)
class TrainingCost:
    """Cost of a training step.

    Attributes:
        name: Network and execution mode.
        alone: Milliseconds with one repeated batch.
        with_data: Milliseconds with new batches; None if not measured.
        pairs: Pairs per second.
        gib: Peak GPU memory, GiB; None on a CPU.
    """

    name: str
    alone: float
    with_data: float | None
    pairs: float
    gib: float | None

    @property
    def data_fraction(self) -> float | None:
        """Fraction of a step with data that is spent on the data."""
        return None if self.with_data is None else max(0.0, 1 - self.alone / self.with_data)


def measure_milliseconds(step: Callable[[], None], device: torch.device, steps: int, warm_up: int = WARM_UP) -> float:
    """Measure the mean time of a step without synchronization between steps."""
    for _ in range(warm_up):
        step()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return 1000 * (time.perf_counter() - start) / steps


def peak_gib(device: torch.device) -> float | None:
    """Return the peak GPU memory since the last reset, GiB."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def measure_recipe(recipe: Recipe, device: torch.device, steps: int) -> TrainingCost:
    """Measure a training step of a recipe."""
    task = task_of(recipe)
    engine = build_engine(launch(str(device)), recipe, task)
    batches: Iterator[Any] = task.source(0, 1, device, print).batches(0)
    lr, repeated = recipe.optimizer.lr, task.tensors(next(batches))
    alone = measure_milliseconds(lambda: engine.step(repeated, lr), device, steps)
    in_flight = InFlight(device)

    def step() -> None:
        engine.step(task.tensors(next(batches)), lr)
        in_flight.add_step()

    with_data = measure_milliseconds(step, device, steps, DATA_WARM_UP if device.type == "cuda" else WARM_UP)
    name = f"{recipe.model.preset}, {recipe.run.execution}"
    return TrainingCost(name, alone, with_data, 1000 * recipe.data.batch_size / with_data, peak_gib(device))


def measure_raft(recipe: Recipe, device: torch.device, steps: int, compiled: bool) -> TrainingCost:
    """Measure torchvision's RAFT-large on random images."""
    from torchvision.models.optical_flow import raft_large  # type: ignore[import-not-found]

    network: nn.Module = raft_large(weights=None).to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    call: Callable[..., list[Tensor]] = torch.compile(network) if compiled else network
    batch, (height, width) = recipe.data.batch_size, recipe.data.crop_size
    first, second = 2 * torch.rand(2, batch, 3, height, width, device=device) - 1
    flow = torch.randn(batch, 2, height, width, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.run.precision == "bf16"):
            flows = call(first, second, num_flow_updates=RAFT_UPDATES)
        loss = torch.zeros((), device=device)
        for index, estimate in enumerate(reversed(flows)):
            loss = loss + RAFT_GAMMA**index * (estimate.float() - flow).abs().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    alone = measure_milliseconds(step, device, steps)
    name = "RAFT-large, compiled" if compiled else "RAFT-large, eager"
    return TrainingCost(name, alone, None, 1000 * batch / alone, peak_gib(device))


def try_measure(name: str, measure: Callable[[], TrainingCost], device: torch.device) -> Iterator[TrainingCost]:
    """Yield a measurement, or report why it failed."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        cost = measure()
    except (RuntimeError, ImportError, ValueError) as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        return
    # Printed immediately, because the next network may take minutes to compile.
    print(f"{cost.name}: {cost.alone:.1f} ms alone, {cost.pairs:.1f} pairs per second", flush=True)
    yield cost


def build_table(costs: list[TrainingCost], title: str) -> Table:
    """Build a table with one row per measurement."""
    table = Table(title=title, box=None)
    for column in ("network", "ms alone", "ms with data", "data, %", "pairs per second", "GiB"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for cost in costs:
        fraction = cost.data_fraction
        table.add_row(
            cost.name,
            f"{cost.alone:.1f}",
            "-" if cost.with_data is None else f"{cost.with_data:.1f}",
            "-" if fraction is None else f"{100 * fraction:.0f}",
            f"{cost.pairs:.1f}",
            "-" if cost.gib is None else f"{cost.gib:.1f}",
        )
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="flow-synthetic", help="name of a recipe, or a .yaml file")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device to measure on")
    parser.add_argument(
        "--execution", nargs="+", choices=("eager", "compile", "graph", "both"), help="execution modes to measure"
    )
    parser.add_argument("--steps", type=int, default=100, help="number of timed steps")
    parser.add_argument("--raft", action=argparse.BooleanOptionalAction, default=True, help="also measure RAFT-large")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    recipe = read_recipe(arguments.recipe).changed(arguments.settings)
    costs: list[TrainingCost] = []
    for execution in arguments.execution or (("eager", "graph", "both") if device.type == "cuda" else ("eager",)):
        changed = recipe.changed([f"run.execution={execution}"])
        costs.extend(
            try_measure(execution, lambda changed=changed: measure_recipe(changed, device, arguments.steps), device)  # type: ignore[misc]
        )
    for compiled in (False, True) if arguments.raft else ():
        costs.extend(
            try_measure(
                "RAFT-large", lambda compiled=compiled: measure_raft(recipe, device, arguments.steps, compiled), device
            )  # type: ignore[misc]
        )
    (height, width), precision = recipe.data.crop_size, recipe.run.precision
    title = f"Training, {recipe.data.batch_size} pairs of {height}x{width} per step, {precision}, on {device}"
    Console(width=120).print(build_table(costs, title))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        values = {"recipe": recipe.as_dict(), "costs": [asdict(cost) for cost in costs]}
        write_atomically(arguments.json, json.dumps(values, indent=1).encode())


if __name__ == "__main__":
    main()
