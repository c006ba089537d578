"""Model configuration: one flat dataclass of all network options, and named presets."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protoformer.errors import InputError, closest_name
from protoformer.io.files import short_repr

CHOICES: dict[str, tuple[str, ...]] = {
    "embedding": ("patches", "convolutions"),
    "components": ("both", "cap", "ls", "base"),
    "update": ("cap", "cosine", "cross_attention", "criss_cross", "k_means"),
    "synchronization": ("ls", "fc_similarity", "fc", "none"),
    "decoder": ("memory", "recurrent"),
    "aggregation": ("pixels", "prototypes"),
    "regressor": ("field", "grid"),
}
"""Allowed values of the text fields."""
_WIDTHS = ("widths", "depth_widths", "head_width", "feature_width", "hidden_width", "memory_width", "track_width")
_LAYERS = ("depths", "memory_layers", "track_layers")
MAX_VALUES: dict[str, float] = {
    **dict.fromkeys((*_WIDTHS, "stab_width"), 8192),
    **dict.fromkeys(_LAYERS, 64),
    **dict.fromkeys(("stages", "stab_layers"), 24),
    "stab_stages": 16,
    **dict.fromkeys(("prototypes", "groups"), 16384),
    **dict.fromkeys(("iterations", "updates_training", "updates", "depth_updates"), 1000),
    **dict.fromkeys(("levels", "radius"), 32),
    "memory_tokens": 1024,
    **dict.fromkeys(("flow_pixels", "depth_pixels", "stab_pixels"), 2**27),
    **dict.fromkeys(("search_side", "reference_side"), 4096),
    **dict.fromkeys(("surroundings", "target_grid"), 64),
    **dict.fromkeys(("stab_window", "stab_past"), 1000),
    **dict.fromkeys(("nearest", "farthest"), 1e6),
}
"""Upper bound of every numeric field, at least 8 times the value of any preset.

Configurations are also read from files; without bounds, one line of a file could request unlimited time and memory. The
total number of parameters is bounded by `networks.MAX_PARAMETERS`.
"""
MIN_METERS = 1e-4
"""Lower bound of `closest_name` and `farthest`, meters."""


@dataclass(frozen=True)
class ModelConfig:
    """Options of all networks; each row of the paper's ablations differs from a preset in one field.

    Every numeric field has an upper bound, `MAX_VALUES`.

    Attributes:
        embedding: Encoder. Start of a stage: "patches" (the paper) or "convolutions".
        widths: Encoder. Channels of the two stages, at 1/4 and 1/8 of the image.
        depths: Encoder. Number of blocks of the two stages.
        head_width: Channels of an attention head.
        prototypes: Encoder. K, the number of prototypes of each block.
        iterations: Encoder. N, the number of EM iterations of each block.
        update: Encoder. E-step of prototyping, a key of `prototyping.UPDATE_RULES`.
        normalize: Encoder. Use means instead of sums in the M-step.
        residual: Encoder. Add the M-step to the prototypes instead of replacing them.
        synchronization: Encoder. Update of the features, a key of `synchronization.SYNCHRONIZATIONS`.
        components: Encoder. "both"; "cap", prototypes broadcast by soft memberships; "ls", pooled prototypes
            synchronized; "base", pooled prototypes broadcast to their cells.
        shared_encoder: Flow. Use one encoder for features and context instead of two.
        decoder: Flow. "memory" (the paper, after FlowFormer) or "recurrent" (lookups in a correlation pyramid).
        matching: Flow. Initialize the flow by global matching of the features instead of zero.
        aggregation: Flow. Aggregate motion by attention between all "pixels" or through "prototypes" of the context.
        groups: Flow. Number of prototypes of the aggregation, independent of the encoder's.
        feature_width: Flow. Channels of the feature maps that are correlated.
        hidden_width: Flow and depth. Channels of the recurrent state and of the context.
        levels: Flow. Levels of the correlation pyramid.
        radius: Flow. Radius of the lookups, (2 radius + 1)^2 costs for each level.
        memory_tokens: Flow. Latent tokens of each pixel in the "memory" decoder.
        memory_width: Flow. Channels of a latent token.
        memory_layers: Flow. Layers of the cost memory.
        updates_training: Flow. Recurrent updates in training.
        updates: Flow. Recurrent updates in evaluation.
        flow_pixels: Flow. Smallest number of pixels of an image in inference; smaller images are upsampled, by a factor
            of at most 2 and as memory allows. 1 upsamples nothing. It does not affect training.
        depth_widths: Depth. Channels of the two further stages, at 1/16 and 1/32 of the image.
        depth_updates: Depth. Recurrent updates over all levels.
        nearest: Depth. Smallest depth, meters of the canonical camera.
        farthest: Depth. Largest depth, meters of the canonical camera.
        depth_pixels: Depth. Largest number of pixels of an input image; larger images are downsampled. Training shows
            objects at about the size that they then have.
        search_side: Tracking. Side of the search crop, pixels.
        reference_side: Tracking. Side of the reference crop, pixels, at the same scale as the search crop.
        surroundings: Tracking. Side of the search region in units of the square root of the area of the target's box.
        track_width: Tracking. Channels of the decoder.
        track_layers: Tracking. Layers of the decoder.
        target_grid: Tracking. 1 represents the target by one token, the mean of its box (the paper); n adds n x n
            tokens of its parts, and as many of its surroundings.
        stages: Tracking. Successive boxes: the first from corner heatmaps, each further one refines the one before.
        regressor: Stabilization. "field" uses past and future frames and predicts a warp of every cell; "grid" uses
            past frames only (online) and predicts a warp of a coarse grid.
        stab_window: Stabilization. Frames on each side of the current one for "field".
        stab_past: Stabilization. Frames before the current one for "grid".
        stab_width: Stabilization. Channels.
        stab_layers: Stabilization. Prototype blocks of each stage.
        stab_stages: Stabilization. Successive warps, each of which corrects the one before.
        stab_pixels: Stabilization. Largest number of pixels of an input frame; larger frames are downsampled.
    """

    embedding: str = "patches"
    widths: tuple[int, int] = (128, 256)
    depths: tuple[int, int] = (2, 2)
    head_width: int = 32
    prototypes: int = 100
    iterations: int = 3
    update: str = "cap"
    normalize: bool = True
    residual: bool = True
    synchronization: str = "ls"
    components: str = "both"
    shared_encoder: bool = False
    decoder: str = "memory"
    matching: bool = False
    aggregation: str = "pixels"
    groups: int = 100
    feature_width: int = 256
    hidden_width: int = 128
    levels: int = 4
    radius: int = 4
    memory_tokens: int = 8
    memory_width: int = 128
    memory_layers: int = 3
    updates_training: int = 12
    updates: int = 32
    flow_pixels: int = 1
    depth_widths: tuple[int, int] = (256, 256)
    depth_updates: int = 6
    nearest: float = 0.05
    farthest: float = 250.0
    depth_pixels: int = 240 * 320
    search_side: int = 352
    reference_side: int = 352
    surroundings: int = 6
    track_width: int = 256
    track_layers: int = 3
    target_grid: int = 1
    stages: int = 3
    regressor: str = "field"
    stab_window: int = 15
    stab_past: int = 30
    stab_width: int = 256
    stab_layers: int = 2
    stab_stages: int = 2
    stab_pixels: int = 192 * 320

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            requirement = _violated_requirement(field.name, getattr(self, field.name), field.default)
            if requirement:
                raise InputError(
                    f"{field.name} is {short_repr(getattr(self, field.name))}, but it must be {requirement}."
                )
        if not self.nearest < self.farthest:
            raise InputError(f"nearest is {self.nearest}, but it must be below farthest, {self.farthest}.")
        head_widths = (self.hidden_width, self.memory_width, self.track_width, self.stab_width)
        for width in (*self.widths, *self.depth_widths, *head_widths):
            if width % self.head_width:
                raise InputError(f"a width of {width} is not a multiple of head_width, {self.head_width}.")
        for name, unit in (("memory_width", 8), ("hidden_width", 2), ("search_side", 8), ("reference_side", 8)):
            if getattr(self, name) % unit:
                raise InputError(f"{name} is {getattr(self, name)}, but it must be a multiple of {unit}.")

    def changed(self, **fields: Any) -> "ModelConfig":
        """Return a copy with some fields replaced.

        Raises:
            InputError: If a field does not exist or a value is not allowed.
        """
        return dataclasses.replace(self, **_check_names(fields))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """Build a configuration from the output of `as_dict`.

        Raises:
            InputError: If `fields` is not a mapping, a field does not exist, or a value is not allowed.
        """
        if not isinstance(fields, Mapping):
            raise InputError(f"a configuration is {short_repr(fields)}, but it must be a mapping of fields to values.")
        return cls(**_check_names(fields))


def _violated_requirement(name: str, value: object, default: object) -> str:
    """Return the requirement that a field's value violates, or an empty text; values have the type of the default."""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"one of {', '.join(CHOICES[name])}"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    max_value = MAX_VALUES[name]
    if isinstance(default, tuple):
        is_valid = isinstance(value, tuple) and len(value) == 2 and all(_is_int(each, 1, max_value) for each in value)
        return "" if is_valid else f"two whole numbers, 1 or more and at most {max_value}"
    if isinstance(default, float):
        is_valid = isinstance(value, int | float) and not isinstance(value, bool) and MIN_METERS <= value <= max_value
        return "" if is_valid else f"a number above 0, from {MIN_METERS:g} to {max_value:.0f}"
    min_value = 0 if name == "iterations" else 1
    return (
        "" if _is_int(value, min_value, max_value) else f"a whole number, {min_value} or more and at most {max_value}"
    )


def _is_int(value: object, min_value: int, max_value: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and min_value <= value <= max_value


def _check_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields whose names all exist, with lists converted to tuples."""
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    for name in fields:
        if name not in names:
            near = closest_name(str(name), names)
            raise InputError(f"a model has no field {short_repr(name)}; the nearest one is {near!r}.")
    # JSON has no tuples.
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


PRESETS: dict[str, ModelConfig] = {
    "paper": ModelConfig(),
    "fast": ModelConfig(
        embedding="convolutions",
        widths=(64, 192),
        shared_encoder=True,
        decoder="recurrent",
        matching=True,
        aggregation="prototypes",
        feature_width=192,
        hidden_width=96,
        updates_training=8,
        updates=8,
        flow_pixels=440 * 1024,
        depth_widths=(192, 256),
        search_side=192,
        reference_side=128,
        surroundings=4,
        track_width=128,
        track_layers=2,
        target_grid=4,
        stab_window=60,
        stab_past=60,
        stab_width=128,
        stab_layers=1,
    ),
    "tiny": ModelConfig(
        embedding="convolutions",
        widths=(32, 64),
        depths=(1, 1),
        prototypes=16,
        iterations=2,
        shared_encoder=True,
        decoder="recurrent",
        aggregation="prototypes",
        groups=16,
        feature_width=64,
        hidden_width=32,
        levels=2,
        memory_tokens=4,
        memory_width=32,
        memory_layers=1,
        updates_training=4,
        updates=4,
        depth_widths=(64, 64),
        depth_updates=3,
        search_side=128,
        reference_side=96,
        surroundings=4,
        track_width=64,
        track_layers=1,
        target_grid=3,
        stages=2,
        stab_width=32,
        stab_layers=1,
        stab_pixels=96 * 160,
    ),
}


def preset(name: str, **fields: Any) -> ModelConfig:
    """Return a preset with some fields replaced.

    Args:
        name: A key of `PRESETS`.
        **fields: Fields of `ModelConfig`.

    Raises:
        InputError: If there is no such preset or field, or a value is not allowed.
    """
    if name not in PRESETS:
        raise InputError(f"there is no preset {short_repr(name)}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name].changed(**fields)
