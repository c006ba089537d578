"""Triton kernels for ray casting, one block of rays per program.

A block iterates over the primitives of its scene and writes only the nearest hit. The kernels mirror `surface._nearest`
and `surface._blocked` step by step; tests compare them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.synthetic import surface

NEAREST = tl.constexpr(surface.NEAREST)
FAR = tl.constexpr(float("inf"))
WHOLE = tl.constexpr(12582912.0)
"""1.5 * 2^23: adding and subtracting it rounds a float32 to an integer."""
BLOCK = 512

# Table rows: see `scene`. All kernels take pointers to row 0 of one primitive and the stride between rows.


@triton.jit
def multiply(matrix, step, x, y, z):
    """Multiply a 3x3 matrix, nine rows of a table, with a vector."""
    a = tl.load(matrix) * x + tl.load(matrix + step) * y + tl.load(matrix + 2 * step) * z
    b = tl.load(matrix + 3 * step) * x + tl.load(matrix + 4 * step) * y + tl.load(matrix + 5 * step) * z
    c = tl.load(matrix + 6 * step) * x + tl.load(matrix + 7 * step) * y + tl.load(matrix + 8 * step) * z
    return a, b, c


@triton.jit
def _plane(ox, oy, oz, dx, dy, dz):
    """Intersect rays (origin o, direction d, local coordinates) with the plane z = 0: depth, x and y."""
    depth = -oz / dz
    return depth, ox + depth * dx, oy + depth * dy


@triton.jit
def ripple(x, y, row, step):
    """Displace points of a flat primitive by its two sine waves."""
    wave = row + 24 * step
    x = x + tl.load(wave) * tl.sin(tl.load(wave + step) * y + tl.load(wave + 2 * step))
    y = y + tl.load(wave + 3 * step) * tl.sin(tl.load(wave + 4 * step) * x + tl.load(wave + 5 * step))
    return x, y


@triton.jit
def _rectangle(ox, oy, oz, dx, dy, dz):
    """Return the depth of the hit of |x|, |y| <= 1 in the plane, or infinity; also below, for other shapes."""
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    return tl.where((tl.abs(x) <= 1) & (tl.abs(y) <= 1), depth, FAR)


@triton.jit
def _blob(ox, oy, oz, dx, dy, dz, row, outline, step):
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    x, y = ripple(x, y, row, step)
    radius = tl.sqrt(tl.maximum(x * x + y * y, 1e-12))
    c, s = x / radius, y / radius
    c2, s2 = c * c - s * s, 2 * s * c
    c3, s3 = c2 * c - s2 * s, s2 * c + c2 * s
    c5, s5 = c2 * c3 - s2 * s3, s2 * c3 + c2 * s3
    reach = tl.load(outline) + tl.load(outline + step) * c2 + tl.load(outline + 2 * step) * s2
    reach += tl.load(outline + 3 * step) * c3 + tl.load(outline + 4 * step) * s3
    reach += tl.load(outline + 5 * step) * c5 + tl.load(outline + 6 * step) * s5
    return tl.where(radius <= reach, depth, FAR)


@triton.jit
def _texel(coordinate, side):
    """Return the texel below a coordinate in -1 .. 1, and the fraction."""
    position = (0.5 * coordinate + 0.5) * side - 0.5
    # NaN compares false and becomes 0, where every silhouette is empty.
    position = tl.where(position > 0, tl.minimum(position, side - 1.001), 0.0)
    whole = tl.minimum(position.to(tl.int32), side - 2)
    return whole, position - whole


@triton.jit
def _cutout(ox, oy, oz, dx, dy, dz, row, step, texture, silhouettes, side, surfaces):
    depth, x, y = _plane(ox, oy, oz, dx, dy, dz)
    x, y = ripple(x, y, row, step)
    left, x = _texel(x, side)
    top, y = _texel(y, side)
    start = tl.maximum(tl.load(texture).to(tl.int32) - (surfaces - 1), 0) * side * side
    corners = tl.load(silhouettes + start + top * side + left)
    a, b = (corners & 255).to(tl.float32), ((corners >> 8) & 255).to(tl.float32)
    c, d = ((corners >> 16) & 255).to(tl.float32), ((corners >> 24) & 255).to(tl.float32)
    upper, lower = a + (b - a) * x, c + (d - c) * x
    return tl.where(upper + (lower - upper) * y >= 127.5, depth, FAR)


@triton.jit
def _span(start, along):
    """Return the depths at which rays enter and leave the slab -1 .. 1 of one axis."""
    inverse = 1.0 / tl.where(tl.abs(along) < 1e-12, 1e-12, along)
    middle, half = -start * inverse, tl.abs(inverse)
    return middle - half, middle + half


@triton.jit
def _box(ox, oy, oz, dx, dy, dz, WITHIN: tl.constexpr):
    near_x, far_x = _span(ox, dx)
    near_y, far_y = _span(oy, dy)
    near_z, far_z = _span(oz, dz)
    enter = tl.maximum(tl.maximum(near_x, near_y), near_z)
    leave = tl.minimum(tl.minimum(far_x, far_y), far_z)
    return tl.where(enter <= leave, leave if WITHIN else enter, FAR)


@triton.jit
def _ball(ox, oy, oz, dx, dy, dz, WITHIN: tl.constexpr):
    squared = dx * dx + dy * dy + dz * dz
    closest = -(ox * dx + oy * dy + oz * dz) / squared
    x, y, z = ox + closest * dx, oy + closest * dy, oz + closest * dz
    within = 1 - (x * x + y * y + z * z)
    reach = tl.sqrt(tl.maximum(within, 0.0) / squared)
    return tl.where(within >= 0, closest + reach if WITHIN else closest - reach, FAR)


@triton.jit
def _hit_depth(KIND: tl.constexpr, ox, oy, oz, dx, dy, dz, row, outline, step, texture, silhouettes, side, surfaces):
    if KIND == 0:
        return _rectangle(ox, oy, oz, dx, dy, dz)
    elif KIND == 1:
        return _blob(ox, oy, oz, dx, dy, dz, row, outline, step)
    elif KIND == 2:
        return _cutout(ox, oy, oz, dx, dy, dz, row, step, texture, silhouettes, side, surfaces)
    elif KIND == 3:
        return _box(ox, oy, oz, dx, dy, dz, False)
    elif KIND == 4:
        return _ball(ox, oy, oz, dx, dy, dz, False)
    elif KIND == 5:
        return _box(ox, oy, oz, dx, dy, dz, True)
    else:
        return _ball(ox, oy, oz, dx, dy, dz, True)


@triton.jit
def nearest_hit(
    table, alive, outline, texture, silhouettes, bounds, x, y, low_x, high_x, low_y, high_y, scene,
    primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5, e6, e7,
    CULLED: tl.constexpr,
):  # fmt: skip
    """Return depth and primitive index of the first hits of rays (x, y, 1).

    CULLED: skip primitives whose bounds do not overlap low .. high; see `shading_kernels`.
    """
    best, which = tl.full(x.shape, FAR, tl.float32), tl.zeros(x.shape, tl.int32)
    ends = (e0, e1, e2, e3, e4, e5, e6, e7)
    for KIND in tl.static_range(7):
        for number in range(ends[KIND], ends[KIND + 1]):
            own = scene * primitives + number
            active = tl.load(alive + own) != 0
            if CULLED:
                active = active & overlap(bounds + own, step, low_x, high_x, low_y, high_y)
            if active:
                row = table + own
                dx, dy, dz = multiply(row, step, x, y, 1.0)
                ox, oy, oz = tl.load(row + 9 * step), tl.load(row + 10 * step), tl.load(row + 11 * step)
                hit = _hit_depth(
                    KIND, ox, oy, oz, dx, dy, dz, row, outline + own, step, texture + own, silhouettes, side, surfaces
                )
                closer = (hit > NEAREST) & (hit < best)
                best, which = tl.where(closer, hit, best), tl.where(closer, number, which)
    return best, which


@triton.jit
def overlap(bound, step, low_x, high_x, low_y, high_y):
    """Test whether the bounds of one primitive, four rows, overlap a rectangle."""
    across = (tl.load(bound) <= high_x) & (tl.load(bound + step) >= low_x)
    return across & (tl.load(bound + 2 * step) <= high_y) & (tl.load(bound + 3 * step) >= low_y)


@triton.jit
def in_shadow(
    table, casts, outline, texture, silhouettes, bounds, sx, sy, sz, x, y, z, owner, low_x, high_x, low_y, high_y,
    scene, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5,
    CULLED: tl.constexpr,
):  # fmt: skip
    """Test whether a primitive other than the owner lies between points and the sun."""
    shadowed = tl.zeros(x.shape, tl.int1)
    ends = (e0, e1, e2, e3, e4, e5)
    for KIND in tl.static_range(5):
        for number in range(ends[KIND], ends[KIND + 1]):
            own = scene * primitives + number
            active = tl.load(casts + own) != 0
            if CULLED:
                active = active & overlap(bounds + own, step, low_x, high_x, low_y, high_y)
            if active:
                row = table + own
                dx, dy, dz = multiply(row, step, sx, sy, sz)
                ox, oy, oz = multiply(row, step, x, y, z)
                ox += tl.load(row + 9 * step)
                oy += tl.load(row + 10 * step)
                oz += tl.load(row + 11 * step)
                hit = _hit_depth(
                    KIND, ox, oy, oz, dx, dy, dz, row, outline + own, step, texture + own, silhouettes, side, surfaces
                )
                shadowed = shadowed | ((hit > NEAREST) & (hit < FAR) & (owner != number))
    return shadowed


@triton.jit
def directions(lens, x, y):
    """Compute rays through pixels: x and y of (x, y, 1). lens: of the scene."""
    across = tl.div_rn(x - tl.load(lens + 2), tl.load(lens))
    return across, tl.div_rn(y - tl.load(lens + 3), tl.load(lens + 1))


@triton.jit
def rounded(value):
    """Round to the nearest integer, halves to even, for magnitudes below 2^22."""
    return (value + WHOLE) - WHOLE


@triton.jit
def _nearest(
    table, alive, outline, texture, silhouettes, across, down, depths, indices,
    rays, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5, e6, e7,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    x, y = tl.load(across + offset, inside, 0.0), tl.load(down + offset, inside, 0.0)
    best, which = nearest_hit(
        table, alive, outline, texture, silhouettes, table, x, y, 0.0, 0.0, 0.0, 0.0, scene,
        primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, e6, e7, False,
    )  # fmt: skip
    tl.store(depths + offset, best, inside)
    tl.store(indices + offset, which.to(tl.int64), inside)


@triton.jit
def _blocked(
    table, alive, outline, texture, silhouettes, sun, points, owners, hidden,
    rays, apart, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    x, y = tl.load(points + offset, inside, 0.0), tl.load(points + apart + offset, inside, 0.0)
    z = tl.load(points + 2 * apart + offset, inside, 0.0)
    owner = tl.load(owners + offset, inside, 0)
    sx, sy, sz = tl.load(sun + 3 * scene), tl.load(sun + 3 * scene + 1), tl.load(sun + 3 * scene + 2)
    shadowed = in_shadow(
        table, alive, outline, texture, silhouettes, table, sx, sy, sz, x, y, z, owner, 0.0, 0.0, 0.0, 0.0, scene,
        primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, False,
    )  # fmt: skip
    tl.store(hidden + offset, shadowed, inside)


def ends_of(counts: tuple[int, ...]) -> list[int]:
    """Return the start index of each kind of primitive, and the end of the last."""
    return [sum(counts[:number]) for number in range(len(counts) + 1)]


def nearest(
    table: Tensor, alive: Tensor, outline: Tensor, texture: Tensor, silhouettes: Tensor, side: int, surfaces: int,
    counts: tuple[int, ...], x: Tensor, y: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Run `surface._nearest` in one kernel: depth and primitive index, B x N each."""
    x, y = x.contiguous(), y.contiguous()
    batch, rays = x.shape
    primitives = alive.shape[1]
    depth, index = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    _nearest[(triton.cdiv(rays, BLOCK), batch)](
        table, alive.view(torch.uint8), outline, texture, silhouettes, x, y, depth, index,
        rays, primitives, batch * primitives, side, surfaces, *ends_of(counts), SIZE=BLOCK,
    )  # fmt: skip
    return depth, index


def blocked(
    table: Tensor, alive: Tensor, outline: Tensor, texture: Tensor, silhouettes: Tensor, side: int, surfaces: int,
    counts: tuple[int, ...], sun: Tensor, points: Tensor, own: Tensor,
) -> Tensor:  # fmt: skip
    """Run `surface._blocked` in one kernel: B x N, bool."""
    points, own = points.contiguous(), own.contiguous()
    batch, rays = own.shape
    primitives = alive.shape[1]
    hidden = torch.empty_like(own, dtype=torch.bool)
    _blocked[(triton.cdiv(rays, BLOCK), batch)](
        table, alive.view(torch.uint8), outline, texture, silhouettes, sun.contiguous(), points, own,
        hidden.view(torch.uint8),
        rays, batch * rays, primitives, batch * primitives, side, surfaces, *ends_of(counts)[:6], SIZE=BLOCK,
    )  # fmt: skip
    return hidden
