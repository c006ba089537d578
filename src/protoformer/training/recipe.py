"""Recipes: the complete description of a training run, read from a yaml file."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from protoformer.datasets.augmentation.depth import DEPTH_AUGMENTATIONS, DepthAugmentation
from protoformer.datasets.augmentation.flow import AUGMENTATIONS, Augmentation
from protoformer.datasets.augmentation.photometric import Light
from protoformer.datasets.registry import DATASETS
from protoformer.errors import InputError, closest_name, shorten
from protoformer.io.config_reader import (
    MAX_TEXT,
    apply_setting,
    bounded,
    changed_fields,
    check_fields,
    check_names,
    parse_yaml,
    read_fields,
    replace_fields,
    to_plain,
)
from protoformer.io.files import open_input, short_repr
from protoformer.models.config import TASKS, ModelConfig, preset
from protoformer.synthetic.families import FAMILIES

MAX_BYTES = 4 * MAX_TEXT
"""Maximum size of a recipe file; a character takes up to 4 bytes."""


@dataclass(frozen=True)
class ModelSection:
    """The network.

    Attributes:
        preset: Name of a `ModelConfig`.
        overrides: Fields of the preset to override.
        init_weights: Initial weights: the name of a task with packaged weights, or the path of a .safetensors file;
            None starts from random weights.
        activation_checkpointing: Recompute activations in the backward pass, which takes time and saves memory.
        freeze_encoder: Train only the head, as stabilization always does.
    """

    preset: str = "fast"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    init_weights: str | None = None
    activation_checkpointing: bool = False
    freeze_encoder: bool = False

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> ModelConfig:
        """Build the network's configuration."""
        return preset(self.preset, **self.overrides)


@dataclass(frozen=True)
class DatasetSection:
    """One dataset on disk.

    Attributes:
        root: Folder of the dataset.
        split: Split of the dataset.
        weight: Number of times that an epoch contains each sample; 0 leaves the dataset out.
        options: Further options of `open_dataset`.
        augmentation: Name of an `Augmentation`, or of a `DepthAugmentation` for depth.
        overrides: Fields of the augmentation to override; its crop is the `crop_size` of the data section.
    """

    root: str | None = None
    split: str = "train"
    weight: int = bounded(1, min=0)
    options: Mapping[str, Any] = field(default_factory=dict)
    augmentation: str = "chairs"
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "data.datasets")
        self.build_augmentation((1, 1))

    def build_augmentation(self, crop_size: tuple[int, int]) -> Augmentation | DepthAugmentation:
        """Build the augmentation with a crop of (height, width)."""
        augmentations: Mapping[str, Augmentation | DepthAugmentation] = {**AUGMENTATIONS, **DEPTH_AUGMENTATIONS}
        if self.augmentation not in augmentations:
            raise InputError(
                f"there is no augmentation {short_repr(self.augmentation)}; choose one of {', '.join(augmentations)}."
            )
        if "crop" in self.overrides:
            raise InputError("the crop of an augmentation is data.crop_size; leave it out of the overrides.")
        augmentation = replace_fields(augmentations[self.augmentation], self.overrides, "overrides")
        return replace_fields(augmentation, {"crop": crop_size})


@dataclass(frozen=True)
class DataSection:
    """The training data.

    Attributes:
        source: Synthetic scenes, a "dataset" on disk, or a "mix" of both.
        synthetic_fraction: Fraction of the batches of a mix that are synthetic.
        seed: Seed of everything random about the data.
        batch_size: Batch size over all processes.
        crop_size: (height, width) of the images, pixels.
        families: Families of synthetic scenes and their weights, which need not sum to 1.
        motion_scale: By family, the (minimum, maximum) factor of the motion between two frames; drawn for each batch.
        zoom: By family, the (minimum, maximum) factor by which the rendered view is larger than the crop; factor and
            crop position are drawn for each scene.
        relighting: How synthetic scenes are relit.
        final_fraction: Fraction of the synthetic batches that are rendered in the final pass.
        texture_bank: "procedural", or a folder of images to add to the procedural textures.
        datasets: Datasets by name.
        max_broken_samples: Number of samples that may be unreadable before the run stops.
        num_workers: Number of data worker processes; a GPU renders synthetic scenes itself and needs none.
    """

    source: Literal["synthetic", "dataset", "mix"] = "synthetic"
    synthetic_fraction: float = bounded(0.5, above=0, below=1)
    seed: int = bounded(0, min=0, max=2**31 - 1)
    batch_size: int = bounded(8, min=1, max=2**16)
    crop_size: tuple[int, int] = bounded((368, 496), min=16, max=2**14)
    families: Mapping[str, float] = bounded(default_factory=lambda: {"objects": 1.0}, min=0)
    motion_scale: Mapping[str, tuple[float, float]] = bounded(default_factory=dict, above=0)
    zoom: Mapping[str, tuple[float, float]] = bounded(default_factory=dict, min=1)
    relighting: Light = field(default_factory=Light)
    final_fraction: float = bounded(0.5, min=0, max=1)
    texture_bank: str = "procedural"
    datasets: Mapping[str, DatasetSection] = field(default_factory=dict)
    max_broken_samples: int = bounded(20, min=0)
    num_workers: int = bounded(0, min=0, max=2**10)

    def __post_init__(self) -> None:
        check_fields(self, "data")
        check_names("family of scenes", (*self.families, *self.motion_scale, *self.zoom), list(FAMILIES))
        for key in ("motion_scale", "zoom"):
            for name, limits in getattr(self, key).items():
                if limits[0] > limits[1]:
                    raise InputError(f"data.{key}.{name} is {list(limits)}, but the greater number must be the last.")
        if self.source != "dataset" and not sum(self.families.values()) > 0:
            raise InputError("data.families gives no family a weight; give one, such as objects: 1.")
        if self.source != "synthetic" and not sum(each.weight for each in self.datasets.values()) > 0:
            raise InputError("data.datasets gives no dataset a weight; name one, such as sintel: {weight: 1}.")


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW, gradient clipping and weight averaging.

    Attributes:
        lr: Peak learning rate.
        weight_decay: Decoupled weight decay.
        betas: Decay rates of the moments.
        eps: Term added to the denominator.
        max_grad_norm: Norm that the gradient of all parameters is clipped to.
        ema_decay: Decay of the exponential moving average of the weights, 0 for none.
    """

    lr: float = bounded(2.5e-4, above=0)
    weight_decay: float = bounded(1e-4, min=0)
    betas: tuple[float, float] = bounded((0.9, 0.999), min=0, below=1)
    eps: float = bounded(1e-8, above=0)
    max_grad_norm: float = bounded(1.0, above=0)
    ema_decay: float = bounded(0.999, min=0, below=1)

    def __post_init__(self) -> None:
        check_fields(self, "optimizer")


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
    warm_up: float = bounded(0.05, min=0)
    decay: float = bounded(0.0, min=0)
    floor: float = bounded(0.0, min=0, max=1)

    def __post_init__(self) -> None:
        check_fields(self, "schedule")
        for name in ("warm_up", "decay"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                raise InputError(
                    f"schedule.{name} is {value}, but it must be a fraction below 1, or a number of steps."
                )


@dataclass(frozen=True)
class LossSection:
    """Weights of the loss terms.

    Attributes:
        gamma: Factor of each update's weight relative to the next update's.
        confidence: Weight of the negative log-likelihood term.
        matching: Flow: weight of the cross-entropy of the true match, for networks that match cells.
        prototype_motion: Flow: weight of the flow rebuilt from one affine motion per prototype; 0 leaves it out.
        prototype_plane: Depth: weight of the disparity rebuilt from one plane per prototype; 0 leaves it out.
        prototype_instances: Flow and depth of synthetic scenes: weight of the object labels rebuilt from prototypes;
            0 leaves it out.
        edges: Depth: weight of the gradient term.
        min_depth: Depth: minimum ground-truth depth that counts, meters.
        max_depth: Depth: maximum ground-truth depth that counts, meters.
        corners: Tracking: weight of the cross-entropy of the true corners.
        consistency: Stabilization: weight of the temporal consistency of the warps.
        shape: Stabilization: weight of the penalty on bending.
        alignment: Stabilization: weight of the alignment with the stable frames.
        borders: Stabilization: weight of the penalty on corners outside the frame.
    """

    gamma: float = bounded(0.8, above=0, max=1)
    confidence: float = bounded(0.1, min=0)
    matching: float = bounded(1.0, min=0)
    prototype_motion: float = bounded(0.0, min=0)
    prototype_plane: float = bounded(0.0, min=0)
    prototype_instances: float = bounded(0.0, min=0)
    edges: float = bounded(1.0, min=0)
    min_depth: float = bounded(0.1, above=0)
    max_depth: float = bounded(80.0, above=0)
    corners: float = bounded(0.2, min=0)
    consistency: float = bounded(1.0, min=0)
    shape: float = bounded(1.0, min=0)
    alignment: float = bounded(1.0, min=0)
    borders: float = bounded(0.1, min=0)

    def __post_init__(self) -> None:
        check_fields(self, "loss")
        if self.min_depth >= self.max_depth:
            raise InputError(f"loss.min_depth is {self.min_depth}, but it must be below loss.max_depth.")


@dataclass(frozen=True)
class RunSection:
    """Length, precision and intervals of a run.

    Attributes:
        steps: Total steps, or None.
        minutes: Minutes of a session, or None; without both limits the run continues until it is stopped.
        precision: Precision of the forward pass.
        execution: "eager", "compile" (torch.compile), "graph" (a CUDA graph of the whole step) or "both".
        log_every: Steps between logs.
        validate_every: Steps between validations, 0 for never.
        draw_every: Steps between drawings of examples, 0 for never.
        checkpoint_every: Steps between checkpoints, 0 for none by steps.
        checkpoint_minutes: Maximum minutes between checkpoints, 0 for no limit.
        validation_scenes: Number of synthetic validation scenes.
    """

    steps: int | None = bounded(None, min=1)
    minutes: float | None = bounded(None, above=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    execution: Literal["eager", "compile", "graph", "both"] = "eager"
    log_every: int = bounded(50, min=1)
    validate_every: int = bounded(5000, min=0)
    draw_every: int = bounded(5000, min=0)
    checkpoint_every: int = bounded(0, min=0)
    checkpoint_minutes: float = bounded(10.0, min=0)
    validation_scenes: int = bounded(32, min=0, max=2**20)

    def __post_init__(self) -> None:
        check_fields(self, "run")


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Attributes:
        task: Task to train.
        description: One-line description.
        model: The network.
        data: The training data.
        optimizer: Optimizer and weight average.
        schedule: Learning-rate schedule.
        loss: Weights of the loss terms.
        run: Length and intervals.
    """

    task: str = "flow"
    description: str = ""
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    loss: LossSection = field(default_factory=LossSection)
    run: RunSection = field(default_factory=RunSection)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"there is no task {short_repr(self.task)}; choose one of {', '.join(TASKS)}.")
        valid = [each.name for each in DATASETS.values() if each.task == self.task]
        check_names(f"dataset of {self.task}", self.data.datasets, valid)
        augmentations = list(DEPTH_AUGMENTATIONS if self.task == "depth" else AUGMENTATIONS)
        for name, section in self.data.datasets.items():
            if section.augmentation not in augmentations:
                raise InputError(
                    f"data.datasets.{name}.augmentation is {section.augmentation!r}, but it must be one of "
                    f"{self.task}, such as {augmentations[0]}."
                )
            _check_depth_pixels(name, section.build_augmentation(self.data.crop_size), self.model)
        if self.schedule.kind == "one_cycle" and self.run.steps is None:
            raise InputError("a schedule of one_cycle needs the total number of steps; give run.steps a number.")

    def changed(self, settings: Sequence[str]) -> "Recipe":
        """Return a copy with some keys set, each as "optimizer.lr=1e-4" or "data.crop_size=[368, 496]"."""
        values = self.as_dict()
        for setting in settings:
            apply_setting(values, setting, "optimizer.lr=1e-4")
        return Recipe.from_dict(values)

    def with_data(self, root: str | os.PathLike[str]) -> "Recipe":
        """Return a copy whose only dataset is in the folder or manifest `root`.

        Raises:
            InputError: If the recipe has no dataset, or several.
        """
        if len(self.data.datasets) != 1:
            raise InputError(
                f"the recipe has {len(self.data.datasets)} datasets, and a folder can be given to a recipe with one, "
                "such as flow-own; set data.datasets.NAME.root for each."
            )
        (name,) = self.data.datasets
        values = self.as_dict()
        values["data"]["datasets"][name]["root"] = os.fspath(root)
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


def _check_depth_pixels(name: str, augmentation: Augmentation | DepthAugmentation, model: ModelSection) -> None:
    """Raise where a depth network would be trained at another image size than it is used at."""
    used = model.config().depth.max_pixels
    if isinstance(augmentation, DepthAugmentation) and augmentation.pixels != used:
        raise InputError(
            f"data.datasets.{name} is shown at up to {augmentation.pixels} pixels, but the model is used at up to "
            f"{used}; set model.overrides.depth.max_pixels, or data.datasets.{name}.overrides.pixels, to the other."
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
