"""Model configuration: one frozen dataclass per part, nested in `ModelConfig`, and named presets."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from protoformer.errors import InputError
from protoformer.io.config_reader import bounded, check_fields, check_names, to_plain
from protoformer.io.files import short_repr

TASKS = ("flow", "depth", "track", "stabilize")
"""Names of the tasks, each the method of `ProtoFormer` that runs its head."""
HEADS = {"flow": "flow_head", "depth": "depth_head", "track": "tracking_head", "stabilize": "stabilization_head"}
"""Attribute of the head of each task."""
SECTIONS = {"flow": "flow", "depth": "depth", "track": "tracking", "stabilize": "stabilization"}
"""Section of `ModelConfig` for the head of each task."""

# Configurations are also read from files; without bounds, one line of a file could request unlimited time and memory.
# Every bound is at least 8 times the value of any preset. The total number of parameters is bounded by
# `protoformer.models.pretrained.MAX_PARAMETERS`.
MAX_WIDTH = 8192
MAX_LAYERS = 64
MAX_PIXELS = 2**27
MIN_METERS = 1e-4
REGRESSORS = ("grid", "field")


@dataclass(frozen=True)
class EncoderConfig:
    """Encoder: a two-stage pyramid whose attention layers are CAP and LS.

    Attributes:
        embedding: Start of a stage: "patches" (the paper) or "convolutions".
        embed_dims: Channels of the two stages, at 1/4 and 1/8 of the image.
        depths: Number of blocks of the two stages.
        head_dim: Channels of one attention head, everywhere.
        num_prototypes: K, the number of prototypes of each block.
        num_iterations: N, the number of EM iterations of each block.
        update: E-step of prototyping, a key of `prototyping.E_STEPS`.
        normalize: Use means instead of sums in the M-step.
        residual: Add the M-step to the prototypes instead of replacing them.
        synchronization: Update of the features, a key of `synchronization.SYNCHRONIZATIONS`.
        components: "both"; the others override two of the fields above for the ablation of components: "cap"
            (CAP without LS) sets `synchronization` to "none", "ls" (LS without CAP) sets `num_iterations` to 0, and
            "base" does both. What these fields are set to has no effect then.
        spatial_prior: Give each prototype a position that attracts near pixels (the factor s of the paper's Eq. 3).
        mixer: Layers that mix pixels: "prototypes", CAP and LS; "attention", self-attention in windows and to the means
            of `num_prototypes` cells; "none", only MLPs. With "attention" and "none" the other fields of CAP and LS
            have no effect.
    """

    embedding: Literal["patches", "convolutions"] = "patches"
    embed_dims: tuple[int, int] = bounded((128, 256), min=1, max=MAX_WIDTH)
    depths: tuple[int, int] = bounded((2, 2), min=1, max=MAX_LAYERS)
    head_dim: int = bounded(32, min=1, max=MAX_WIDTH)
    num_prototypes: int = bounded(100, min=1, max=16384)
    num_iterations: int = bounded(3, min=0, max=1000)
    update: Literal["cap", "cosine", "cross_attention", "criss_cross", "k_means"] = "cap"
    normalize: bool = True
    residual: bool = True
    synchronization: Literal["ls", "ungated", "fc_similarity", "fc", "projection", "none"] = "ls"
    components: Literal["both", "cap", "ls", "base"] = "both"
    spatial_prior: bool = False
    mixer: Literal["prototypes", "attention", "none"] = "prototypes"

    def __post_init__(self) -> None:
        check_fields(self, "encoder")


@dataclass(frozen=True)
class FlowHeadConfig:
    """Optical flow head.

    Attributes:
        shared_encoder: Context and features come from one encoder: the context is projected from the features of frame
            1. Otherwise a second encoder of the same architecture computes it from frame 1 (the paper).
        decoder: Both decoders are recurrent and differ in how an update reads costs: "memory" (the paper, after
            FlowFormer) by a window of full-resolution costs that queries a memory of latent tokens, "recurrent" (RAFT)
            by windows of a correlation pyramid.
        global_matching: Initialize the flow by global matching of the features instead of zero.
        cross_image: Synchronize the features of each frame with the prototypes of the other one before matching.
        aggregation: Aggregate motion by attention between all "pixels" or through "prototypes" of the context.
        num_prototypes: Number of prototypes of the aggregation, independent of the encoder's.
        feature_dim: Channels of the feature maps that are correlated.
        hidden_dim: Channels of the recurrent state and of the context.
        corr_levels: Levels of the correlation pyramid of the decoder "recurrent"; no effect with "memory", which reads
            the finest level only.
        corr_radius: Radius of the lookups, (2 radius + 1)^2 costs for each level, in both decoders.
        memory_tokens: Latent tokens of each pixel in the decoder "memory"; no effect with "recurrent".
        memory_dim: Channels of a latent token, as above.
        memory_layers: Layers of the cost memory, as above.
        num_train_updates: Recurrent updates in training.
        num_updates: Recurrent updates in evaluation.
        min_pixels: Images with fewer pixels are upsampled in inference, by a factor of at most 2 and as far as memory
            allows; 1 turns this off. Training does not use it.
    """

    shared_encoder: bool = False
    decoder: Literal["memory", "recurrent"] = "memory"
    global_matching: bool = False
    cross_image: bool = False
    aggregation: Literal["pixels", "prototypes"] = "pixels"
    num_prototypes: int = bounded(100, min=1, max=16384)
    feature_dim: int = bounded(256, min=1, max=MAX_WIDTH)
    hidden_dim: int = bounded(128, min=1, max=MAX_WIDTH, multiple_of=2)
    corr_levels: int = bounded(4, min=1, max=32)
    corr_radius: int = bounded(4, min=1, max=32)
    memory_tokens: int = bounded(8, min=1, max=1024)
    memory_dim: int = bounded(128, min=1, max=MAX_WIDTH, multiple_of=8)
    memory_layers: int = bounded(3, min=1, max=MAX_LAYERS)
    num_train_updates: int = bounded(12, min=1, max=1000)
    num_updates: int = bounded(32, min=1, max=1000)
    min_pixels: int = bounded(1, min=1, max=MAX_PIXELS)

    def __post_init__(self) -> None:
        check_fields(self, "flow")


@dataclass(frozen=True)
class DepthHeadConfig:
    """Depth head.

    Attributes:
        embed_dims: Channels of the two further stages, at 1/16 and 1/32 of the image.
        hidden_dim: Channels of the recurrent state and of the context.
        num_updates: Recurrent updates over all levels.
        min_depth: Smallest depth, meters of the canonical camera.
        max_depth: Largest depth, meters of the canonical camera.
        max_pixels: Images with more pixels are downsampled, so that objects have about the size, in pixels, that they
            have in training.
    """

    embed_dims: tuple[int, int] = bounded((256, 256), min=1, max=MAX_WIDTH)
    hidden_dim: int = bounded(128, min=1, max=MAX_WIDTH, multiple_of=2)
    num_updates: int = bounded(6, min=1, max=1000)
    min_depth: float = bounded(0.05, min=MIN_METERS, max=1e6)
    max_depth: float = bounded(250.0, min=MIN_METERS, max=1e6)
    max_pixels: int = bounded(240 * 320, min=1, max=MAX_PIXELS)

    def __post_init__(self) -> None:
        check_fields(self, "depth")
        if not self.min_depth < self.max_depth:
            raise InputError(f"depth.min_depth is {self.min_depth}, but it must be below max_depth, {self.max_depth}.")


@dataclass(frozen=True)
class TrackingHeadConfig:
    """Tracking head.

    Attributes:
        search_size: Side of the search crop, pixels.
        template_size: Side of the reference crop, pixels, at the same scale as the search crop.
        search_scale: Side of the search region in units of the square root of the area of the target's box.
        hidden_dim: Channels of the decoder.
        num_layers: Layers of the decoder.
        target_grid: 1 represents the target by one token, the mean of its box (the paper); n adds n x n tokens of its
            parts, and as many of its surroundings.
        num_stages: Successive boxes: the first from corner heatmaps, each further one refines the one before.
    """

    search_size: int = bounded(352, min=1, max=4096, multiple_of=8)
    template_size: int = bounded(352, min=1, max=4096, multiple_of=8)
    search_scale: int = bounded(6, min=1, max=64)
    hidden_dim: int = bounded(256, min=1, max=MAX_WIDTH)
    num_layers: int = bounded(3, min=1, max=MAX_LAYERS)
    target_grid: int = bounded(1, min=1, max=64)
    num_stages: int = bounded(3, min=1, max=24)

    def __post_init__(self) -> None:
        check_fields(self, "tracking")


@dataclass(frozen=True)
class StabilizationHeadConfig:
    """Stabilization head.

    Attributes:
        regressor: "field" uses past and future frames and predicts a warp of every 8x8 cell; "grid" uses past frames
            only (online) and predicts a warp of a coarse grid.
        field_window: Frames on each side of the current one for "field".
        grid_window: Frames before the current one for "grid".
        hidden_dim: Channels.
        num_layers: Prototype blocks of each stage.
        num_stages: Successive warps, each of which corrects the one before.
        max_pixels: Frames with more pixels are downsampled for the network; the warp is applied at full size.
    """

    regressor: Literal["field", "grid"] = "field"
    field_window: int = bounded(15, min=1, max=1000)
    grid_window: int = bounded(30, min=1, max=1000)
    hidden_dim: int = bounded(256, min=1, max=MAX_WIDTH)
    num_layers: int = bounded(2, min=1, max=24)
    num_stages: int = bounded(2, min=1, max=16)
    max_pixels: int = bounded(192 * 320, min=1, max=MAX_PIXELS)

    def __post_init__(self) -> None:
        check_fields(self, "stabilization")

    @property
    def window(self) -> tuple[int, int]:
        """Number of frames before and after the current one."""
        return (self.grid_window, 0) if self.regressor == "grid" else (self.field_window, self.field_window)


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of a `ProtoFormer`; each row of the paper's ablations differs from a preset in one field.

    Attributes:
        encoder: Every encoder of the network: the one that the heads share, the context encoder of flow (unless
            `flow.shared_encoder`), and the encoders of tasks that have one of their own (`ProtoFormer.task_encoders`).
            The heads also use its fields of CAP and LS and its `head_dim` for their own prototype blocks.
        flow: Optical flow head.
        depth: Depth head.
        tracking: Tracking head.
        stabilization: Stabilization head.
    """

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    flow: FlowHeadConfig = field(default_factory=FlowHeadConfig)
    depth: DepthHeadConfig = field(default_factory=DepthHeadConfig)
    tracking: TrackingHeadConfig = field(default_factory=TrackingHeadConfig)
    stabilization: StabilizationHeadConfig = field(default_factory=StabilizationHeadConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        widths = {
            "encoder.embed_dims": self.encoder.embed_dims,
            "flow.hidden_dim": (self.flow.hidden_dim,),
            "flow.memory_dim": (self.flow.memory_dim,),
            "depth.embed_dims": self.depth.embed_dims,
            "tracking.hidden_dim": (self.tracking.hidden_dim,),
            "stabilization.hidden_dim": (self.stabilization.hidden_dim,),
        }
        for name, values in widths.items():
            for width in values:
                if width % self.encoder.head_dim:
                    raise InputError(
                        f"{name} has {width}, not a multiple of encoder.head_dim, {self.encoder.head_dim}."
                    )

    def changed(self, **sections: Any) -> "ModelConfig":
        """Return a copy with some fields replaced, such as `changed(encoder={"num_prototypes": 50})`.

        Raises:
            InputError: If a field does not exist or a value is not allowed.
        """
        check_names("section of a model", sections, [field.name for field in dataclasses.fields(self)])
        return dataclasses.replace(
            self, **{name: _replace_fields(name, getattr(self, name), values) for name, values in sections.items()}
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the sections as nested dictionaries for JSON."""
        values: dict[str, Any] = to_plain(self)
        return values

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any]) -> "ModelConfig":
        """Build a configuration from the output of `as_dict`.

        Raises:
            InputError: If `sections` is not a mapping, a field does not exist, or a value is not allowed.
        """
        if not isinstance(sections, Mapping):
            raise InputError(f"a configuration is {short_repr(sections)}, but it must be a mapping of its sections.")
        return cls().changed(**{str(name): values for name, values in sections.items()})


def _replace_fields(name: str, section: Any, values: object) -> Any:
    """Return a section with some fields replaced."""
    if isinstance(values, type(section)):
        return values
    if not isinstance(values, Mapping):
        raise InputError(f"{name} is {short_repr(values)}, but it must be a mapping of fields to values.")
    check_names(f"field of {name}", map(str, values), [field.name for field in dataclasses.fields(section)])
    # JSON has no tuples.
    return dataclasses.replace(section, **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


PRESETS: dict[str, ModelConfig] = {
    "paper": ModelConfig(),
    "fast": ModelConfig(
        EncoderConfig(embedding="convolutions", embed_dims=(64, 192), spatial_prior=True),
        FlowHeadConfig(
            shared_encoder=True,
            decoder="recurrent",
            global_matching=True,
            aggregation="prototypes",
            feature_dim=192,
            hidden_dim=96,
            num_train_updates=8,
            num_updates=8,
            min_pixels=440 * 1024,
        ),
        DepthHeadConfig(embed_dims=(192, 256), hidden_dim=96),
        TrackingHeadConfig(
            search_size=192, template_size=128, search_scale=4, hidden_dim=128, num_layers=2, target_grid=4
        ),
        StabilizationHeadConfig(field_window=60, grid_window=60, hidden_dim=128, num_layers=1),
    ),
    "tiny": ModelConfig(
        EncoderConfig(
            embedding="convolutions",
            embed_dims=(32, 64),
            depths=(1, 1),
            num_prototypes=16,
            num_iterations=2,
            spatial_prior=True,
        ),
        FlowHeadConfig(
            shared_encoder=True,
            decoder="recurrent",
            aggregation="prototypes",
            num_prototypes=16,
            feature_dim=64,
            hidden_dim=32,
            corr_levels=2,
            memory_tokens=4,
            memory_dim=32,
            memory_layers=1,
            num_train_updates=4,
            num_updates=4,
        ),
        DepthHeadConfig(embed_dims=(64, 64), hidden_dim=32, num_updates=3),
        TrackingHeadConfig(
            search_size=128,
            template_size=96,
            search_scale=4,
            hidden_dim=64,
            num_layers=1,
            target_grid=3,
            num_stages=2,
        ),
        StabilizationHeadConfig(hidden_dim=32, num_layers=1, max_pixels=96 * 160),
    ),
}
"""Configurations by name.

The preset "fast" is not the configuration of the packaged weights of the same name: the weights were trained without
the spatial prior, `encoder.spatial_prior=False`, and do not fit a network of the preset. Take the configuration of
loaded weights from the network, `ProtoFormer.from_pretrained("fast").config`.

- "paper" has the sizes of the paper, K = 100 and N = 3, and all defaults. The M-step is a mean instead of the literal
  sum of Eq. 5, because EM requires it and Eq. 4 states it. LS has a gate, without which its queries and keys would get
  no gradient. There is no spatial prior, although it is the factor s of Eq. 3: a default is also the value of a field
  that a file of weights lacks, and older weights have no prior. Depth is bounded in log depth of a canonical camera
  instead of in disparity, so that near and far errors count alike.
- "fast" is for training small, fast networks: a convolutional stem, which trains much faster from scratch than patches;
  narrower stages; the spatial prior, which makes prototypes compact regions; one encoder for flow instead of two;
  global matching for fast motion, then 8 lookups in a correlation pyramid instead of 32 with a cost memory; aggregation
  of motion that is linear in the number of pixels; smaller crops and more target tokens in tracking; two seconds to
  each side in stabilization, which separates shake from intended pans.
- "tiny" is a small "fast" without global matching, for tests and experiments.
"""


def preset(name: str, **sections: Any) -> ModelConfig:
    """Return a preset with some fields replaced, such as `preset("fast", encoder={"num_prototypes": 50})`.

    Args:
        name: A key of `PRESETS`.
        **sections: New values of the fields of each section of `ModelConfig`.

    Raises:
        InputError: If there is no such preset or field, or a value is not allowed.
    """
    if name not in PRESETS:
        raise InputError(f"there is no preset {short_repr(name)}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name].changed(**sections)
