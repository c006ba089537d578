"""Training on a GPU: nothing waits for it, and a recorded step is the step itself."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protoformer.training import FlowTask, Recipe, Trainer
from protoformer.training.distributed import launched
from protoformer.training.engine import Engine, build_engine
from protoformer.training.graph import WARM_UP
from protoformer.training.recipe import DataSection, ModelSection, OptimizerSection, RunSection, ScheduleSection

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RECIPE = Recipe(
    model=ModelSection("tiny"),
    data=DataSection(batch=2, crop=(64, 64)),
    optimizer=OptimizerSection(rate=1e-3, epsilon=1e-5),
    schedule=ScheduleSection("constant", warm_up=4),
    run=RunSection(steps=12, log_every=4, validate_every=6, pictures_every=0, validation_scenes=2),
)
STEPS = WARM_UP + 4


def engine(**run: object) -> Engine:
    recipe = dataclasses.replace(RECIPE, run=dataclasses.replace(RECIPE.run, **run))
    return build_engine(launched("cuda"), recipe, FlowTask(recipe))


def batches(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        images = torch.rand(2, 2, 3, 64, 64, generator=generator)
        tensors = {"first": images[0], "second": images[1], "flow": 4 * torch.randn(2, 2, 64, 64, generator=generator)}
        tensors["valid"] = torch.rand(2, 1, 64, 64, generator=generator) < 0.7
        made.append({name: tensor.cuda() for name, tensor in tensors.items()})
    return made


def trained(engine: Engine, data: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    for number, tensors in enumerate(data):
        engine.step(tensors, rate=1e-3 / (1 + number))
    torch.cuda.synchronize()
    return {name: tensor.detach().clone() for name, tensor in engine.state().items()}


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if name.startswith(("model.", "ema.")):
            assert (tensor - other[name]).abs().max() <= tolerance, name
    assert all(torch.equal(one[f"guard.{name}"], other[f"guard.{name}"]) for name in ("step", "good", "skipped"))
    assert torch.allclose(one["guard.sums"], other["guard.sums"], rtol=1e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recorded_steps_are_the_steps_themselves(precision: str) -> None:
    data = batches(STEPS)
    eager, graph = (trained(engine(speed=speed, precision=precision), data) for speed in ("eager", "graph"))
    close(eager, graph, 1e-4 if precision == "fp32" else 2e-3)
    begun = trained(engine(), [])
    assert max((begun[name] - eager[name]).abs().max() for name in eager if name.startswith("model.")) > 1e-3


@pytest.mark.parametrize("speed", ["eager", "graph"])
def test_a_poisoned_batch_is_skipped_where_it_is_computed(speed: str) -> None:
    data = batches(STEPS)
    bad = WARM_UP + 2  # one that is replayed
    data[bad]["first"] = torch.full_like(data[bad]["first"], torch.nan)
    made = engine(speed=speed)
    before = trained(made, data[:bad])
    after = trained(made, data[bad : bad + 1])
    for name in before:
        if name.startswith(("model.", "ema", "optimizer.")):
            assert torch.equal(before[name], after[name]), name
    assert (after["guard.skipped"], after["guard.row"]) == (1, 1)
    good = trained(made, data[bad + 1 :])
    assert all(tensor.isfinite().all() for tensor in good.values()) and good["guard.row"] == 0


@pytest.mark.parametrize("speed", ["eager", "graph"])
def test_a_step_never_waits_for_the_device(speed: str) -> None:
    data, made = batches(STEPS + 2), engine(speed=speed)
    trained(made, data[:STEPS])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for tensors in data[STEPS:]:
            made.step(tensors, rate=1e-3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch by itself, as it loads its compiler
def test_compiled_parts_compute_the_same() -> None:
    data = batches(3)
    eager, compiled = (trained(engine(speed=speed), data) for speed in ("eager", "compile"))
    close(eager, compiled, 1e-3)


@pytest.mark.parametrize("speed", ["eager", "graph"])
def test_a_run_on_the_world_goes_on_where_it_stopped(speed: str, tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, run=dataclasses.replace(RECIPE.run, speed=speed))
    for steps in (5, 12):
        shorter = recipe.changed([f"run.steps={steps}"])
        ended = Trainer(shorter, FlowTask(shorter), tmp_path, device="cuda").run()
        assert ended.step == steps
    assert ended.why == "steps" and (tmp_path / "log.jsonl").exists()
