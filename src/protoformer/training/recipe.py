"""Recipes: the complete description of a training run, read from a yaml file."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from protoformer.datasets.augmentation.depth import DEPTH_AUGMENTATIONS, DepthAugmentation
from protoformer.datasets.augmentation.flow import AUGMENTATIONS, Augmentation
from protoformer.datasets.augmentation.light import Light
from protoformer.datasets.registry import DATASETS
from protoformer.errors import InputError, closest_name, shorten
from protoformer.io.config_reader import (
    MAX_TEXT,
    apply_setting,
    changed_fields,
    check_names,
    parse_yaml,
    read_fields,
    to_plain,
)
from protoformer.io.files import open_input, short_repr
from protoformer.models.config import ModelConfig, preset
from protoformer.models.networks import NETWORKS
from protoformer.synthetic.families import FAMILIES

MAX_BYTES = 4 * MAX_TEXT
"""Maximum size of a recipe file; a character takes up to 4 bytes."""


@dataclass(frozen=True)
class ModelSection:
    """The network.

    Attributes:
        preset: Name of a `ModelConfig`.
        fields: Fields of the preset to override.
        start: Initial weights: the name of a task with packaged weights, or the path of a .safetensors file; None
            starts from random weights.
        checkpoint_gradients: Recompute activations in the backward pass, which takes time and saves memory.
    """

    preset: str = "fast"
    fields: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    checkpoint_gradients: bool = False

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> ModelConfig:
        """Build the network's configuration."""
        return preset(self.preset, **self.fields)


@dataclass(frozen=True)
class DatasetSection:
    """One dataset on disk.

    Attributes:
        root: Folder of the dataset.
        split: Split of the dataset.
        weight: Number of times that an epoch contains each sample; 0 leaves the dataset out.
        options: Further options of `open_dataset`.
        augmentation: Name of an `Augmentation`, or of a `DepthAugmentation` for depth.
        fields: Fields of the augmentation to override; the crop is that of the data section.
    """

    root: str | None = None
    split: str = "train"
    weight: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    augmentation: str = "chairs"
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _expect(self.weight >= 0, "a dataset's weight", self.weight, "0 or more")
        self.augmented((1, 1))

    def augmented(self, crop: tuple[int, int]) -> Augmentation | DepthAugmentation:
        """Build the augmentation with a crop of (height, width)."""
        named: Mapping[str, Augmentation | DepthAugmentation] = {**AUGMENTATIONS, **DEPTH_AUGMENTATIONS}
        if self.augmentation not in named:
            raise InputError(
                f"there is no augmentation {short_repr(self.augmentation)}; choose one of {', '.join(named)}."
            )
        augmentation = named[self.augmentation]
        valid = [each.name for each in dataclasses.fields(augmentation) if each.name != "crop"]
        for name in self.fields:
            if name not in valid:
                near = closest_name(name, valid)
                raise InputError(f"an augmentation has no field {short_repr(name)}; the nearest one is {near!r}.")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.fields.items()
        }
        return dataclasses.replace(augmentation, **values, crop=crop)


@dataclass(frozen=True)
class DataSection:
    """The training data.

    Attributes:
        source: Synthetic scenes ("world"), a "dataset" on disk, or a "mix" of both.
        world_share: Fraction of the batches of a mix that are synthetic.
        seed: Seed of everything random about the data.
        batch: Batch size over all processes.
        crop: (height, width) of the images, pixels.
        families: Families of synthetic scenes and their weights, which need not sum to 1.
        pace: By family, the (minimum, maximum) factor of the motion between two frames; drawn for each batch.
        zoom: By family, the (minimum, maximum) factor by which the rendered view is larger than the crop; factor and
            crop position are drawn for each scene.
        light: How synthetic scenes are relit.
        final: Fraction of the synthetic batches that are rendered in the final pass.
        bank: Texture bank: "procedural", or a folder of images to add to it.
        datasets: Datasets by name.
        broken: Number of samples that may be unreadable before the run stops.
        workers: Number of data worker processes; a GPU renders synthetic scenes itself and needs none.
    """

    source: Literal["world", "dataset", "mix"] = "world"
    world_share: float = 0.5
    seed: int = 0
    batch: int = 8
    crop: tuple[int, int] = (368, 496)
    families: Mapping[str, float] = field(default_factory=lambda: {"objects": 1.0})
    pace: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    zoom: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    light: Light = field(default_factory=Light)
    final: float = 0.5
    bank: str = "procedural"
    datasets: Mapping[str, DatasetSection] = field(default_factory=dict)
    broken: int = 20
    workers: int = 0

    def __post_init__(self) -> None:
        _expect(0 <= self.seed < 2**31, "data.seed", self.seed, "a whole number from 0 to 2147483647")
        _expect(self.batch >= 1, "data.batch", self.batch, "1 or more")
        _expect(min(self.crop) >= 16, "data.crop", list(self.crop), "two sides of at least 16 pixels")
        for name, count, limit in (
            ("batch", self.batch, 2**16),
            ("crop", max(self.crop), 2**14),
            ("workers", self.workers, 2**10),
        ):
            _expect(count <= limit, f"data.{name}", count, f"at most {limit}")
        _expect(0 < self.world_share < 1, "data.world_share", self.world_share, "a share between 0 and 1")
        _expect(0 <= self.final <= 1, "data.final", self.final, "a share, 0 to 1")
        _expect(self.broken >= 0, "data.broken", self.broken, "0 or more")
        _expect(self.workers >= 0, "data.workers", self.workers, "0 or more")
        check_names("family of scenes", self.families, list(FAMILIES))
        for name, weight in self.families.items():
            _expect(weight >= 0, f"data.families.{name}", weight, "0 or more")
        check_names("family of scenes", (*self.pace, *self.zoom), list(FAMILIES))
        for name, (low, high) in self.pace.items():
            _expect(0 < low <= high, f"data.pace.{name}", [low, high], "two numbers above 0, the greater one last")
        for name, (low, high) in self.zoom.items():
            _expect(1 <= low <= high, f"data.zoom.{name}", [low, high], "two numbers from 1 on, the greater one last")
        if self.source != "dataset" and not sum(self.families.values()) > 0:
            raise InputError("data.families gives no family a share; give one, such as objects: 1.")
        if self.source != "world" and not sum(each.weight for each in self.datasets.values()) > 0:
            raise InputError("data.datasets gives no dataset a weight; name one, such as sintel: {weight: 1}.")


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW, gradient clipping and weight averaging.

    Attributes:
        rate: Peak learning rate.
        weight_decay: Decoupled weight decay.
        betas: Decay rates of the moments.
        epsilon: Term added to the denominator.
        clip: Norm that the gradient of all parameters is clipped to.
        ema: Decay of the exponential moving average of the weights, 0 for none.
    """

    rate: float = 2.5e-4
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 1.0
    ema: float = 0.999

    def __post_init__(self) -> None:
        for name in ("rate", "epsilon", "clip"):
            _expect(getattr(self, name) > 0, f"optimizer.{name}", getattr(self, name), "above 0")
        _expect(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        _expect(all(0 <= beta < 1 for beta in self.betas), "optimizer.betas", list(self.betas), "from 0 to below 1")
        _expect(0 <= self.ema < 1, "optimizer.ema", self.ema, "from 0 to below 1")


@dataclass(frozen=True)
class ScheduleSection:
    """Learning-rate schedule.

    Attributes:
        kind: "one_cycle", a linear warm-up followed by a linear decay to the last step; or "constant", a linear
            warm-up, then the peak learning rate, then a linear decay at the end of the run.
        warm_up: Length of the warm-up: below 1 a fraction of the run, else steps.
        decay: Length of the decay of "constant", likewise; 0 for none.
        floor: Fraction of the peak learning rate at which a decay ends.
    """

    kind: Literal["one_cycle", "constant"] = "constant"
    warm_up: float = 0.05
    decay: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("warm_up", "decay"):
            value = getattr(self, name)
            _expect(0 <= value < 1 or value == int(value) > 0, f"schedule.{name}", value, "a share below 1, or steps")
        _expect(0 <= self.floor <= 1, "schedule.floor", self.floor, "a share, 0 to 1")


@dataclass(frozen=True)
class LossSection:
    """Weights of the loss terms.

    Attributes:
        gamma: Factor of each update's weight relative to the next update's.
        confidence: Weight of the negative log-likelihood term.
        matching: Flow: weight of the cross-entropy of the true match, for networks that match cells.
        edges: Depth: weight of the gradient term.
        nearest: Depth: minimum ground-truth depth that counts, meters.
        farthest: Depth: maximum ground-truth depth that counts, meters.
        corners: Tracking: weight of the cross-entropy of the true corners.
        consistency: Stabilization: weight of the temporal consistency of the warps.
        shape: Stabilization: weight of the penalty on bending.
        alignment: Stabilization: weight of the alignment with the stable frames.
        borders: Stabilization: weight of the penalty on corners outside the frame.
    """

    gamma: float = 0.8
    confidence: float = 0.1
    matching: float = 1.0
    edges: float = 1.0
    nearest: float = 0.1
    farthest: float = 80.0
    corners: float = 0.2
    consistency: float = 1.0
    shape: float = 1.0
    alignment: float = 1.0
    borders: float = 0.1

    def __post_init__(self) -> None:
        _expect(0 < self.gamma <= 1, "loss.gamma", self.gamma, "above 0 and at most 1")
        weights = "confidence", "matching", "edges", "corners", "consistency", "shape", "alignment", "borders"
        for name in weights:
            _expect(getattr(self, name) >= 0, f"loss.{name}", getattr(self, name), "0 or more")
        _expect(0 < self.nearest < self.farthest, "loss.nearest", self.nearest, "above 0 and below loss.farthest")


@dataclass(frozen=True)
class RunSection:
    """Length, precision and intervals of a run.

    Attributes:
        steps: Total steps, or None.
        minutes: Minutes of a session, or None; without both limits the run continues until it is stopped.
        precision: Precision of the forward pass.
        speed: "eager", "compile" (torch.compile), "graph" (a CUDA graph of the whole step) or "both".
        log_every: Steps between logs.
        validate_every: Steps between validations, 0 for never.
        pictures_every: Steps between drawings of examples, 0 for never.
        checkpoint_every: Steps between checkpoints, 0 for none by steps.
        checkpoint_minutes: Maximum minutes between checkpoints, 0 for no limit.
        validation_scenes: Number of synthetic validation scenes.
    """

    steps: int | None = None
    minutes: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    speed: Literal["eager", "compile", "graph", "both"] = "eager"
    log_every: int = 50
    validate_every: int = 5000
    pictures_every: int = 5000
    checkpoint_every: int = 0
    checkpoint_minutes: float = 10.0
    validation_scenes: int = 32

    def __post_init__(self) -> None:
        for name in ("steps", "minutes"):
            value = getattr(self, name)
            _expect(value is None or value > 0, f"run.{name}", value, "above 0")
        _expect(self.log_every >= 1, "run.log_every", self.log_every, "1 or more")
        for name in (
            "validate_every", "pictures_every", "checkpoint_every", "checkpoint_minutes", "validation_scenes",
        ):  # fmt: skip
            _expect(getattr(self, name) >= 0, f"run.{name}", getattr(self, name), "0 or more")
        _expect(self.validation_scenes <= 2**20, "run.validation_scenes", self.validation_scenes, f"at most {2**20}")


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Attributes:
        task: Task to train.
        what: One-line description.
        model: The network.
        data: The training data.
        optimizer: Optimizer and weight average.
        schedule: Learning-rate schedule.
        loss: Weights of the loss terms.
        run: Length and intervals.
    """

    task: str = "flow"
    what: str = ""
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    loss: LossSection = field(default_factory=LossSection)
    run: RunSection = field(default_factory=RunSection)

    def __post_init__(self) -> None:
        if self.task not in NETWORKS:
            raise InputError(f"there is no task {short_repr(self.task)}; choose one of {', '.join(NETWORKS)}.")
        valid = [each.name for each in DATASETS.values() if each.task == self.task]
        check_names(f"dataset of {self.task}", self.data.datasets, valid)
        augmentations = list(DEPTH_AUGMENTATIONS if self.task == "depth" else AUGMENTATIONS)
        for name, section in self.data.datasets.items():
            wanted = f"one of {self.task}, such as {augmentations[0]}"
            key = f"data.datasets.{name}.augmentation"
            _expect(section.augmentation in augmentations, key, section.augmentation, wanted)
            _check_pixels(name, section.augmented(self.data.crop), self.model)
        if self.schedule.kind == "one_cycle" and self.run.steps is None:
            raise InputError("a schedule of one_cycle needs to know where it ends; give run.steps a number.")

    def changed(self, settings: Sequence[str]) -> "Recipe":
        """Return a copy with some keys set, each as "optimizer.rate=1e-4" or "data.crop=[368, 496]"."""
        values = self.as_dict()
        for setting in settings:
            apply_setting(values, setting, "optimizer.rate=1e-4")
        return Recipe.from_dict(values)

    def differences(self, other: "Recipe") -> tuple[str, ...]:
        """Return the dotted keys whose values differ."""
        return changed_fields(self.as_dict(), other.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        values: dict[str, Any] = to_plain(self)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """Build a recipe from the values of `as_dict` or of a yaml file."""
        return read_fields(cls, values)


def _check_pixels(name: str, varied: Augmentation | DepthAugmentation, model: ModelSection) -> None:
    """Raise where a depth network would be trained at another image size than it is used at."""
    used = model.config().depth_pixels
    if isinstance(varied, DepthAugmentation) and varied.pixels != used:
        raise InputError(
            f"data.datasets.{name} is shown at up to {varied.pixels} pixels, but the model is used at up to {used}; "
            f"set model.fields.depth_pixels, or data.datasets.{name}.fields.pixels, to the other."
        )


def packaged_recipes() -> tuple[str, ...]:
    """Return the names of the packaged recipes."""
    return tuple(sorted(each.name.removesuffix(".yaml") for each in _folder().iterdir() if each.suffix == ".yaml"))


def read_recipe(name: str | os.PathLike[str]) -> Recipe:
    """Read a packaged recipe by name, or a yaml file by path.

    Raises:
        InputError: If there is no such recipe, or the file is not a valid one.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        valid = packaged_recipes()
        if str(name) not in valid:
            raise InputError(
                f"there is no recipe {short_repr(str(name))}; the nearest known one is "
                f"{closest_name(str(name), valid)!r}, and a file of your own ends in .yaml."
            )
        path = _folder() / f"{name}.yaml"
    with open_input(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} is longer than {MAX_BYTES} bytes, too long for a recipe; give one that is shorter.")
    try:
        return Recipe.from_dict(_mapping(data))
    except ValueError as error:  # also an InputError
        raise InputError(f"{path} is not a recipe: {shorten(error, 400).removesuffix('.')}.") from None


def _mapping(data: bytes) -> Mapping[str, Any]:
    values = parse_yaml(data.decode("utf-8"))
    if not isinstance(values, Mapping):
        raise ValueError("it holds no sections")
    return values


def _folder() -> Path:
    return Path(str(resources.files("protoformer") / "recipes"))


def _expect(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise InputError(f"{name} is {short_repr(value)}, but it must be {expected}.")
