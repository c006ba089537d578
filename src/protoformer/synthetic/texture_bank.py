"""Texture bank: packed textures with mipmaps, sampled by any number of rays at once."""

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
from protoformer.io.files import PathLike
from protoformer.io.image import read_cutout
from protoformer.synthetic.textures import FAMILIES, cutout

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm"})
_MARGIN = 2  # empty texels around a cutout
_MIN_COVERAGE = 0.03  # minimum opaque fraction of a cutout
_MIN_TRANSPARENT = 0.01  # minimum transparent fraction of a cutout; other images are opaque
_INVISIBLE_ALPHA = 0.05  # alpha below which a pixel counts as invisible
_TWO_SQUARES_ASPECT = 1.6  # images at least this elongated give two textures
_CHUNK = 8  # textures per mipmap pass: few enough to stay in the cache
_RELIABLE_ALPHA = 0.25  # below this alpha colors are weighted down: image editors leave arbitrary values there


@dataclass(frozen=True)
class TextureBank:
    """Square textures with mipmaps; level l holds the 2 x 2 means of level l - 1, down to 1 x 1.

    Attributes:
        texels: int32, RGBA with 8 bits each, packed as r | g << 8 | b << 16 | a << 24. Texture m at level l, row y,
            column x is at m * stride + offset(l) + y * (side >> l) + x.
        silhouettes: int32, (cutouts + 1) * side * side. The four bytes of a texel hold its alpha and that of its
            neighbors to the right, below, and below to the right, so that one load suffices for bilinear interpolation.
            The first silhouette is solid and stands for every opaque texture.
        side: Texels along a texture, a power of two of at least 4.
        surfaces: Number of opaque textures; they come first.
        cutouts: Number of textures with a silhouette in their alpha, which is empty along the border.
    """

    texels: Tensor
    silhouettes: Tensor
    side: int
    surfaces: int
    cutouts: int

    def __post_init__(self) -> None:
        if self.side < 4 or self.side & (self.side - 1):
            raise InputError(f"the texture side is {self.side} texels; choose a power of two of at least 4.")
        if self.count * self.stride >= 2**31:
            raise InputError(f"{self.count} textures of {self.side} texels do not fit into a bank; set a limit.")

    @property
    def count(self) -> int:
        """Total number of textures."""
        return self.surfaces + self.cutouts

    @property
    def levels(self) -> int:
        """Number of mipmap levels, from side x side down to 1 x 1."""
        return self.side.bit_length()

    @property
    def stride(self) -> int:
        """Texels of one texture with all its levels."""
        return (4 * self.side * self.side - 1) // 3

    def offset(self, level: int) -> int:
        """Return the offset of a level within a texture, in texels."""
        return (self.side**2 - (self.side >> level) ** 2) * 4 // 3

    def to(self, device: torch.device | str) -> "TextureBank":
        """Return the bank on a device."""
        return replace(self, texels=self.texels.to(device), silhouettes=self.silhouettes.to(device))

    def level(self, texture: int, level: int) -> Tensor:
        """Return one texture at one level: 4 x (side >> level) x (side >> level), uint8 RGBA."""
        side, start = self.side >> level, texture * self.stride + self.offset(level)
        packed = self.texels[start : start + side * side].view(side, side)
        return torch.stack([(packed >> shift) & 255 for shift in (0, 8, 16, 24)]).to(torch.uint8)

    def sample(self, texture: Tensor, u: Tensor, v: Tensor, level: Tensor) -> Tensor:
        """Sample colors by trilinear interpolation.

        Texture and level may have any shape that expands to that of u and v, [...].

        Args:
            texture: int, 0 .. count - 1.
            u: [...], float, to the right; 0 .. 1 spans one texture, mirrored beyond.
            v: [...], float, down, in the same way.
            level: float, mipmap level, 0 is the finest; clamped to the existing levels. Non-finite values give NaN.

        Returns:
            4 x [...], RGBA in [0, 1], not premultiplied.
        """
        level = level.clamp(0, self.levels - 1)
        # At the coarsest level use the last two levels, so that a next one always exists.
        floor_level = level.floor().clamp_(max=self.levels - 2)
        blend = level.sub_(floor_level)
        size = torch.bitwise_right_shift(self.side, floor_level.int().clamp_(0, self.levels - 2))
        start = texture.int() * self.stride
        u, v = _mirror(u), _mirror(v)
        fine, coarse = self._bilinear(start, size, u, v), self._bilinear(start, size >> 1, u, v)
        channels = zip(fine, coarse, _CHANNELS, strict=True)
        return torch.stack([torch.lerp(a, b, blend).div_(channel.white) for a, b, channel in channels])

    def _bilinear(self, start: Tensor, size: Tensor, u: Tensor, v: Tensor) -> list[Tensor]:
        """Sample the four packed channels at levels `size` texels wide of the textures that begin at `start`."""
        start = start + (self.side**2 - size * size) * 4 // 3
        width, last = size.float(), size - 1
        x, y = (u * width).sub_(0.5).clamp_(min=0), (v * width).sub_(0.5).clamp_(min=0)
        # Clamped again as integers, because non-finite values convert to arbitrary ones.
        left, top = x.int().clamp_(min=0), y.int().clamp_(min=0)
        right, bottom = torch.minimum(left + 1, last), torch.minimum(top + 1, last)
        x, y = x.frac_(), y.frac_()
        upper, lower = top.mul_(size).add_(start), bottom.mul_(size).add_(start)
        corners = [_take(self.texels, row + column) for row in (upper, lower) for column in (left, right)]
        channels = []
        for channel in _CHANNELS:
            shifted = [corner >> channel.shift for corner in corners] if channel.shift else corners
            a, b, c, d = ((corner & channel.mask).float() for corner in shifted)
            channels.append(torch.lerp(torch.lerp(a, b, x), torch.lerp(c, d, x), y))
        return channels

    def covers(self, texture: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Test where silhouettes are solid: bilinear alpha of the finest level of at least a half.

        Coordinates as in `sample`. An opaque texture covers everything; a cutout is empty beyond 0 .. 1.
        """
        x, y = (self._to_texels(coordinate) for coordinate in (u, v))
        left, top = (position.int().clamp_(0, self.side - 2) for position in (x, y))
        start = (texture.int() - (self.surfaces - 1)).clamp_(min=0).mul_(self.side**2)
        corners = _take(self.silhouettes, top.mul_(self.side).add_(left).add_(start))
        x, y = x.frac_(), y.frac_()
        a, b, c, d = (((corners >> shift) & 255).float() for shift in (0, 8, 16, 24))
        return torch.lerp(torch.lerp(a, b, x), torch.lerp(c, d, x), y) >= 127.5

    def _to_texels(self, coordinate: Tensor) -> Tensor:
        """Convert to texels from the first texel's center, clamped to below the last one's; both are empty."""
        return (coordinate * self.side).sub_(0.5).clamp_(0, self.side - 1.001)


class _Channel(NamedTuple):
    """Layout of a channel in a packed texel: shift, mask after the shift, and the masked value of white."""

    shift: int
    mask: int
    white: float


# Red, green and blue are used in place, scaled by a power of two; alpha contains the sign bit and must be shifted.
_CHANNELS = (
    _Channel(0, 0xFF, 255.0),
    _Channel(0, 0xFF00, 255.0 * 2**8),
    _Channel(0, 0xFF0000, 255.0 * 2**16),
    _Channel(24, 0xFF, 255.0),
)


def _mirror(coordinate: Tensor) -> Tensor:
    """Fold coordinates into 0 .. 1 by reflection: the distance to the nearest even number."""
    return (coordinate * 0.5).round_().mul_(-2).add_(coordinate).abs_()


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Gather elements of a flat tensor by an index of any shape."""
    return values.index_select(0, index.reshape(-1)).view(index.shape)


def build_bank(
    surfaces: Sequence[Tensor], cutouts: Sequence[Tensor], side: int, device: torch.device | str = "cpu"
) -> TextureBank:
    """Pack textures into a bank.

    The alpha of cutouts is cleared along the border; invisible texels take their colors from nearby visible ones.

    Args:
        surfaces: Opaque textures, uint8, 3 x side x side RGB.
        cutouts: Cutouts, uint8, 4 x side x side RGBA.
        side: Texels along a texture.
        device: Device on which the mipmaps are built and the bank is stored.
    """
    stride, count = (4 * side * side - 1) // 3, len(surfaces) + len(cutouts)
    texels = torch.empty(count, stride, dtype=torch.int32, device=device)
    silhouettes = [torch.full((1, side * side), -1, dtype=torch.int32, device=device)]
    for first in range(0, len(surfaces), _CHUNK):
        color = torch.stack([*surfaces[first : first + _CHUNK]]).to(device).float().div_(255)
        solid = torch.cat((color, torch.ones_like(color[:, :1])), dim=1)
        texels[first : first + len(solid)] = _pack_levels(_build_mipmaps(solid))
    for first in range(0, len(cutouts), _CHUNK):
        shapes = torch.stack([*cutouts[first : first + _CHUNK]]).to(device).float().div_(255)
        shapes[:, 3] *= F.pad(torch.ones(side - 2, side - 2, device=device), (1, 1, 1, 1))
        index = len(surfaces) + first
        texels[index : index + len(shapes)] = _pack_levels(_build_cutout_mipmaps(shapes))
        silhouettes.append(_pack_corners(shapes[:, 3]))
    return TextureBank(texels.view(-1), torch.cat(silhouettes).view(-1), side, len(surfaces), len(cutouts))


def _build_mipmaps(finest: Tensor) -> list[Tensor]:
    """Return all levels of N x C x side x side, the finest first."""
    levels = [finest]
    while levels[-1].shape[-1] > 1:
        levels.append(F.avg_pool2d(levels[-1], 2))
    return levels


def _build_cutout_mipmaps(shapes: Tensor) -> list[Tensor]:
    """Return all levels of cutouts, N x 4 x side x side.

    Colors are means weighted by alpha. Where alpha is close to 0 they come from coarser levels, so that interpolation
    across an outline never mixes in undefined colors.
    """
    weighted = _build_mipmaps(torch.cat((shapes[:, :3] * shapes[:, 3:], shapes[:, 3:]), dim=1))
    filled: list[Tensor] = []
    color = torch.zeros_like(weighted[-1][:, :3])
    for level in reversed(weighted):
        alpha = level[:, 3:]
        level_color = level[:, :3] / alpha.clamp_min(1e-6)
        weight = (alpha / _RELIABLE_ALPHA).clamp_(max=1) if filled else (alpha > 0).float()
        color = torch.lerp(F.interpolate(color, size=level.shape[-2:], mode="bilinear"), level_color, weight)
        filled.append(torch.cat((color, alpha), dim=1))
    return filled[::-1]


def _pack_levels(levels: list[Tensor]) -> Tensor:
    """Pack levels N x 4 x size x size in [0, 1] to texels, N x stride."""
    rounded = [level.mul(255).round_().to(torch.uint8).permute(0, 2, 3, 1).flatten(1, 2) for level in levels]
    # All platforms of PyTorch are little-endian.
    return torch.cat(rounded, dim=1).view(torch.int32)[..., 0]


def _pack_corners(alpha: Tensor) -> Tensor:
    """Pack alpha (N x side x side in [0, 1]) with that of the neighbors right and below: N x (side * side)."""
    padded = F.pad(alpha.mul(255).round_().to(torch.uint8), (0, 1, 0, 1))
    upper, lower = padded[:, :-1], padded[:, 1:]
    corners = torch.stack((upper[..., :-1], upper[..., 1:], lower[..., :-1], lower[..., 1:]), dim=-1)
    return corners.view(torch.int32).flatten(1)


@lru_cache(maxsize=4)
def procedural_bank(side: int = 256, each: int = 16, seed: int = 0) -> TextureBank:
    """Build a bank of `each` procedural textures per family and twice as many cutouts; do not modify it.

    It is cached per process.
    """
    surfaces, cutouts = _procedural_textures(side, each, seed)
    return build_bank(surfaces, cutouts, side)


@lru_cache(maxsize=4)
def _procedural_textures(side: int, each: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Generate (surfaces, cutouts) as `build_bank` takes them."""

    def generate(family: int, function: Callable[[int, torch.Generator], Tensor], count: int) -> Iterator[Tensor]:
        # One generator per family: more textures of one family leave the others unchanged.
        generator = torch.Generator().manual_seed(1_000_003 * seed + family)
        for _ in range(count):
            yield function(side, generator).mul(255).round_().to(torch.uint8)

    surfaces = [texture for index, family in enumerate(FAMILIES.values()) for texture in generate(index, family, each)]
    return surfaces, [*generate(len(FAMILIES), cutout, 2 * each)]


def bank_from_folder(
    folder: PathLike,
    side: int = 256,
    limit: int | None = None,
    procedural: bool = True,
    device: torch.device | str = "cpu",
) -> TextureBank:
    """Build a bank from every image under a folder, in the order of their paths.

    An image with transparency becomes a cutout, cropped to its visible part and fitted into the square. Any other image
    becomes an opaque texture: its central square, or the squares at both ends if it is elongated.

    Args:
        folder: Folder of images; subfolders are included.
        side: Texels along a texture.
        limit: Maximum number of images, sampled evenly from the folder; all if None.
        procedural: Whether to append the procedural textures, so that both kinds always exist.
        device: Device on which the bank is built.
    """
    paths = _image_paths(Path(folder))
    if limit is not None and limit < len(paths):
        paths = [paths[index * len(paths) // limit] for index in range(limit)]
    with ThreadPoolExecutor() as pool:
        textures = [
            texture for per_image in pool.map(lambda path: _read_textures(path, side), paths) for texture in per_image
        ]
    surfaces, cutouts = ([texture for texture in textures if len(texture) == channels] for channels in (3, 4))
    if procedural:
        extra_surfaces, extra_cutouts = _procedural_textures(side, 16, 0)
        surfaces, cutouts = [*surfaces, *extra_surfaces], [*cutouts, *extra_cutouts]
    if not surfaces:
        raise InputError(f"{folder} holds no opaque image; add photographs to it, or include the procedural textures.")
    return build_bank(surfaces, cutouts, side, device)


def _image_paths(folder: Path) -> list[Path]:
    """Return every image under a folder, sorted by relative path."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the path of a folder of images.")
    candidates = (path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.name[0] != ".")
    paths = sorted((path for path in candidates if path.is_file()), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise InputError(f"{folder} has no images in it; put png, jpeg, webp, bmp, tiff or ppm files there.")
    return paths


def _read_textures(path: Path, side: int) -> list[Tensor]:
    """Read the textures of an image, uint8: none, one cutout 4 x side x side, or surfaces 3 x side x side."""
    pixels = read_cutout(path)
    alpha = pixels[..., 3]
    if (alpha < 0.5).mean() >= _MIN_TRANSPARENT:
        return [_to_texture(_fit_cutout(pixels, side))] if (alpha >= 0.5).mean() >= _MIN_COVERAGE else []
    height, width = alpha.shape
    square = min(height, width)
    excess = max(height, width) - square
    offsets = (0, excess) if square + excess >= _TWO_SQUARES_ASPECT * square else (excess // 2,)
    crops = (
        pixels[offset : offset + square, :, :3] if height > width else pixels[:, offset : offset + square, :3]
        for offset in offsets
    )
    return [_to_texture(cv2.resize(crop, (side, side), interpolation=cv2.INTER_AREA)) for crop in crops]


def _fit_cutout(pixels: npt.NDArray[np.float32], side: int) -> npt.NDArray[np.float32]:
    """Crop H x W x 4 to its visible part and center it in a square with a margin: side x side x 4."""
    visible = pixels[..., 3] > _INVISIBLE_ALPHA
    rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
    crop = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = (side - 2 * _MARGIN) / max(crop.shape[:2])
    height, width = (max(1, round(extent * scale)) for extent in crop.shape[:2])
    # Weight colors by alpha, so that those of transparent pixels do not bleed in.
    weighted = np.concatenate((crop[..., :3] * crop[..., 3:], crop[..., 3:]), axis=2)
    fitted = np.zeros((side, side, 4), dtype=np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    region = fitted[top : top + height, left : left + width]
    region[:] = cv2.resize(weighted, (width, height), interpolation=cv2.INTER_AREA)
    region[..., :3] /= np.maximum(region[..., 3:], 1e-6)
    return fitted


def _to_texture(pixels: npt.NDArray[np.floating | np.integer]) -> Tensor:
    """Convert H x W x C in [0, 1] to uint8 C x H x W."""
    rounded = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(rounded.transpose(2, 0, 1)))
