"""What a network is made of, in one flat record, and the named records that people start from."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protoformer.errors import InputError, nearest
from protoformer.io.files import shown

CHOICES: dict[str, tuple[str, ...]] = {
    "embedding": ("patches", "convolutions"),
    "components": ("both", "cap", "ls", "base"),
    "update": ("cap", "cosine", "cross_attention", "criss_cross", "k_means"),
    "synchronization": ("ls", "fc_similarity", "fc", "none"),
    "decoder": ("memory", "recurrent"),
    "aggregation": ("pixels", "prototypes"),
    "regressor": ("field", "grid"),
}
_WIDTHS = ("widths", "depth_widths", "head_width", "feature_width", "hidden_width", "memory_width", "track_width")
_LAYERS = ("depths", "memory_layers", "track_layers")
MOST: dict[str, float] = {
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
"""The largest value of every number of a configuration, at least 8 times that of any preset.

Configurations come from files, too: without bounds, one line of a file could ask for any time and memory. How many
parameters a network has in all is bounded besides, by `networks.MAX_PARAMETERS`.
"""
LEAST_METERS = 1e-4
"""The smallest bound of a depth."""


@dataclass(frozen=True)
class ModelConfig:
    """Every choice a network is built from; each row of the paper's ablations differs from a preset in one field.

    Every number has an upper bound, `MOST`.

    Encoder
        embedding: how a stage starts, "patches" (the paper's) or "convolutions".
        widths, depths: channels and blocks of the two stages, at 1/4 and 1/8 of the image.
        head_width: channels of an attention head.
        prototypes: K. iterations: N, the steps of EM.
        update: how prototypes are updated; normalize: by means, not sums; residual: added to, not replaced.
        synchronization: how pixels take their prototype up.
        components: "both"; "cap", prototypes broadcast by soft memberships; "ls", pooled prototypes synchronized;
            "base", pooled prototypes handed back to their cells.
        shared_encoder: one encoder for features and context instead of two.
    Flow decoder
        decoder: "memory" (the paper's, after FlowFormer) or "recurrent" (look-ups in a correlation pyramid).
        matching: begin with a global matching of the features, not at zero.
        aggregation: motion gathered over the image by attention between all "pixels" or through "prototypes".
        groups: how many prototypes the aggregation finds in the context, whatever the encoder's are.
        feature_width, hidden_width: channels that are correlated; channels of the recurrent state and of the context.
        levels, radius: of the correlation pyramid's look-ups, (2 radius + 1)^2 costs a level.
        memory_tokens, memory_width, memory_layers: the cost memory, used by the "memory" decoder.
        updates_training, updates: recurrent updates in training and in use.
        flow_pixels: how many an image has at least when the network sees it in use; smaller ones are enlarged, to no
            more than twice their sides, where the memory allows it. 1 enlarges nothing. Training is not touched by it.
    Depth decoder
        depth_widths: channels of the two further stages, at 1/16 and 1/32 of the image.
        depth_updates: recurrent updates over all levels, whose state has the channels of hidden_width.
        nearest, farthest: bounds of a depth, meters of the canonical camera.
        depth_pixels: how many an image has at most when the network sees it; larger ones are shrunk. Training shows
            things at about the size that they have then.
    Tracking
        search_side, reference_side: pixels of a side of the crops in which the target is looked for, and from which it
            is known; of both a pixel is as large.
        surroundings: the side of what is searched, in units of the root of the area of the target's box.
        track_width, track_layers: channels and layers of the decoder.
        target_grid: 1 knows the target by one token, the mean of its box (the paper's); n adds n x n tokens of its
            parts, and as many of what is around it.
        stages: boxes that are found one after the other, the first from heat maps of corners, each next one by
            looking into the one before.
    Stabilization
        regressor: "field" sees frames before and after, and warps every place; "grid" sees those before, as they come,
            and warps a coarse grid.
        stab_window: frames on each side of now that "field" sees; stab_past: frames before now that "grid" sees.
        stab_width, stab_layers: channels, and blocks of prototypes of each stage.
        stab_stages: warps that are found one after the other, each by looking at what the one before leaves.
        stab_pixels: how many a frame has at most when the network sees it; larger ones are shrunk.
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
            wanted = _wanted(field.name, getattr(self, field.name), field.default)
            if wanted:
                raise InputError(f"{field.name} is {shown(getattr(self, field.name))}, but it must be {wanted}.")
        if not self.nearest < self.farthest:
            raise InputError(f"nearest is {self.nearest}, but it must be below farthest, {self.farthest}.")
        own = (self.hidden_width, self.memory_width, self.track_width, self.stab_width)
        for width in (*self.widths, *self.depth_widths, *own):
            if width % self.head_width:
                raise InputError(f"a width of {width} is not a multiple of head_width, {self.head_width}.")
        for name, unit in (("memory_width", 8), ("hidden_width", 2), ("search_side", 8), ("reference_side", 8)):
            if getattr(self, name) % unit:
                raise InputError(f"{name} is {getattr(self, name)}, but it must be a multiple of {unit}.")

    def changed(self, **fields: Any) -> "ModelConfig":
        """The same configuration with some fields changed; an unknown field is an error that names the nearest."""
        return dataclasses.replace(self, **_known(fields))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """The inverse of `as_dict`."""
        if not isinstance(fields, Mapping):
            raise InputError(f"a configuration is {shown(fields)}, but it must be a mapping of fields to values.")
        return cls(**_known(fields))


def _wanted(name: str, value: object, default: object) -> str:
    """What a field's value must be, if it is not; else nothing. A value has the type of the field's default."""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"one of {', '.join(CHOICES[name])}"
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    most = MOST[name]
    if isinstance(default, tuple):
        right = isinstance(value, tuple) and len(value) == 2 and all(_whole(each, 1, most) for each in value)
        return "" if right else f"two whole numbers, 1 or more and at most {most}"
    if isinstance(default, float):
        right = isinstance(value, int | float) and not isinstance(value, bool) and LEAST_METERS <= value <= most
        return "" if right else f"a number above 0, from {LEAST_METERS:g} to {most:.0f}"
    least = 0 if name == "iterations" else 1
    return "" if _whole(value, least, most) else f"a whole number, {least} or more and at most {most}"


def _whole(value: object, least: int, most: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    for name in fields:
        if name not in names:
            near = nearest(str(name), names)
            raise InputError(f"a model has no field {shown(name)}; the nearest one is {near!r}.")
    # json knows no tuples
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
    """The named configuration, with some fields changed."""
    if name not in PRESETS:
        raise InputError(f"there is no preset {shown(name)}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name].changed(**fields)
