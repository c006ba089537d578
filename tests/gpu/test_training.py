"""Training on a GPU: no synchronization, and graphed steps equal eager steps."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protoformer.tasks import task_of
from protoformer.training.checkpoint import load
from protoformer.training.distributed import launch
from protoformer.training.engine import WARM_UP, Engine, build_engine
from protoformer.training.recipe import (
    DataSection,
    LossSection,
    ModelSection,
    OptimizerSection,
    Recipe,
    RunSection,
    ScheduleSection,
)
from protoformer.training.schedule import StepTimer
from protoformer.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RECIPE = Recipe(
    model=ModelSection("tiny"),
    data=DataSection(batch_size=2, crop_size=(64, 64)),
    optimizer=OptimizerSection(lr=1e-3, eps=1e-5),
    schedule=ScheduleSection("constant", warm_up=4),
    loss=LossSection(prototype_motion=0.3, prototype_plane=0.3, prototype_instances=0.1),
    run=RunSection(steps=12, log_every=4, validate_every=6, draw_every=0, validation_scenes=2),
)
STEPS = WARM_UP + 4


def engine(task: str = "flow", **run: object) -> Engine:
    recipe = dataclasses.replace(RECIPE, task=task, run=dataclasses.replace(RECIPE.run, **run))
    return build_engine(launch("cuda"), recipe, task_of(recipe))


def batches(count: int, task: str = "flow") -> list[dict[str, Tensor]]:
    """Return batches with growing ground truth, so that a step on the wrong batch is detected."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for number in range(count):
        images = torch.rand(2, 2, 3, 64, 64, generator=generator)
        flow = (number + 1) * torch.randn(2, 2, 64, 64, generator=generator)
        if task == "flow":
            tensors = {"first": images[0], "second": images[1], "flow": flow}
            tensors["occlusion"] = torch.zeros(2, 1, 64, 64, dtype=torch.bool)
        else:
            tensors = {"image": images[0], "depth": 0.2 + flow[:, :1].abs(), "focal": torch.tensor([60.0, 90.0])}
            tensors["center"] = torch.tensor([[31.5, 31.5], [8.0 * number, 40.0]])
        tensors["instances"] = torch.randint(-1, 3, (2, 1, 64, 64), generator=generator)
        tensors["valid"] = torch.rand(2, 1, 64, 64, generator=generator) < 0.7
        batches.append({name: tensor.cuda() for name, tensor in tensors.items()})
    return batches


def run_steps(engine: Engine, data: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    for tensors in data:
        engine.step(tensors, lr=1e-3)
    torch.cuda.synchronize()
    return {name: tensor.detach().clone() for name, tensor in engine.state().items()}


def distance(one: dict[str, Tensor], other: dict[str, Tensor], kind: str) -> float:
    """Return the Euclidean distance between the weights of two states."""
    squares = [(one[name].double() - other[name].double()).square().sum() for name in one if name.startswith(kind)]
    return float(torch.stack(squares).sum().sqrt())


def assert_near(actual: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor]) -> None:
    """Assert that two states differ by little of their distance from the start, less than a missed step would."""
    assert actual.keys() == expected.keys()
    for kind in ("model.", "ema."):
        moved = distance(start, expected, kind)
        assert moved > 0 and distance(actual, expected, kind) < 0.2 * moved, kind
    for name in ("step", "good", "skipped"):
        assert torch.equal(actual[f"guard.{name}"], expected[f"guard.{name}"]), name
    assert torch.allclose(actual["guard.sums"], expected["guard.sums"], rtol=1e-2)


@pytest.mark.parametrize("task", ["flow", "depth"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_graphed_steps_equal_eager_steps(
    task: str, precision: str, graph_equals_eager: Callable[[Recipe, list[dict[str, Tensor]]], None]
) -> None:
    run = dataclasses.replace(RECIPE.run, precision=precision)
    graph_equals_eager(dataclasses.replace(RECIPE, task=task, run=run), batches(STEPS, task))


@pytest.mark.parametrize("speed", ["eager", "graph"])
def test_a_batch_with_nan_is_skipped(speed: str) -> None:
    data = batches(STEPS)
    bad = WARM_UP + 2  # a replayed step
    data[bad]["first"] = torch.full_like(data[bad]["first"], torch.nan)
    trained_engine = engine(execution=speed)
    before = run_steps(trained_engine, data[:bad])
    after = run_steps(trained_engine, data[bad : bad + 1])
    for name in before:
        if name.startswith(("model.", "ema", "optimizer.")):
            assert torch.equal(before[name], after[name]), name
    assert (after["guard.skipped"], after["guard.row"]) == (1, 1)
    good = run_steps(trained_engine, data[bad + 1 :])
    assert all(tensor.isfinite().all() for tensor in good.values()) and good["guard.row"] == 0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("task", ["flow", "depth"])
@pytest.mark.parametrize("speed", ["eager", "graph"])
def test_a_step_does_not_synchronize(task: str, speed: str) -> None:
    data, trained_engine = batches(STEPS + 2, task), engine(task, execution=speed)
    run_steps(trained_engine, data[:STEPS])
    try:
        torch.cuda.set_sync_debug_mode("error")
        for tensors in data[STEPS:]:
            trained_engine.step(tensors, lr=1e-3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore")  # messages of torch's compiler
@pytest.mark.parametrize(("speed", "steps"), [("compile", 3), ("both", WARM_UP + 2)])
def test_compiled_steps_equal_eager_steps(
    speed: str,
    steps: int,
    same_steps: Callable[[Engine, Engine, list[dict[str, Tensor]], Recipe], None],
    exact_convolutions: None,
) -> None:
    same_steps(engine(execution="eager"), engine(execution=speed), batches(steps), RECIPE)


@pytest.mark.parametrize("speed", ["eager", "graph"])
def test_a_run_on_synthetic_scenes_resumes(speed: str, tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, run=dataclasses.replace(RECIPE.run, execution=speed))

    def state(folder: str, steps: int) -> dict[str, Tensor]:
        chosen = recipe.changed([f"run.steps={steps}"])
        ended = Trainer(chosen, task_of(chosen), tmp_path / folder, device="cuda").run()
        assert (ended.step, ended.stop_reason) == (steps, "steps")
        return load(ended.checkpoint).tensors

    half, resumed, whole = state("halves", 5), state("halves", 12), state("whole", 12)
    assert_near(resumed, whole, start=half)


def test_the_data_share_is_the_idle_time_of_the_gpu() -> None:
    side, pace = torch.cuda.Stream(), StepTimer(torch.device("cuda"))

    def spin(seconds: float) -> None:
        torch.cuda._sleep(int(seconds * 1e9))  # clock cycles of about a nanosecond

    spin(0.001)
    torch.cuda.synchronize()
    for slow in (False, True):
        pace.clear()
        for _ in range(3):
            with pace.waiting():
                if slow:  # the batch is computed on its own stream, and the step's stream waits for it
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        spin(0.02)
                    torch.cuda.current_stream().wait_stream(side)
            with pace.working():
                spin(0.02)
            pace.stepped()
        with pace.working():
            torch.cuda.synchronize()
        assert pace.data_fraction() > 0.3 if slow else pace.data_fraction() < 0.1
