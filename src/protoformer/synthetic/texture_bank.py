"""A bank of textures that any number of rays can look up at once: every texture at every level of detail, packed."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.errors import InputError
from protoformer.io.image import read_cutout
from protoformer.synthetic.textures import FAMILIES, cutout

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm"})
_MARGIN = 2  # texels around a cut-out that stay empty
_LEAST_COVER = 0.03  # a cut-out that fills less of its picture is a stray mark
_LEAST_CLEAR = 0.01  # an image less transparent than this is opaque with a blemish
_UNSEEN = 0.05  # an alpha that leaves next to nothing to see
_TWO_SQUARES = 1.6  # a picture this much longer than wide gives two textures
_TOGETHER = 8  # textures whose levels are made at once: few enough to stay near the processor
_FIRM = 0.25  # below this alpha a picture's own color counts less and less: editors leave anything there


@dataclass(frozen=True)
class TextureBank:
    """Square textures with their levels of detail, level l being the 2 x 2 means of level l - 1 down to 1 x 1.

    texels: int32, RGBA of 8 bits each packed as r | g << 8 | b << 16 | a << 24. Texture m at level l, row y, column x
        is at m * stride + offset(l) + y * (side >> l) + x, with stride and offset as the properties say.
    silhouettes: int32, (cutouts + 1) * side * side. A texel holds its alpha and that of its neighbors to the right,
        below, and below to the right in its four bytes, so that one look answers for all; the first is solid and
        stands for every surface.
    side: texels along a texture, a power of two of at least 4.
    surfaces: textures 0 .. surfaces - 1 are opaque.
    cutouts: the textures after them have a silhouette in their alpha, empty along the border.
    """

    texels: Tensor
    silhouettes: Tensor
    side: int
    surfaces: int
    cutouts: int

    def __post_init__(self) -> None:
        if self.side < 4 or self.side & (self.side - 1):
            raise InputError(f"the textures have a side of {self.side} texels; choose a power of two of at least 4.")
        if self.count * self.stride >= 2**31:
            raise InputError(f"{self.count} textures of {self.side} texels are too many for a bank; set a limit.")

    @property
    def count(self) -> int:
        """Textures in all."""
        return self.surfaces + self.cutouts

    @property
    def levels(self) -> int:
        """Levels of detail, from side x side down to 1 x 1."""
        return self.side.bit_length()

    @property
    def stride(self) -> int:
        """Texels of one texture with all its levels."""
        return (4 * self.side * self.side - 1) // 3

    def offset(self, level: int) -> int:
        """Texels of one texture that come before a level."""
        return (self.side**2 - (self.side >> level) ** 2) * 4 // 3

    def to(self, device: torch.device | str) -> "TextureBank":
        """The bank on a device."""
        return replace(self, texels=self.texels.to(device), silhouettes=self.silhouettes.to(device))

    def level(self, texture: int, level: int) -> Tensor:
        """One texture at one level: 4 x (side >> level) x (side >> level), uint8 RGBA."""
        side, start = self.side >> level, texture * self.stride + self.offset(level)
        packed = self.texels[start : start + side * side].view(side, side)
        return torch.stack([(packed >> shift) & 255 for shift in (0, 8, 16, 24)]).to(torch.uint8)

    def sample(self, texture: Tensor, u: Tensor, v: Tensor, level: Tensor) -> Tensor:
        """Look colors up by trilinear interpolation: 4 x [...] RGBA in [0, 1], colors not multiplied by alpha.

        texture: int, 0 .. count - 1. u, v: [...] float, right and down, 0 .. 1 over one texture, mirrored beyond.
        level: float, 0 the finest, clamped to those there are. What is not finite gives NaN. Texture and level may be
        of any shape that expands to [...].
        """
        level = level.clamp(0, self.levels - 1)
        # At the very coarsest the pair is the last two levels, so that there always is a next one.
        whole = level.floor().clamp_(max=self.levels - 2)
        blend = level.sub_(whole)
        size = torch.bitwise_right_shift(self.side, whole.int().clamp_(0, self.levels - 2))
        start = texture.int() * self.stride
        u, v = _mirrored(u), _mirrored(v)
        fine, coarse = self._bilinear(start, size, u, v), self._bilinear(start, size >> 1, u, v)
        channels = zip(fine, coarse, _CHANNELS, strict=True)
        return torch.stack([torch.lerp(a, b, blend).div_(channel.white) for a, b, channel in channels])

    def _bilinear(self, start: Tensor, size: Tensor, u: Tensor, v: Tensor) -> list[Tensor]:
        """The four channels at a level `size` texels wide of the textures that begin at `start`, as they are stored."""
        start = start + (self.side**2 - size * size) * 4 // 3
        width, last = size.float(), size - 1
        x, y = (u * width).sub_(0.5).clamp_(min=0), (v * width).sub_(0.5).clamp_(min=0)
        # Clamped again as whole numbers, because what is not finite becomes any of them.
        left, top = x.int().clamp_(min=0), y.int().clamp_(min=0)
        right, bottom = torch.minimum(left + 1, last), torch.minimum(top + 1, last)
        x, y = x.frac_(), y.frac_()
        upper, lower = top.mul_(size).add_(start), bottom.mul_(size).add_(start)
        corners = [_taken(self.texels, row + column) for row in (upper, lower) for column in (left, right)]
        channels = []
        for channel in _CHANNELS:
            shifted = [corner >> channel.shift for corner in corners] if channel.shift else corners
            a, b, c, d = ((corner & channel.mask).float() for corner in shifted)
            channels.append(torch.lerp(torch.lerp(a, b, x), torch.lerp(c, d, x), y))
        return channels

    def covers(self, texture: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Say where a silhouette is solid: [...] bool, its alpha at the finest level, bilinear, being at least a half.

        texture, u, v: as in `sample`, but a cut-out is not repeated: beyond 0 .. 1 there is nothing. A surface, which
        has no silhouette, covers everything.
        """
        x, y = (self._inner(coordinate) for coordinate in (u, v))
        left, top = (position.int().clamp_(0, self.side - 2) for position in (x, y))
        start = (texture.int() - (self.surfaces - 1)).clamp_(min=0).mul_(self.side**2)
        corners = _taken(self.silhouettes, top.mul_(self.side).add_(left).add_(start))
        x, y = x.frac_(), y.frac_()
        a, b, c, d = (((corners >> shift) & 255).float() for shift in (0, 8, 16, 24))
        return torch.lerp(torch.lerp(a, b, x), torch.lerp(c, d, x), y) >= 127.5

    def _inner(self, coordinate: Tensor) -> Tensor:
        """Texels from the first texel's center, kept short of the last one's; both are empty, as is all beyond."""
        return (coordinate * self.side).sub_(0.5).clamp_(0, self.side - 1.001)


class _Channel(NamedTuple):
    """Where a packed texel keeps a channel: its bits after a shift, and their value for white."""

    shift: int
    mask: int
    white: float


# Red, green and blue are used where they lie, scaled by a power of two; alpha has the sign bit and must be moved.
_CHANNELS = (
    _Channel(0, 0xFF, 255.0),
    _Channel(0, 0xFF00, 255.0 * 2**8),
    _Channel(0, 0xFF0000, 255.0 * 2**16),
    _Channel(24, 0xFF, 255.0),
)


def _mirrored(coordinate: Tensor) -> Tensor:
    """Fold a coordinate into 0 .. 1 by reflection: its distance to the nearest even number."""
    return (coordinate * 0.5).round_().mul_(-2).add_(coordinate).abs_()


def _taken(values: Tensor, index: Tensor) -> Tensor:
    """Elements of a flat tensor by an index of any shape."""
    return values.index_select(0, index.reshape(-1)).view(index.shape)


def build_bank(
    surfaces: Sequence[Tensor], cutouts: Sequence[Tensor], side: int, device: torch.device | str = "cpu"
) -> TextureBank:
    """Pack textures, uint8 side x side: surfaces 3 x H x W RGB, cut-outs 4 x H x W RGBA.

    The alpha of cut-outs is emptied along the border; where nothing is seen their colors come from what is nearby.
    device: where their levels of detail are made, and where the bank then is.
    """
    stride, count = (4 * side * side - 1) // 3, len(surfaces) + len(cutouts)
    texels = torch.empty(count, stride, dtype=torch.int32, device=device)
    silhouettes = [torch.full((1, side * side), -1, dtype=torch.int32, device=device)]
    for first in range(0, len(surfaces), _TOGETHER):
        color = torch.stack([*surfaces[first : first + _TOGETHER]]).to(device).float().div_(255)
        solid = torch.cat((color, torch.ones_like(color[:, :1])), dim=1)
        texels[first : first + len(solid)] = _packed(_averaged(solid))
    for first in range(0, len(cutouts), _TOGETHER):
        shapes = torch.stack([*cutouts[first : first + _TOGETHER]]).to(device).float().div_(255)
        shapes[:, 3] *= F.pad(torch.ones(side - 2, side - 2, device=device), (1, 1, 1, 1))
        place = len(surfaces) + first
        texels[place : place + len(shapes)] = _packed(_filled(shapes))
        silhouettes.append(_corners(shapes[:, 3]))
    return TextureBank(texels.view(-1), torch.cat(silhouettes).view(-1), side, len(surfaces), len(cutouts))


def _averaged(finest: Tensor) -> list[Tensor]:
    """All levels of N x C x side x side, the finest first."""
    levels = [finest]
    while levels[-1].shape[-1] > 1:
        levels.append(F.avg_pool2d(levels[-1], 2))
    return levels


def _filled(shapes: Tensor) -> list[Tensor]:
    """All levels of cut-outs N x 4 x side x side: colors are means weighted by alpha, and where it is nearly 0 they
    come from the coarser levels, so that blending across an outline never meets a color that is not there.
    """
    weighted = _averaged(torch.cat((shapes[:, :3] * shapes[:, 3:], shapes[:, 3:]), dim=1))
    filled: list[Tensor] = []
    around = torch.zeros_like(weighted[-1][:, :3])
    for level in reversed(weighted):
        alpha = level[:, 3:]
        own = level[:, :3] / alpha.clamp_min(1e-6)
        firm = (alpha / _FIRM).clamp_(max=1) if filled else (alpha > 0).float()
        around = torch.lerp(F.interpolate(around, size=level.shape[-2:], mode="bilinear"), own, firm)
        filled.append(torch.cat((around, alpha), dim=1))
    return filled[::-1]


def _packed(levels: list[Tensor]) -> Tensor:
    """Levels N x 4 x size x size in [0, 1] as packed texels, N x stride."""
    rounded = [level.mul(255).round_().to(torch.uint8).permute(0, 2, 3, 1).flatten(1, 2) for level in levels]
    # Every machine torch runs on keeps the lowest byte first.
    return torch.cat(rounded, dim=1).view(torch.int32)[..., 0]


def _corners(alpha: Tensor) -> Tensor:
    """Alpha (N x side x side in [0, 1]) with that of the neighbors right and below, packed: N x (side * side)."""
    padded = F.pad(alpha.mul(255).round_().to(torch.uint8), (0, 1, 0, 1))
    here, below = padded[:, :-1], padded[:, 1:]
    around = torch.stack((here[..., :-1], here[..., 1:], below[..., :-1], below[..., 1:]), dim=-1)
    return around.view(torch.int32).flatten(1)


@lru_cache(maxsize=4)
def procedural_bank(side: int = 256, each: int = 16, seed: int = 0) -> TextureBank:
    """A bank made from numbers alone: `each` textures of every family and twice as many cut-outs, decided by the seed.

    It is made once a process; do not write into it.
    """
    surfaces, cutouts = _procedural(side, each, seed)
    return build_bank(surfaces, cutouts, side)


@lru_cache(maxsize=4)
def _procedural(side: int, each: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """(surfaces, cut-outs) as `bank_of` takes them."""

    def made(family: int, function: Callable[[int, torch.Generator], Tensor], count: int) -> Iterator[Tensor]:
        # A generator each: more of one family leaves the others as they are.
        generator = torch.Generator().manual_seed(1_000_003 * seed + family)
        for _ in range(count):
            yield function(side, generator).mul(255).round_().to(torch.uint8)

    surfaces = [texture for number, family in enumerate(FAMILIES.values()) for texture in made(number, family, each)]
    return surfaces, [*made(len(FAMILIES), cutout, 2 * each)]


def bank_from_folder(
    folder: str | os.PathLike[str],
    side: int = 256,
    limit: int | None = None,
    procedural: bool = True,
    device: torch.device | str = "cpu",
) -> TextureBank:
    """Read every image under a folder, in the order of their paths, into a bank.

    An image with transparency becomes a cut-out: cropped to what is seen and fitted into the square. Any other becomes
    a surface: its central square, or the two at its ends where it is much longer than wide. side: texels along a
    texture. limit: read that many images, spread evenly over those there are. procedural: join `procedural_bank`'s
    textures after the folder's own, so that there always are surfaces and cut-outs. device: where it is made.
    """
    paths = _image_paths(Path(folder))
    if limit is not None and limit < len(paths):
        paths = [paths[number * len(paths) // limit] for number in range(limit)]
    with ThreadPoolExecutor() as pool:
        textures = [texture for several in pool.map(lambda path: _textures(path, side), paths) for texture in several]
    surfaces, cutouts = ([texture for texture in textures if len(texture) == channels] for channels in (3, 4))
    if procedural:
        more_surfaces, more_cutouts = _procedural(side, 16, 0)
        surfaces, cutouts = [*surfaces, *more_surfaces], [*cutouts, *more_cutouts]
    if not surfaces:
        raise InputError(f"{folder} holds no opaque image; add photographs to it, or join the procedural textures.")
    return build_bank(surfaces, cutouts, side, device)


def _image_paths(folder: Path) -> list[Path]:
    """Every image under a folder by the order of its path inside it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the path of a folder of images.")
    found = (path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.name[0] != ".")
    paths = sorted((path for path in found if path.is_file()), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise InputError(f"{folder} has no images in it; put png, jpeg, webp, bmp, tiff or ppm files there.")
    return paths


def _textures(path: Path, side: int) -> list[Tensor]:
    """The textures that an image gives, uint8: none, a cut-out 4 x side x side, or surfaces 3 x side x side."""
    pixels = read_cutout(path)
    alpha = pixels[..., 3]
    if (alpha < 0.5).mean() >= _LEAST_CLEAR:
        return [_as_texture(_fitted(pixels, side))] if (alpha >= 0.5).mean() >= _LEAST_COVER else []
    height, width = alpha.shape
    square = min(height, width)
    spare = max(height, width) - square
    places = (0, spare) if square + spare >= _TWO_SQUARES * square else (spare // 2,)
    cuts = (pixels[at : at + square, :, :3] if height > width else pixels[:, at : at + square, :3] for at in places)
    return [_as_texture(cv2.resize(cut, (side, side), interpolation=cv2.INTER_AREA)) for cut in cuts]


def _fitted(pixels: npt.NDArray[np.float32], side: int) -> npt.NDArray[np.float32]:
    """Crop HxWx4 to what is seen and center it in a square with a margin, its proportions kept: side x side x 4."""
    seen = pixels[..., 3] > _UNSEEN
    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    cut = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = (side - 2 * _MARGIN) / max(cut.shape[:2])
    height, width = (max(1, round(extent * scale)) for extent in cut.shape[:2])
    # Colors weigh as much as they are seen, so that what lies hidden under the transparent does not leak out.
    weighted = np.concatenate((cut[..., :3] * cut[..., 3:], cut[..., 3:]), axis=2)
    fitted = np.zeros((side, side, 4), dtype=np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    place = fitted[top : top + height, left : left + width]
    place[:] = cv2.resize(weighted, (width, height), interpolation=cv2.INTER_AREA)
    place[..., :3] /= np.maximum(place[..., 3:], 1e-6)
    return fitted


def _as_texture(pixels: npt.NDArray[np.floating | np.integer]) -> Tensor:
    """HxWxC in [0, 1] as uint8 CxHxW."""
    rounded = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(rounded.transpose(2, 0, 1)))
