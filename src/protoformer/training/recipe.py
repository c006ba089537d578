"""Recipes: everything a training run is made of, in one record that is read from a yaml file."""

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
from protoformer.errors import InputError, nearest, shortened
from protoformer.io.files import open_input, shown
from protoformer.models.config import ModelConfig, preset
from protoformer.models.networks import NETWORKS
from protoformer.synthetic.families import FAMILIES
from protoformer.training.config_reader import (
    MAX_NESTING,
    MAX_TEXT,
    changed_fields,
    parse_yaml,
    read_section,
    to_plain,
    track_given,
)

MAX_BYTES = 4 * MAX_TEXT
"""Of a recipe's file, whose characters have up to 4 bytes each."""


@dataclass(frozen=True)
class ModelSection:
    """The network.

    preset, fields: a named `ModelConfig` and what of it is changed. start: weights to begin with, the name of a task
    whose weights came with the package or the path of a .safetensors file; without it, random ones.
    checkpoint_gradients: compute activations again in the backward pass, which costs time and saves memory.
    """

    preset: str = "fast"
    fields: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    checkpoint_gradients: bool = False

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> ModelConfig:
        """The network's configuration."""
        return preset(self.preset, **self.fields)


@dataclass(frozen=True)
class DatasetSection:
    """One dataset on disk.

    root, split, options: as `open_dataset` takes them. weight: how often an epoch shows each of its samples; 0 leaves
    the dataset out. augmentation, fields: a named `Augmentation` (of depth, a `DepthAugmentation`) and what of it is
    changed; the crop is the data's.
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
        """How its samples are varied, and cut to (height, width)."""
        named: Mapping[str, Augmentation | DepthAugmentation] = {**AUGMENTATIONS, **DEPTH_AUGMENTATIONS}
        if self.augmentation not in named:
            raise InputError(f"there is no augmentation {shown(self.augmentation)}; choose one of {', '.join(named)}.")
        chosen = named[self.augmentation]
        known = [each.name for each in dataclasses.fields(chosen) if each.name != "crop"]
        for name in self.fields:
            if name not in known:
                near = nearest(name, known)
                raise InputError(f"an augmentation has no field {shown(name)}; the nearest one is {near!r}.")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.fields.items()
        }
        return dataclasses.replace(chosen, **values, crop=crop)


@dataclass(frozen=True)
class DataSection:
    """What is learned from.

    source: scenes of the "world", a "dataset" on disk, or a "mix" of both, in which `world_share` of the batches are of
    the world. seed: decides everything random about the data. batch: samples of a step, over all processes. crop:
    (height, width) of the images, pixels.
    families: kinds of scenes, and the share of the batches that each has (their sum need not be 1). pace: of a family,
    how many times as much as usual happens between two frames, at least and at most; each batch has a pace of its own.
    zoom: of a family, how many times as large the picture is of which an image shows a part, at least and at most; each
    scene has its own, and shows a part of its own. light: how scenes are relit.
    final: the share of the batches that are of the final pass. bank: textures, "procedural" or a folder of images,
    which are joined with them.
    datasets: by their names. broken: how many samples may be unreadable before the run stops.
    workers: processes that make batches; 0 is none. A GPU renders the world itself and needs none.
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
        _named("family of scenes", self.families, list(FAMILIES))
        for name, share in self.families.items():
            _expect(share >= 0, f"data.families.{name}", share, "0 or more")
        _named("family of scenes", {**self.pace, **self.zoom}, list(FAMILIES))
        for name, (least, most) in self.pace.items():
            _expect(0 < least <= most, f"data.pace.{name}", [least, most], "two numbers above 0, the greater one last")
        for name, (least, most) in self.zoom.items():
            _expect(
                1 <= least <= most, f"data.zoom.{name}", [least, most], "two numbers from 1 on, the greater one last"
            )
        if self.source != "dataset" and not sum(self.families.values()) > 0:
            raise InputError("data.families gives no family a share; give one, such as objects: 1.")
        if self.source != "world" and not sum(each.weight for each in self.datasets.values()) > 0:
            raise InputError("data.datasets gives no dataset a weight; name one, such as sintel: {weight: 1}.")


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW, whose settings go by their usual names.

    rate: the highest. clip: the norm that all gradients together are cut to. ema: decay of the running mean of the
    weights a step, 0 for none.
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
    """How the rate goes.

    kind: "one_cycle", a straight rise over `warm_up` and a straight fall to the last step; or "constant", the rise,
    then the highest rate, and at the end of the run a fall over `decay`, 0 for none. warm_up, decay: below 1 a share
    of the run, from 1 on steps. floor: the share of the highest rate that a fall ends at.
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
    """gamma: how much an earlier update's error weighs of the next one's. confidence: weight of the surprise.

    Of flow alone: matching, weight of the surprise at where each cell is truly found, for networks that match cells. Of
    depth alone: edges, weight of how far its changes from pixel to pixel are off; nearest, farthest: the meters
    between which depths count. Of tracking alone: corners, weight of the surprise at where the true corners are. Of
    stabilization alone, weights of: consistency, how far the change from frame to frame is off; shape, bends that the
    truth has not; alignment, of pictures with their steady twins; borders, how far corners are moved out of the frame.
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
    """How long and how.

    steps, minutes: whichever is over first ends the run; without either it goes on until it is stopped. precision:
    of the forward pass. speed: "eager", "compile" (torch.compile), "graph" (all of a step as a CUDA graph) or "both".
    log_every, validate_every, pictures_every, checkpoint_every: steps from one to the next, 0 for never;
    checkpoint_minutes: the most time between two checkpoints, 0 for any. validation_scenes: scenes of the world,
    never trained on, that a validation looks at.
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
    """A training run. task: what is learned. what: a line for people."""

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
            raise InputError(f"there is no task {shown(self.task)}; choose one of {', '.join(NETWORKS)}.")
        known = [each.name for each in DATASETS.values() if each.task == self.task]
        _named(f"dataset of {self.task}", self.data.datasets, known)
        fitting = list(DEPTH_AUGMENTATIONS if self.task == "depth" else AUGMENTATIONS)
        for name, section in self.data.datasets.items():
            wanted = f"one of {self.task}, such as {fitting[0]}"
            place = f"data.datasets.{name}.augmentation"
            _expect(section.augmentation in fitting, place, section.augmentation, wanted)
            _check_pixels(name, section.augmented(self.data.crop), self.model)
        if self.schedule.kind == "one_cycle" and self.run.steps is None:
            raise InputError("a schedule of one_cycle needs to know where it ends; give run.steps a number.")

    def changed(self, settings: Sequence[str]) -> "Recipe":
        """The same recipe with some keys set, each as "optimizer.rate=1e-4" or "data.crop=[368, 496]"."""
        values = self.as_dict()
        for setting in settings:
            _set(values, setting)
        return Recipe.from_dict(values)

    def differences(self, other: "Recipe") -> tuple[str, ...]:
        """The dotted keys under which the two do not say the same."""
        return changed_fields(self.as_dict(), other.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for json."""
        values: dict[str, Any] = to_plain(self)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """The inverse of `as_dict`."""
        return read_section(cls, values)


def _check_pixels(name: str, varied: Augmentation | DepthAugmentation, model: ModelSection) -> None:
    """Refuse to train a depth network on images of another size than it will be shown."""
    used = model.config().depth_pixels
    if isinstance(varied, DepthAugmentation) and varied.pixels != used:
        raise InputError(
            f"data.datasets.{name} is shown at up to {varied.pixels} pixels, but the model is used at up to {used}; "
            f"set model.fields.depth_pixels, or data.datasets.{name}.fields.pixels, to the other."
        )


def packaged_recipes() -> tuple[str, ...]:
    """Names of the recipes that came with the package."""
    return tuple(sorted(each.name.removesuffix(".yaml") for each in _folder().iterdir() if each.suffix == ".yaml"))


def read_recipe(name: str | os.PathLike[str]) -> Recipe:
    """The recipe of this name that came with the package, or that of a yaml file at this path."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        known = packaged_recipes()
        if str(name) not in known:
            raise InputError(
                f"there is no recipe {shown(str(name))}; the nearest known one is {nearest(str(name), known)!r}, and a "
                "file of your own ends in .yaml."
            )
        path = _folder() / f"{name}.yaml"
    with open_input(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} is longer than {MAX_BYTES} bytes, too long for a recipe; give one that is shorter.")
    try:
        return Recipe.from_dict(_mapping(data))
    except ValueError as error:  # also an InputError
        raise InputError(f"{path} is not a recipe: {shortened(error, 400).removesuffix('.')}.") from None


def _mapping(data: bytes) -> Mapping[str, Any]:
    values = parse_yaml(data.decode("utf-8"))
    if not isinstance(values, Mapping):
        raise ValueError("it holds no sections")
    return values


def _folder() -> Path:
    return Path(str(resources.files("protoformer") / "recipes"))


def _set(values: dict[str, Any], setting: str) -> None:
    """Put what a setting says into the plain values of a recipe."""
    key, sign, text = setting.partition("=")
    if not (key and sign):
        raise InputError(f"{shown(setting)} sets nothing; write it as key=value, such as optimizer.rate=1e-4.")
    *above, last = key.strip().split(".")
    if len(above) >= MAX_NESTING:
        raise InputError(f"{shown(key)} names a key below {len(above)} others, and a recipe has none so deep.")
    section: Any = values
    for place, name in enumerate(above):
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            whole = shortened(key.strip())
            raise InputError(f"{shortened('.'.join(above[: place + 1]))} holds no keys, so {whole} cannot be set.")
    section[last] = track_given(text.strip())


def _expect(right: bool, name: str, value: object, wanted: str) -> None:
    if not right:
        raise InputError(f"{name} is {shown(value)}, but it must be {wanted}.")


def _named(what: str, names: Mapping[str, Any], known: list[str]) -> None:
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise InputError(f"there is no {what} {shown(name)}; the nearest known one is {near!r}.")
