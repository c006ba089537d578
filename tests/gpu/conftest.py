"""What the tests of kernels share: whether they can run, numbers to run on, and how far from right a result is.

Triton's kernels need a CUDA device. Without one they run in Triton's interpreter on the CPU: `tests/conftest.py` sets
TRITON_INTERPRET=1, and TRITON_INTERPRET=0 turns it off. The plain version, in float64, is what is right.

What the interpreter leaves to a GPU:

- bfloat16, whose products are wrong in it: NumPy has no such numbers, so it multiplies their 16 bits as integers. All
  kernels are tested in float32 and float16 instead.
- Large cases, marked `slow_interpreted`, which take seconds each.
- CUDA graphs, streams, memory, launches, and that two runs agree bit by bit: programs run one after the other in it.
"""

import dataclasses
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch
from protoformer.models.prototyping import Prototyping
from protoformer.models.synchronization import LatentSynchronization
from protoformer.tasks import task_of
from protoformer.training.distributed import launch
from protoformer.training.engine import Engine, build_engine
from protoformer.training.recipe import OptimizerSection, Recipe

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HALF_PRECISIONS = [torch.float16, *([] if INTERPRETED else [torch.bfloat16])]
slow = pytest.mark.slow_interpreted
# images, heads, K, head width, pixels
SHAPES = [
    (2, 2, 10, 32, 37),
    (1, 3, 50, 32, 301),
    pytest.param((2, 4, 100, 32, 515), marks=slow),
    (1, 2, 200, 32, 129),
    pytest.param((1, 2, 256, 64, 97), marks=slow),
    (1, 2, 100, 16, 64),
    (1, 1, 100, 64, 130),
    (1, 2, 7, 24, 50),
    (3, 1, 100, 32, 1),
    (1, 1, 1, 32, 40),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to a GPU what takes seconds in the interpreter."""
    if not ON_GPU:
        for item in items:
            if item.get_closest_marker("slow_interpreted"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device: takes seconds in Triton's interpreter"))


@pytest.fixture(scope="session", autouse=True)
def _products_have_run() -> None:
    """What the first product on a GPU says once is said before the tests, in which a warning is an error.

    Autograd's own thread has no CUDA context until its first product, of which cuBLAS warns.
    """
    if not torch.cuda.is_available():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        square = torch.ones(16, 16, device="cuda", requires_grad=True)
        (square @ square).sum().backward()
        torch.cuda.synchronize()


@dataclasses.dataclass(frozen=True)
class StepErrors:
    """How far one training step is from another that begins with the same state and batch, as shares of its size.

    gradient: Length of the difference over the length of the gradient, of all parameters together.
    scale: How much larger or smaller the gradient is, along its own direction.
    moments, weights, average: The same as `gradient`, of what AdamW and the average make of the step's own gradient.
    values: The largest error of the loss and of the metrics, as a share of the loss or of the metric, if it is larger.
    """

    gradient: float
    scale: float
    moments: float
    weights: float
    average: float
    values: float


State = dict[str, Tensor]
KEPT = ("model.{}", "optimizer.{}.exp_avg", "optimizer.{}.exp_avg_sq")
"""Names in `Engine.state` of a parameter and its moments."""


def step_errors(before: State, expected: State, found: State, settings: OptimizerSection, rate: float) -> StepErrors:
    """Compare two steps from the same state.

    AdamW divides by the size of the gradient, so where there is none but rounding, weights move by the whole rate in a
    random direction. Weights are therefore not compared with each other: gradients are, which are read from the
    moments, and everything after them with what the step's own gradient makes of it in float64.

    Args:
        before: `Engine.state` that both steps began with.
        expected: The state after the step that is right.
        found: The state after the other one.
        settings: Of the optimizer.
        rate: Of learning, in both.
    """

    def share(error: Tensor, size: Tensor) -> float:
        return float(error.norm() / size.norm())

    def flat(state: State, names: Sequence[str]) -> Tensor:
        return torch.cat([state[name].detach().double().flatten() for name in names])

    for name in ("guard.step", "guard.good", "guard.skipped", "guard.row", "ema_updates"):
        assert torch.equal(found[name], expected[name]), name
    steps = [name for name in found if name.startswith("optimizer.") and name.endswith(".step")]
    counts = {name[len("optimizer.") : -len(".step")]: found[name] for name in steps}
    trained = [name for name, count in counts.items() if not torch.equal(count, before[f"optimizer.{name}.step"])]
    assert {float(counts[name]) for name in trained} == {float(before["guard.good"]) + 1}
    for name in counts.keys() - set(trained):  # the loss does not depend on it
        assert torch.equal(found[f"model.{name}"], before[f"model.{name}"]), name

    decay, square_decay = settings.betas
    weight, first, second = ([each.format(name) for name in trained] for each in KEPT)
    gradient, right_gradient = (
        (flat(state, first) - decay * flat(before, first)) / (1 - decay) for state in (found, expected)
    )
    squares = (1 - square_decay) * gradient.square()
    count = float(before["guard.good"]) + 1
    mean = flat(found, first) / (1 - decay**count)
    spread = (flat(found, second) / (1 - square_decay**count)).sqrt() + settings.eps
    weights = flat(before, weight)
    update = -rate * (mean / spread + settings.weight_decay * weights)

    updates, names = float(before["ema_updates"]), [name for name in found if name.startswith("ema.")]
    kept = min(settings.ema_decay, (1 + updates) / (10 + updates))
    average = flat(before, names)
    towards = (1 - kept) * (flat(found, [f"model.{name[len('ema.') :]}" for name in names]) - average)
    values, right_values = (state["guard.sums"] - before["guard.sums"] for state in (found, expected))
    return StepErrors(
        gradient=share(gradient - right_gradient, right_gradient),
        scale=float((gradient @ right_gradient) / (right_gradient @ right_gradient)) - 1,
        moments=share(flat(found, second) - square_decay * flat(before, second) - squares, squares),
        weights=share(_beyond_rounding(flat(found, weight) - weights - update, weights), update),
        average=share(_beyond_rounding(flat(found, names) - average - towards, average), towards),
        values=float(
            ((values - right_values).abs() / right_values.abs().clamp_min(float(right_values[0].abs()))).max()
        ),
    )


def _beyond_rounding(error: Tensor, size: Tensor) -> Tensor:
    """What of an error is more than a last digit of float32 numbers of this size."""
    return (error.abs() - 2.0**-23 * size.abs()).clamp_min(0)


def assert_same_steps(errors: Sequence[StepErrors], precision: str) -> None:
    """Assert that steps are the same but for rounding.

    In float32 the same step differs by 1e-5 of its gradient at most. In bfloat16 a last digit anywhere before a
    rounding, as another order of a sum leaves it, comes out as some percent of the gradient, in random directions;
    along its own direction that is about a thousandth. Seldom it decides which of two prototypes is nearer, which
    changes that one step by a third. So in bfloat16 the median of the steps is strict, and no step may be another one.
    """
    for each in errors:
        assert max(each.moments, each.weights, each.average) < 2e-3, each
        assert each.gradient < (1e-3 if precision == "fp32" else 0.5), each
        assert each.values < (1e-4 if precision == "fp32" else 0.1), each
    assert median(abs(each.scale) for each in errors) < 5e-3, errors
    assert median(each.gradient for each in errors) < 0.1, errors


def steps_of_two(one: Engine, other: Engine, data: list[State], settings: OptimizerSection) -> list[StepErrors]:
    """Train two engines on the same batches, both from the state of the first before every step, and compare them."""
    rate, errors = 1e-4, []
    for tensors in data:
        before = {name: tensor.clone() for name, tensor in one.state().items()}
        other.restore(before)
        one.step(tensors, rate=rate)
        other.step(tensors, rate=rate)
        errors.append(step_errors(before, one.state(), other.state(), settings, rate))
    return errors


@pytest.fixture
def same_steps() -> Callable[[Engine, Engine, list[State], Recipe], None]:
    """Asserts that two engines of a recipe train in the same way: see `assert_same_steps`."""

    def check(one: Engine, other: Engine, data: list[State], recipe: Recipe) -> None:
        assert_same_steps(steps_of_two(one, other, data, recipe.optimizer), recipe.run.precision)

    return check


@pytest.fixture
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of float32 numbers on a GPU are in float32, not in TF32, which has 10 bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def recorded_is_eager(
    same_steps: Callable[[Engine, Engine, list[State], Recipe], None], exact_convolutions: None
) -> Callable[[Recipe, list[State]], None]:
    """Asserts that each step of a recipe's network, warming up, recorded or replayed, is the one without recording."""

    def check(recipe: Recipe, data: list[State]) -> None:
        eager, graph = (
            build_engine(launch("cuda"), each, task_of(each))
            for each in (
                dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, execution=speed))
                for speed in ("eager", "graph")
            )
        )
        same_steps(eager, graph, data, recipe)

    return check


@pytest.fixture
def kernels_run() -> None:
    """Only where Triton's kernels do."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if not (ON_GPU or INTERPRETED):
        pytest.skip("needs a CUDA device, or Triton's interpreter, which TRITON_INTERPRET=0 turns off")


@pytest.fixture
def on_gpu() -> None:
    """Only where there is a CUDA device."""
    if not ON_GPU:
        pytest.skip("needs a CUDA device")


@pytest.fixture
def kernels_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixer takes the kernels wherever it is: in the interpreter, too."""
    monkeypatch.setattr(dispatch, "fits_kernels", lambda *_: True)


@pytest.fixture(params=[torch.float32, *HALF_PRECISIONS], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Every precision of products."""
    precision: torch.dtype = request.param
    return precision


@pytest.fixture(params=HALF_PRECISIONS, ids=str)
def half_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Those in which layers are kernels as well."""
    precision: torch.dtype = request.param
    return precision


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Images, heads, prototypes, the width of a head, and pixels."""
    sizes: tuple[int, ...] = request.param
    return sizes


class Numbers:
    """Numbers to give to a kernel, and what is to be said of those that come back."""

    device = DEVICE
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}  # noqa: RUF012

    @staticmethod
    def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
        """Normal numbers that `dtype` can hold."""
        numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return numbers.to(dtype).to(DEVICE)

    def arriving(self, found: tuple[Tensor, ...], size: float) -> list[Tensor]:
        """The gradients that reach these outputs."""
        return [
            size * self.random(*each.shape, seed=10 + place, dtype=torch.float64) for place, each in enumerate(found)
        ]

    def gradients(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        inputs: tuple[Tensor, ...],
        size: float,
        given_as: torch.dtype = torch.float64,
    ) -> list[Tensor]:
        """What a plain function returns in float64, and its gradients for `arriving` ones that `given_as` can hold."""
        exact = [each.double().requires_grad_() for each in inputs]
        found = function(*exact)
        arrives = [each.to(given_as).double() for each in self.arriving(found, size)]
        return [*(each.detach() for each in found), *torch.autograd.grad(found, exact, arrives)]

    @staticmethod
    def turned(tensor: Tensor) -> Tensor:
        """The same numbers, which do not lie in a row."""
        if tensor.dim() == 2:
            return tensor.T.contiguous().T
        return torch.stack((tensor, tensor + 5), dim=-1)[..., 0]

    @staticmethod
    def error(ours: Tensor, exact: Tensor) -> float:
        """The length of the difference over the length of what is right."""
        exact = exact.detach().double()
        return float((ours.detach().double() - exact).norm() / exact.norm().clamp_min(1e-30))


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def mixer() -> Callable[..., Mixer]:
    """Makes the mixer of so many channels, heads and prototypes, the same each time."""

    def made(channels: int = 128, heads: int = 4, count: int = 100, **settings: Any) -> Mixer:
        torch.manual_seed(0)
        prototyping = Prototyping(channels, heads, count, **settings)
        return Mixer(prototyping, LatentSynchronization(channels, heads)).to(DEVICE)

    return made


@contextmanager
def _waiting_refused() -> Iterator[None]:
    try:
        with warnings.catch_warnings():  # it is said to be a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def waiting_refused() -> Callable[[], AbstractContextManager[None]]:
    """Whatever waits for the device in it is an error."""
    return _waiting_refused
