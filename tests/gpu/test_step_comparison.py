"""The comparison of graphed and eager steps accepts equal steps and detects errors of one percent."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protoformer.tasks import task_of
from protoformer.training.distributed import launch
from protoformer.training.engine import Engine, build_engine
from protoformer.training.recipe import DataSection, ModelSection, Recipe, RunSection, ScheduleSection

STEPS = 3
State = dict[str, Tensor]
Step = Callable[[Engine, State, float], None]
Check = Callable[[Engine, Engine, list[State], Recipe], None]


def recipe_in(precision: str) -> Recipe:
    return Recipe(
        task="depth",
        model=ModelSection("tiny"),
        data=DataSection(batch_size=2, crop_size=(32, 32)),
        schedule=ScheduleSection("constant", warm_up=4),
        run=RunSection(precision=precision),
    )


@pytest.fixture(scope="module")
def engines() -> dict[str, tuple[Engine, Engine]]:
    """Two engines for each precision."""
    recipes = {precision: recipe_in(precision) for precision in ("fp32", "bf16")}
    return {
        precision: (
            build_engine(launch("cpu"), recipe, task_of(recipe)),
            build_engine(launch("cpu"), recipe, task_of(recipe)),
        )
        for precision, recipe in recipes.items()
    }


def batches() -> list[State]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "image": torch.rand(2, 3, 32, 32, generator=generator),
            "depth": 0.2 + (number + 1) * torch.rand(2, 1, 32, 32, generator=generator),
            "focal": torch.tensor([60.0, 90.0]),
            "center": torch.tensor([[15.5, 15.5], [4.0 * number, 20.0]]),
            "valid": torch.rand(2, 1, 32, 32, generator=generator) < 0.7,
        }
        for number in range(STEPS)
    ]


@pytest.fixture
def check(engines: dict[str, tuple[Engine, Engine]], same_steps: Check) -> Callable[[str, Step], None]:
    """Return a function that compares a step function with the engine's own step, from the same state."""

    def run(precision: str, step: Step) -> None:
        one, other = engines[precision]
        start = {name: tensor.clone() for name, tensor in one.state().items()}
        changed = dataclasses.replace(other, step=lambda tensors, lr: step(other, tensors, lr))
        try:
            same_steps(one, changed, batches(), recipe_in(precision))
        finally:
            one.restore(start)

    return run


def unchanged(engine: Engine, tensors: State, rate: float) -> None:
    """The engine's own step."""
    engine.step(tensors, rate)


def rounded(engine: Engine, tensors: State, rate: float) -> None:
    """Compute the gradient at weights with changed last digits, like the rounding of another order of sums."""
    parameters, generator = list(engine.network.parameters()), torch.Generator().manual_seed(1)
    exact = [each.detach().clone() for each in parameters]
    with torch.no_grad():
        for each in parameters:
            each.mul_(1 + 1e-7 * torch.randn(each.shape, generator=generator))

    def restore(*_: object) -> None:
        for each, weight in zip(parameters, exact, strict=True):
            each.data.copy_(weight)

    with_hook(engine, restore, tensors, rate)


def scaled_gradient(engine: Engine, tensors: State, rate: float) -> None:
    """Scale the clipped gradient by 1.01."""

    def enlarge(*_: object) -> None:
        for each in engine.network.parameters():
            if each.grad is not None:
                each.grad.mul_(1.01)

    with_hook(engine, enlarge, tensors, rate)


def with_hook(engine: Engine, hook: Callable[..., None], tensors: State, rate: float) -> None:
    """Run a step with a hook before the update."""
    handle = engine.optimizer.register_step_pre_hook(hook)
    try:
        engine.step(tensors, rate)
    finally:
        handle.remove()


def overshot(kind: str, key: str = "") -> Step:
    """Return a step that changes one part of the state by 1 % too much."""

    def step(engine: Engine, tensors: State, rate: float) -> None:
        before = {name: tensor.clone() for name, tensor in engine.state().items()}
        engine.step(tensors, rate)
        with torch.no_grad():
            for name, tensor in engine.state().items():
                if name.startswith(kind) and name.endswith(key) and tensor.is_floating_point():
                    tensor.add_(0.01 * (tensor - before[name]))

    return step


def higher_rate(engine: Engine, tensors: State, rate: float) -> None:
    """Run a step with a learning rate that is 1 % too high."""
    engine.step(tensors, 1.01 * rate)


def stale(only: int | None = None) -> Step:
    """Return steps on the previous batch, or only one such step."""
    batches: list[State] = []

    def step(engine: Engine, tensors: State, rate: float) -> None:
        batches.append(tensors)
        is_stale = only is None or len(batches) - 1 == only
        engine.step(batches[-2] if is_stale and len(batches) > 1 else tensors, rate)

    return step


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("step", [unchanged, rounded])
def test_equal_steps_are_accepted(precision: str, step: Step, check: Callable[[str, Step], None]) -> None:
    check(precision, step)


@pytest.mark.parametrize(
    ("precision", "step"),
    [
        ("fp32", overshot("model.")),
        ("fp32", overshot("ema.")),
        ("fp32", overshot("optimizer.", ".exp_avg_sq")),
        ("fp32", higher_rate),
        ("fp32", scaled_gradient),
        ("bf16", scaled_gradient),
        ("fp32", stale()),
        ("bf16", stale()),
        ("fp32", stale(only=STEPS - 1)),
        ("bf16", stale(only=STEPS - 1)),
    ],
    ids=[
        *("weights", "average", "moments", "rate", "gradient", "bf16 gradient", "batch", "bf16 batch", "one batch"),
        "bf16 one batch",
    ],
)
def test_a_step_with_an_error_of_one_percent_is_detected(
    precision: str, step: Step, check: Callable[[str, Step], None]
) -> None:
    with pytest.raises(AssertionError):
        check(precision, step)
