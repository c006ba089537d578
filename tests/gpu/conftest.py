"""Fixtures of the kernel tests: whether kernels can run, random inputs, and error measures.

Triton kernels need a CUDA device. Without one they run in Triton's interpreter on the CPU: `tests/conftest.py` sets
TRITON_INTERPRET=1, and TRITON_INTERPRET=0 disables it. The reference is plain torch in float64.

Not tested in the interpreter:

- bfloat16, whose products it computes wrongly: NumPy has no bfloat16, so that it multiplies the 16 bits as integers.
  All kernels are tested in float32 and float16 instead.
- Large cases, marked `slow_interpreted`, which take seconds each.
- CUDA graphs, streams, memory, launches and bit-identical runs, as the interpreter runs programs one after the other.
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
# images, heads, K, head dim, pixels
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
    """Skip tests that take seconds in the interpreter."""
    if not ON_GPU:
        for item in items:
            if item.get_closest_marker("slow_interpreted"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device: takes seconds in Triton's interpreter"))


@pytest.fixture(scope="session", autouse=True)
def _warm_up_cublas() -> None:
    """Run a first matrix product before the tests, in which warnings are errors.

    Autograd's thread has no CUDA context until its first product, and cuBLAS warns about that.
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
    """Relative differences between two training steps from the same state and batch.

    Attributes:
        gradient: Norm of the difference divided by the norm of the gradient, over all parameters.
        scale: Relative difference of the gradient along its own direction.
        moments: As `gradient`, of AdamW's second moments for the step's own gradient.
        weights: As `gradient`, of the weights after the step for its own gradient.
        average: As `gradient`, of the weight average for the step's own weights.
        values: Largest error of the loss and metrics, relative to the larger of the loss and the metric.
    """

    gradient: float
    scale: float
    moments: float
    weights: float
    average: float
    values: float


State = dict[str, Tensor]
STATE_NAMES = ("model.{}", "optimizer.{}.exp_avg", "optimizer.{}.exp_avg_sq")
"""Names of a parameter and its moments in `Engine.state`."""


def step_errors(before: State, expected: State, actual: State, settings: OptimizerSection, rate: float) -> StepErrors:
    """Compare two steps from the same state.

    AdamW divides by the magnitude of the gradient, so that rounding errors of a zero gradient move weights by the whole
    learning rate. Weights are therefore not compared with each other. Gradients are, as computed from the moments, and
    everything after them is compared with its float64 value for the step's own gradient.

    Args:
        before: `Engine.state` before both steps.
        expected: The state after the reference step.
        actual: The state after the other step.
        settings: Settings of the optimizer.
        rate: Learning rate.
    """

    def relative(error: Tensor, size: Tensor) -> float:
        return float(error.norm() / size.norm())

    def flat(state: State, names: Sequence[str]) -> Tensor:
        return torch.cat([state[name].detach().double().flatten() for name in names])

    for name in ("guard.step", "guard.good", "guard.skipped", "guard.row", "ema_updates"):
        assert torch.equal(actual[name], expected[name]), name
    steps = [name for name in actual if name.startswith("optimizer.") and name.endswith(".step")]
    counts = {name[len("optimizer.") : -len(".step")]: actual[name] for name in steps}
    trained = [name for name, count in counts.items() if not torch.equal(count, before[f"optimizer.{name}.step"])]
    assert {float(counts[name]) for name in trained} == {float(before["guard.good"]) + 1}
    for name in counts.keys() - set(trained):  # the loss does not depend on it
        assert torch.equal(actual[f"model.{name}"], before[f"model.{name}"]), name

    decay, square_decay = settings.betas
    weight, first, second = ([each.format(name) for name in trained] for each in STATE_NAMES)
    gradient, expected_gradient = (
        (flat(state, first) - decay * flat(before, first)) / (1 - decay) for state in (actual, expected)
    )
    squares = (1 - square_decay) * gradient.square()
    count = float(before["guard.good"]) + 1
    mean = flat(actual, first) / (1 - decay**count)
    spread = (flat(actual, second) / (1 - square_decay**count)).sqrt() + settings.eps
    weights = flat(before, weight)
    update = -rate * (mean / spread + settings.weight_decay * weights)

    updates, names = float(before["ema_updates"]), [name for name in actual if name.startswith("ema.")]
    decay_of_average = min(settings.ema_decay, (1 + updates) / (10 + updates))
    average = flat(before, names)
    towards = (1 - decay_of_average) * (flat(actual, [f"model.{name[len('ema.') :]}" for name in names]) - average)
    values, expected_values = (state["guard.sums"] - before["guard.sums"] for state in (actual, expected))
    return StepErrors(
        gradient=relative(gradient - expected_gradient, expected_gradient),
        scale=float((gradient @ expected_gradient) / (expected_gradient @ expected_gradient)) - 1,
        moments=relative(flat(actual, second) - square_decay * flat(before, second) - squares, squares),
        weights=relative(_beyond_rounding(flat(actual, weight) - weights - update, weights), update),
        average=relative(_beyond_rounding(flat(actual, names) - average - towards, average), towards),
        values=float(
            ((values - expected_values).abs() / expected_values.abs().clamp_min(float(expected_values[0].abs()))).max()
        ),
    )


def _beyond_rounding(error: Tensor, size: Tensor) -> Tensor:
    """Return the part of an error that exceeds the last digit of float32 values of this size."""
    return (error.abs() - 2.0**-23 * size.abs()).clamp_min(0)


def assert_same_steps(errors: Sequence[StepErrors], precision: str) -> None:
    """Assert that steps are equal up to rounding.

    In float32 equal steps differ by at most 1e-5 of the gradient. In bfloat16 a difference in a last digit, as from
    another order of a sum, becomes a few percent of the gradient in random directions, and about a thousandth along its
    own direction. Rarely it changes the nearest prototype of a pixel, which changes that step by a third. So in
    bfloat16 the bound of the median is strict, and that of single steps only excludes another batch.
    """
    for each in errors:
        assert max(each.moments, each.weights, each.average) < 2e-3, each
        assert each.gradient < (1e-3 if precision == "fp32" else 0.5), each
        assert each.values < (1e-4 if precision == "fp32" else 0.1), each
    assert median(abs(each.scale) for each in errors) < 5e-3, errors
    assert median(each.gradient for each in errors) < 0.1, errors


def steps_of_two(one: Engine, other: Engine, data: list[State], settings: OptimizerSection) -> list[StepErrors]:
    """Train two engines on the same batches, each step from the state of the first engine, and compare them."""
    rate, errors = 1e-4, []
    for tensors in data:
        before = {name: tensor.clone() for name, tensor in one.state().items()}
        other.restore(before)
        one.step(tensors, lr=rate)
        other.step(tensors, lr=rate)
        errors.append(step_errors(before, one.state(), other.state(), settings, rate))
    return errors


@pytest.fixture
def same_steps() -> Callable[[Engine, Engine, list[State], Recipe], None]:
    """Return a function that asserts that two engines of a recipe train equally; see `assert_same_steps`."""

    def check(one: Engine, other: Engine, data: list[State], recipe: Recipe) -> None:
        assert_same_steps(steps_of_two(one, other, data, recipe.optimizer), recipe.run.precision)

    return check


@pytest.fixture
def exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute float32 convolutions on a GPU in float32 instead of TF32, which has 10 bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def graph_equals_eager(
    same_steps: Callable[[Engine, Engine, list[State], Recipe], None], exact_convolutions: None
) -> Callable[[Recipe, list[State]], None]:
    """Return a function that asserts that all steps (warm-up, capture, replay) of a graphed engine equal eager ones."""

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
def requires_kernels() -> None:
    """Skip if Triton kernels cannot run."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if not (ON_GPU or INTERPRETED):
        pytest.skip("needs a CUDA device, or Triton's interpreter, which TRITON_INTERPRET=0 disables")


@pytest.fixture
def requires_gpu() -> None:
    """Skip without a CUDA device."""
    if not ON_GPU:
        pytest.skip("needs a CUDA device")


@pytest.fixture
def force_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a mixer use the kernels on any device, as in the interpreter."""
    monkeypatch.setattr(dispatch, "fits_kernels", lambda *_: True)


@pytest.fixture(params=[torch.float32, *HALF_PRECISIONS], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """All precisions of matrix products."""
    precision: torch.dtype = request.param
    return precision


@pytest.fixture(params=HALF_PRECISIONS, ids=str)
def half_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Precisions in which the MLP and the projection have kernels."""
    precision: torch.dtype = request.param
    return precision


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Images, heads, prototypes, head dim and pixels."""
    sizes: tuple[int, ...] = request.param
    return sizes


class Numbers:
    """Random inputs of kernels, and errors of their outputs."""

    device = DEVICE
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}  # noqa: RUF012

    @staticmethod
    def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
        """Draw normally distributed values, rounded to `dtype`."""
        numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return numbers.to(dtype).to(DEVICE)

    def output_gradients(self, outputs: tuple[Tensor, ...], size: float) -> list[Tensor]:
        """Draw gradients of outputs."""
        return [
            size * self.random(*each.shape, seed=10 + index, dtype=torch.float64) for index, each in enumerate(outputs)
        ]

    def gradients(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        inputs: tuple[Tensor, ...],
        size: float,
        rounded_to: torch.dtype = torch.float64,
    ) -> list[Tensor]:
        """Return outputs of a function in float64, and its gradients for `output_gradients` rounded to a dtype."""
        exact = [each.double().requires_grad_() for each in inputs]
        outputs = function(*exact)
        gradients = [each.to(rounded_to).double() for each in self.output_gradients(outputs, size)]
        return [*(each.detach() for each in outputs), *torch.autograd.grad(outputs, exact, gradients)]

    @staticmethod
    def transposed(tensor: Tensor) -> Tensor:
        """Return the same values with a non-contiguous memory layout."""
        if tensor.dim() == 2:
            return tensor.T.contiguous().T
        return torch.stack((tensor, tensor + 5), dim=-1)[..., 0]

    @staticmethod
    def error(actual: Tensor, exact: Tensor) -> float:
        """Return the norm of the difference divided by the norm of the exact values."""
        exact = exact.detach().double()
        return float((actual.detach().double() - exact).norm() / exact.norm().clamp_min(1e-30))


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def mixer() -> Callable[..., Mixer]:
    """Return a function that builds a mixer with deterministic weights."""

    def build(channels: int = 128, heads: int = 4, count: int = 100, **settings: Any) -> Mixer:
        torch.manual_seed(0)
        prototyping = Prototyping(channels, heads, count, **settings)
        return Mixer(prototyping, LatentSynchronization(channels, heads)).to(DEVICE)

    return build


@contextmanager
def _refuse_sync() -> Iterator[None]:
    try:
        with warnings.catch_warnings():  # torch warns that the mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def sync_refused() -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which synchronization with the device is an error."""
    return _refuse_sync
