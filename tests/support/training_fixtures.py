"""Tasks that take little time, for tests of the loop: a line fitted to points, flow and depth of noises."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protoformer.depth.training import DepthTask
from protoformer.flow.training import FlowTask
from protoformer.synthetic.samples import DepthSample, FlowSample
from protoformer.training.checkpoint import Checkpoint, find_newest, load, save
from protoformer.training.prefetch import BrokenSamples
from protoformer.training.recipe import DataSection, ModelSection, OptimizerSection, Recipe, RunSection, ScheduleSection
from protoformer.training.run_folder import Observer, TrainingProgress
from protoformer.training.task import Example, TaskLoss, ValidationResult
from protoformer.training.trainer import Trainer


@dataclass(frozen=True)
class Points:
    """x: N x 4; y, valid: N x 1."""

    x: Tensor
    y: Tensor
    valid: Tensor


@dataclass
class PointSource:
    """Batch n is a function of n alone; those in `poisoned` are not finite."""

    batch: int
    rank: int
    ranks: int
    poisoned: frozenset[int]
    broken: BrokenSamples = field(default_factory=BrokenSamples)
    requested: list[int] = field(default_factory=list)

    def batches(self, start: int) -> Iterator[Points]:
        number = start
        while True:
            self.requested.append(number)
            x = torch.randn(self.batch, 4, generator=torch.Generator().manual_seed(number))
            y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
            if number in self.poisoned:
                y[2] = torch.nan  # which is always valid
            # Points are valid in unequal numbers, so that a mean of the processes' means would not be the mean.
            valid = torch.arange(self.batch)[:, None] % 3 != number % 2
            share = slice(self.rank * self.batch // self.ranks, (self.rank + 1) * self.batch // self.ranks)
            yield Points(x[share], y[share], valid[share])
            number += 1


class LineTask:
    """Fits y = w x by least squares over valid points."""

    metrics = ("off",)

    def __init__(self, recipe: Recipe, poisoned: frozenset[int] = frozenset()) -> None:
        self.recipe, self.poisoned = recipe, poisoned
        self.opened: PointSource | None = None

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def source(self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]) -> PointSource:
        self.opened = PointSource(self.recipe.data.batch_size, rank, num_ranks, self.poisoned)
        return self.opened

    def validation_set(self, device: torch.device) -> "LineTask":
        return self

    def validate(self, network: nn.Module) -> ValidationResult:
        assert not network.training
        return ValidationResult("points", {"weight": float(network[0].weight.detach().sum())})

    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        return (Example("point", None, network(torch.ones(1, 4)).detach()),)

    def tensors(self, batch: Points) -> dict[str, Tensor]:
        return {"x": batch.x, "y": batch.y, "valid": batch.valid}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["valid"].sum()

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        error = torch.where(tensors["valid"], network(tensors["x"]) - tensors["y"], 0.0)
        return TaskLoss(error.square().sum() / weight, (error.abs().sum() / weight,))


@dataclass
class NoisePairs:
    """Pairs of noises with any motion, of which each sample knows another share."""

    batch: int
    rank: int
    ranks: int
    broken: BrokenSamples = field(default_factory=BrokenSamples)

    def batches(self, start: int) -> Iterator[FlowSample]:
        number = start
        while True:
            generator = torch.Generator().manual_seed(number)
            images = torch.rand(2, self.batch, 3, 64, 64, generator=generator)
            flow = 4 * torch.randn(self.batch, 2, 64, 64, generator=generator)
            shares = torch.linspace(0.1, 0.9, self.batch).view(-1, 1, 1, 1)
            valid = torch.rand(self.batch, 1, 64, 64, generator=generator) < shares
            part = slice(self.rank * self.batch // self.ranks, (self.rank + 1) * self.batch // self.ranks)
            yield FlowSample(first=images[0, part], second=images[1, part], flow=flow[part], valid=valid[part])
            number += 1


class NoiseTask(FlowTask):
    """Flow on data that costs nothing."""

    def source(self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]) -> NoisePairs:
        return NoisePairs(self.recipe.data.batch_size, rank, num_ranks)


def noise_recipe(**run: Any) -> Recipe:
    return Recipe(
        model=ModelSection(preset="tiny", overrides={"flow": {"num_train_updates": 2}}),
        data=DataSection(batch_size=2, crop_size=(64, 64)),
        optimizer=OptimizerSection(lr=1e-3),
        schedule=ScheduleSection(kind="one_cycle"),
        run=RunSection(**{"validate_every": 0, "draw_every": 0, "validation_scenes": 0, "log_every": 7, **run}),
    )


@dataclass
class NoiseDepths:
    """Noise before a wall at some distance, seen by cameras that look beside its middle; each sample comes twice.

    SILog is no mean over samples, and each process has that of its own; here two processes see the same, so that the
    mean of theirs is that of the batch.
    """

    batch: int
    rank: int
    ranks: int
    broken: BrokenSamples = field(default_factory=BrokenSamples)

    def batches(self, start: int) -> Iterator[DepthSample]:
        number = start
        while True:
            generator, half = torch.Generator().manual_seed(number), self.batch // 2
            image = torch.rand(half, 3, 64, 64, generator=generator).repeat(2, 1, 1, 1)
            depth = 1 + 5 * torch.rand(half, 1, 64, 64, generator=generator).repeat(2, 1, 1, 1)
            camera = torch.tensor([[60.0, 0, 25.5], [0, 60.0, 40.5], [0, 0, 1]]).expand(self.batch, 3, 3)
            part = slice(self.rank * self.batch // self.ranks, (self.rank + 1) * self.batch // self.ranks)
            yield DepthSample(image=image[part], depth=depth[part], valid=depth[part] > 1.5, intrinsics=camera[part])
            number += 1


class NoiseDepthTask(DepthTask):
    """Depth of data that costs nothing."""

    def source(self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]) -> NoiseDepths:
        return NoiseDepths(self.recipe.data.batch_size, rank, num_ranks)


def depth_recipe(**run: Any) -> Recipe:
    return Recipe(
        task="depth",
        model=ModelSection("tiny"),
        data=DataSection(batch_size=2, crop_size=(64, 64)),
        optimizer=OptimizerSection(lr=1e-3),
        schedule=ScheduleSection("constant", 2),
        run=RunSection(**{"validate_every": 0, "draw_every": 0, "validation_scenes": 0, "log_every": 2, **run}),
    )


class RecordingObserver(Observer):
    """Records every call."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_start(self, step: int, steps: int | None) -> None:
        self.events.append(("on_start", step))

    def on_log(self, progress: TrainingProgress) -> None:
        self.events.append(("on_log", progress))

    def on_validation(self, step: int, found: ValidationResult) -> None:
        self.events.append(("on_validation", step))

    def on_image(self, step: int, name: str, pixels: Any) -> None:
        self.events.append(("on_image", step))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.events.append(("on_checkpoint", step))

    def on_message(self, sentence: str) -> None:
        self.events.append(("on_message", sentence))

    def on_end(self, step: int) -> None:
        self.events.append(("on_end", step))

    def of(self, kind: str) -> list[Any]:
        return [what for each, what in self.events if each == kind]


def line_recipe(**run: Any) -> Recipe:
    return Recipe(
        model=ModelSection(preset="tiny"),
        data=DataSection(batch_size=8, crop_size=(64, 64)),
        optimizer=OptimizerSection(lr=0.05, ema_decay=0.9),
        schedule=ScheduleSection(kind="constant", warm_up=5, decay=0),
        run=RunSection(**{"steps": 40, "log_every": 10, "validate_every": 0, "draw_every": 0, **run}),
    )


class Lines:
    """Runs of the line task in folders of their own."""

    recipe = staticmethod(line_recipe)

    def trainer(
        self, folder: Path, recipe: Recipe | None = None, poisoned: frozenset[int] = frozenset(), **options: Any
    ) -> Trainer[Points]:
        recipe = recipe or line_recipe()
        return Trainer(recipe, LineTask(recipe, poisoned), folder, **options)

    def last(self, folder: Path) -> Checkpoint:
        """The newest checkpoint of a run; none may be passed over."""
        path = find_newest(folder / "checkpoints", pytest.fail)
        assert path is not None
        return load(path)


class Noises(Lines):
    """Runs of the smallest flow network on noise."""

    recipe = staticmethod(noise_recipe)

    def trainer(self, folder: Path, recipe: Recipe | None = None, **options: Any) -> Trainer[FlowSample]:
        recipe = recipe or noise_recipe()
        return Trainer(recipe, NoiseTask(recipe), folder, **options)


class Depths(Lines):
    """Runs of the smallest depth network on noise."""

    recipe = staticmethod(depth_recipe)

    def trainer(self, folder: Path, recipe: Recipe | None = None, **options: Any) -> Trainer[DepthSample]:
        recipe = recipe or depth_recipe()
        return Trainer(recipe, NoiseDepthTask(recipe), folder, **options)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def noises() -> Noises:
    return Noises()


@pytest.fixture
def depths() -> Depths:
    return Depths()


@pytest.fixture
def recorder() -> RecordingObserver:
    return RecordingObserver()


class Stored:
    """A checkpoint with every kind of tensor and value."""

    record = {"recipe": {"task": "flow"}, "random": [3, [1, 2, 2**40]], "loss": 0.1, "none": None, "text": "grün"}  # noqa: RUF012

    def tensors(self) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        odd = torch.tensor([0.1, -0.0, torch.nan, torch.inf, 1e-40])
        return {
            "model.weight": torch.randn(7, 5, 3, generator=generator),
            "model.half": torch.randn(9, 11, generator=generator).bfloat16(),
            "ema.odd": odd,
            "optimizer.step": torch.tensor(17.0),
            "optimizer.count": torch.tensor(2**40 + 1),
            "optimizer.empty": torch.empty(0, 4),
            "random.cpu": torch.randint(0, 256, (500,), dtype=torch.uint8, generator=generator),
            "model.flag": torch.tensor([True, False]),
            "model.transposed": torch.arange(6.0).view(2, 3).t(),
        }

    def same(self, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
        """Whether both hold the same bits."""

        def bits(tensor: torch.Tensor) -> bytes:
            return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()

        return first.keys() == second.keys() and all(
            (tensor.dtype, tensor.shape, bits(tensor)) == (second[name].dtype, second[name].shape, bits(second[name]))
            for name, tensor in first.items()
        )

    def saved(self, folder: Path, step: int = 1200, **options: int) -> Path:
        return save(folder, Checkpoint(step, self.tensors(), self.record), **options)


@pytest.fixture
def stored() -> Stored:
    return Stored()
