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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from protoformer.model import Prototyping
from protoformer.model.encoder import Mixer
from protoformer.model.fused import operators
from protoformer.model.synchronization import LatentSynchronization
from protoformer.training import Recipe
from protoformer.training.distributed import launched
from protoformer.training.engine import build_engine
from protoformer.training.tasks import task_of

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


@pytest.fixture
def recorded_is_eager() -> Callable[[Recipe, list[dict[str, Tensor]]], None]:
    """Asserts that a recipe's network, trained on batches, goes where it goes when its steps are recorded."""

    def check(recipe: Recipe, data: list[dict[str, Tensor]]) -> None:
        weights = {}
        for speed in ("eager", "graph"):
            recipe = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, speed=speed))
            engine = build_engine(launched("cuda"), recipe, task_of(recipe))
            start = torch.cat([each.detach().flatten() for each in engine.network.parameters()])
            for tensors in data:
                engine.step(tensors, rate=1e-4)
            weights[speed] = torch.cat([each.detach().flatten() for each in engine.network.parameters()])
        moved = (weights["eager"] - start).norm()
        assert moved > 0 and (weights["graph"] - weights["eager"]).norm() < 0.3 * moved

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
    monkeypatch.setattr(operators, "takes_kernels", lambda *_: True)


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
