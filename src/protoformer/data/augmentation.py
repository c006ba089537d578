"""Augmentation after RAFT: colours, erased patches, scale, stretch, flips and a crop.

Two steps. `draw` takes the random numbers of one sample from its key alone; `apply_flow` and `apply_depth` use them
on a batch, on whatever device it is. `augment_flow` and `augment_depth` do both.

A key is (seed, epoch, index). Each random number of a sample has a name, and is the first 53 bits of the 8-byte BLAKE2b
hash of "seed epoch index name" (decimal, a space between, ASCII), read as a little-endian number without its 11 lowest
bits, as a fraction of 2^53. So it depends neither on worker nor batch nor device, nor on the other numbers drawn.

Unlike RAFT: the order of the colour changes is fixed, the picture is resampled once, and an image may be scaled to just
the crop's size, without a margin of 8 pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

import torch
from torch import Tensor

from protoformer.data.augmentation_photometric import NEUTRAL, Box, Jitter, erase, jitter
from protoformer.data.augmentation_spatial import Placement, Resampling
from protoformer.errors import InputError
from protoformer.geometry import pixel_grid
from protoformer.geometry.warps import inside
from protoformer.world.sample import DepthSample, FlowSample

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Jitter",
    "Key",
    "Parameters",
    "Placement",
    "apply_depth",
    "apply_flow",
    "augment_depth",
    "augment_flow",
    "draw",
]

Key = tuple[int, int, int]


@dataclass(frozen=True)
class Augmentation:
    """How much samples are varied; the defaults are RAFT's for FlyingChairs.

    crop: (height, width) of what comes out, pixels. An image too small for it is scaled up until it covers it.
    min_scale, max_scale: exponents of 2 between which the scale lies. scale_probability: else the size stays.
    stretch: exponent of 2, either way and each axis for itself, on top of the scale; stretch_probability.
    flip_horizontal, flip_vertical: probabilities of left and right, of top and bottom changing places.
    brightness, contrast, saturation: factors lie in 1 - strength .. 1 + strength. hue: turn either way, radians.
    asymmetric: probability that the second image's colours change in a way of their own.
    erase: probability that one or two boxes of the second image turn its mean colour, as if hidden (the flow stays);
        erase_size: least and most pixels a side.
    sparse: the truth has gaps, so it is carried vector by vector; a dense truth is interpolated.

    Bilinear sampling passes no pixel over down to half the size, so there is no other guard against aliasing; smaller
    scales are refused.
    """

    crop: tuple[int, int] = (368, 496)
    min_scale: float = -0.1
    max_scale: float = 1.0
    scale_probability: float = 0.8
    stretch: float = 0.2
    stretch_probability: float = 0.8
    flip_horizontal: float = 0.5
    flip_vertical: float = 0.1
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 1.0
    asymmetric: float = 0.2
    erase: float = 0.5
    erase_size: tuple[int, int] = (50, 100)
    sparse: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = _wanted(field.name, value)
            if wanted:
                raise InputError(f"the augmentation's {field.name} is {value!r}, but it must be {wanted}.")
        if not self.min_scale <= self.max_scale:
            raise InputError(f"the augmentation's min_scale {self.min_scale} is above its max_scale {self.max_scale}.")
        if not self.erase_size[0] <= self.erase_size[1]:
            raise InputError(f"the augmentation's erase_size {self.erase_size} must go from the least to the most.")
        if self.min_scale - self.stretch < -1:
            raise InputError(
                f"the augmentation's min_scale {self.min_scale} less its stretch {self.stretch} is below -1, half the"
                " size, where pixels would be passed over; raise one or lower the other."
            )


_PROBABILITIES = {
    "scale_probability",
    "stretch_probability",
    "flip_horizontal",
    "flip_vertical",
    "asymmetric",
    "erase",
}


def _wanted(name: str, value: object) -> str:
    """What a field's value must be, if it is not; else nothing."""
    if name == "sparse":
        return "" if isinstance(value, bool) else "true or false"
    if name in ("crop", "erase_size"):
        sides = value if isinstance(value, tuple) else ()
        right = len(sides) == 2 and all(isinstance(side, int) and side >= 1 for side in sides)
        return "" if right else "two whole numbers, 1 or more"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "a number"
    if name in _PROBABILITIES:
        return "" if 0 <= value <= 1 else "a probability, 0 to 1"
    if name in ("min_scale", "max_scale"):
        return ""
    return "" if value >= 0 else "0 or more"


AUGMENTATIONS: dict[str, Augmentation] = {
    "chairs": Augmentation(),
    "things": Augmentation(crop=(432, 960), min_scale=-0.4, max_scale=0.8),
    "sintel": Augmentation(crop=(432, 960), min_scale=-0.2, max_scale=0.6),
    "kitti": Augmentation(
        crop=(432, 960),
        min_scale=-0.2,
        max_scale=0.4,
        stretch_probability=0.0,
        flip_horizontal=0.0,
        flip_vertical=0.0,
        brightness=0.3,
        contrast=0.3,
        saturation=0.3,
        hue=0.6,
        asymmetric=0.0,
        sparse=True,
    ),
}


@dataclass(frozen=True)
class Parameters:
    """Everything random about one sample. erased: boxes (x, y, w, h) of the second image, in its own pixels."""

    placement: Placement
    first: Jitter = NEUTRAL
    second: Jitter = NEUTRAL
    erased: tuple[Box, ...] = ()


class _Draws:
    """The random numbers of one key, by name."""

    def __init__(self, key: Key) -> None:
        self.key = " ".join(str(int(part)) for part in key)

    def fraction(self, name: str) -> float:
        digest = blake2b(f"{self.key} {name}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) / 2**53

    def between(self, name: str, low: float, high: float) -> float:
        return low + (high - low) * self.fraction(name)

    def whole(self, name: str, low: int, high: int) -> int:
        """From low to high, both included."""
        return low + int(self.fraction(name) * (high - low + 1))

    def happens(self, name: str, probability: float) -> bool:
        return self.fraction(name) < probability


def draw(config: Augmentation, key: Key, size: tuple[int, int]) -> Parameters:
    """The parameters of the sample with this key, (seed, epoch, index), whose images have this (height, width)."""
    draws = _Draws(key)
    first = _draw_jitter(config, draws, "first")
    second = _draw_jitter(config, draws, "second") if draws.happens("asymmetric", config.asymmetric) else first
    return Parameters(_draw_placement(config, draws, size), first, second, _draw_boxes(config, draws, size))


def _draw_placement(config: Augmentation, draws: _Draws, size: tuple[int, int]) -> Placement:
    across, down = 1.0, 1.0
    if draws.happens("scaled", config.scale_probability):
        across = down = 2 ** draws.between("scale", config.min_scale, config.max_scale)
        if draws.happens("stretched", config.stretch_probability):
            across *= 2 ** draws.between("stretch x", -config.stretch, config.stretch)
            down *= 2 ** draws.between("stretch y", -config.stretch, config.stretch)
    (height, width), (crop_height, crop_width) = size, config.crop
    covering = max(crop_height / height, crop_width / width)
    across, down = max(across, covering), max(down, covering)
    # The slack keeps a rounding error of the covering scale from costing a pixel.
    room_x = max(0, math.floor(across * width - crop_width + 1e-6))
    room_y = max(0, math.floor(down * height - crop_height + 1e-6))
    return Placement(
        size=size,
        crop=config.crop,
        scale=(across, down),
        flip=(
            draws.happens("flip horizontal", config.flip_horizontal),
            draws.happens("flip vertical", config.flip_vertical),
        ),
        corner=(draws.whole("corner x", 0, room_x), draws.whole("corner y", 0, room_y)),
    )


def _draw_jitter(config: Augmentation, draws: _Draws, image: str) -> Jitter:
    def factor(name: str, strength: float) -> float:
        return draws.between(f"{image} {name}", max(0.0, 1 - strength), 1 + strength)

    return Jitter(
        brightness=factor("brightness", config.brightness),
        contrast=factor("contrast", config.contrast),
        saturation=factor("saturation", config.saturation),
        hue=draws.between(f"{image} hue", -config.hue, config.hue),
    )


def _draw_boxes(config: Augmentation, draws: _Draws, size: tuple[int, int]) -> tuple[Box, ...]:
    if not draws.happens("erase", config.erase):
        return ()
    (height, width), (least, most) = size, config.erase_size
    return tuple(
        (
            draws.whole(f"box {box} x", 0, width - 1),
            draws.whole(f"box {box} y", 0, height - 1),
            draws.whole(f"box {box} width", least, most),
            draws.whole(f"box {box} height", least, most),
        )
        for box in range(draws.whole("boxes", 1, 2))
    )


def apply_flow(sample: FlowSample, parameters: Sequence[Parameters], sparse: bool) -> FlowSample:
    """A batch of N pairs by N parameters; images in [0, 1] and flow in pixels, of the crop's size.

    A dense flow is valid where every vector it is interpolated from was; a sparse one is carried, and its occlusion
    with it. Pixels whose flow leaves the crop join the occlusion, where that is known; erased ones do not.
    """
    resampling = _resampling(sample.first, parameters)
    second = jitter(sample.second, [each.second for each in parameters])
    second = erase(second, [each.erased for each in parameters])
    occlusion = None if sample.occlusion is None else resampling.nearest(sample.occlusion)
    if sparse:
        extra = () if sample.occlusion is None else (sample.occlusion,)
        valid, flow, *hidden = resampling.carry(sample.valid, sample.flow, *extra)
        if occlusion is not None:
            occlusion = torch.where(valid, hidden[0], occlusion)
    else:
        valid, flow = resampling.bilinear_valid(sample.valid), resampling.bilinear(sample.flow)
    flow = flow * resampling.slope.to(flow.dtype)[:, :, None, None]
    flow = torch.where(valid, flow, torch.zeros_like(flow))
    if occlusion is not None:
        height, width = flow.shape[-2:]
        occlusion = occlusion | ~inside(pixel_grid(height, width, flow.device) + flow, height, width)
    return replace(
        sample,
        first=resampling.bilinear(jitter(sample.first, [each.first for each in parameters])),
        second=resampling.bilinear(second),
        flow=flow,
        valid=valid,
        occlusion=occlusion,
    )


def apply_depth(sample: DepthSample, parameters: Sequence[Parameters], sparse: bool) -> DepthSample:
    """A batch of N images by N parameters, those of a pair's first image; depths stay as they are, metres.

    A scaled image is that of a longer lens, a crop moves its centre, and a flip shows the mirrored world: so do the
    intrinsics, whose focal lengths stay positive.
    """
    resampling = _resampling(sample.image, parameters)
    if sparse:
        valid, depth = resampling.carry(sample.valid, sample.depth)
    else:
        valid, depth = resampling.nearest(sample.valid) & resampling.inside, resampling.nearest(sample.depth)
        depth = torch.where(valid, depth, torch.zeros_like(depth))
    image = resampling.bilinear(jitter(sample.image, [each.first for each in parameters]))
    intrinsics = None if sample.intrinsics is None else _placed_intrinsics(sample.intrinsics, resampling)
    return replace(sample, image=image, depth=depth, valid=valid, intrinsics=intrinsics)


def _placed_intrinsics(intrinsics: Tensor, resampling: Resampling) -> Tensor:
    """Rows by the map of positions, columns by the sign of the flips, which mirror the world: N x 3 x 3."""
    slope, shift = resampling.slope.to(intrinsics.dtype), resampling.shift.to(intrinsics.dtype)
    one, zero = torch.ones_like(slope[:, :1]), torch.zeros_like(slope[:, :1])
    slope, shift = torch.cat((slope, one), dim=1), torch.cat((shift, zero), dim=1)
    placed = intrinsics * slope[:, :, None] + intrinsics[:, 2:] * shift[:, :, None]
    return placed * slope.sign()[:, None, :]


def _resampling(images: Tensor, parameters: Sequence[Parameters]) -> Resampling:
    if len(parameters) != len(images):
        raise ValueError(f"a batch of {len(images)} needs as many parameters, not {len(parameters)}")
    resampling = Resampling([each.placement for each in parameters], images.device)
    if resampling.size != tuple(images.shape[-2:]):
        raise ValueError(f"the parameters are for images of {resampling.size}, not of {tuple(images.shape[-2:])}")
    return resampling


def augment_flow(sample: FlowSample, config: Augmentation, keys: Sequence[Key]) -> FlowSample:
    """The batch augmented, a key (seed, epoch, index) a sample: N pairs of the crop's size."""
    height, width = sample.first.shape[-2:]
    return apply_flow(sample, [draw(config, key, (height, width)) for key in keys], config.sparse)


def augment_depth(sample: DepthSample, config: Augmentation, keys: Sequence[Key]) -> DepthSample:
    """The batch augmented, a key (seed, epoch, index) a sample: N images of the crop's size."""
    height, width = sample.image.shape[-2:]
    return apply_depth(sample, [draw(config, key, (height, width)) for key in keys], config.sparse)
