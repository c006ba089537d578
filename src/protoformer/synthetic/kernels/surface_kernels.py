"""Triton kernels for the appearance and the motion of hits.

They mirror `surface.plain_surface` and `Renderer.moved` step by step, and tests compare them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.synthetic import renderer as render
from protoformer.synthetic import surface as surfaces_of
from protoformer.synthetic.kernels.casting_kernels import (
    BLOCK,
    NEAREST,
    directions,
    ends_of,
    multiply,
    nearest_hit,
    ripple,
    rounded,
)
from protoformer.synthetic.scene import Frame
from protoformer.synthetic.surface import Hits, Shapes

MIN_FACING = tl.constexpr(surfaces_of.MIN_FACING)
SOFTNESS = tl.constexpr(surfaces_of.SOFTNESS)


@triton.jit
def _mirrored(coordinate):
    """Fold coordinates into 0 .. 1 by reflection."""
    folded = coordinate - 2 * tl.floor(0.5 * coordinate)
    return tl.minimum(folded, 2 - folded)


@triton.jit
def _bilinear(texels, start, size, side, u, v):
    start = start + (side * side - size * size) * 4 // 3
    width = size.to(tl.float32)
    x, y = tl.maximum(u * width - 0.5, 0.0), tl.maximum(v * width - 0.5, 0.0)
    left, top = tl.minimum(x.to(tl.int32), size - 1), tl.minimum(y.to(tl.int32), size - 1)
    x, y = x - tl.floor(x), y - tl.floor(y)
    right, bottom = tl.minimum(left + 1, size - 1), tl.minimum(top + 1, size - 1)
    a, b = tl.load(texels + start + top * size + left), tl.load(texels + start + top * size + right)
    c, d = tl.load(texels + start + bottom * size + left), tl.load(texels + start + bottom * size + right)
    red = _between(a & 255, b & 255, c & 255, d & 255, x, y)
    green = _between((a >> 8) & 255, (b >> 8) & 255, (c >> 8) & 255, (d >> 8) & 255, x, y)
    blue = _between((a >> 16) & 255, (b >> 16) & 255, (c >> 16) & 255, (d >> 16) & 255, x, y)
    return red, green, blue


@triton.jit
def _between(a, b, c, d, x, y):
    a, b, c, d = a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), d.to(tl.float32)
    upper, lower = a + (b - a) * x, c + (d - c) * x
    return upper + (lower - upper) * y


@triton.jit
def to_local(row, step, rx, ry, depth):
    """Transform a hit to the primitive's local coordinates."""
    ox, oy, oz = multiply(row, step, rx * depth, ry * depth, depth)
    ox += tl.load(row + 9 * step)
    oy += tl.load(row + 10 * step)
    oz += tl.load(row + 11 * step)
    return ox, oy, oz


@triton.jit
def face_of(ox, oy, oz, flat):
    """Return the axis of the face, its side, and both encoded in one number."""
    ax, ay, az = tl.abs(ox), tl.abs(oy), tl.abs(oz)
    axis = tl.where(az > tl.maximum(ax, ay), 2, tl.where(ay > ax, 1, 0))
    along = tl.where(axis == 0, ox, tl.where(axis == 1, oy, oz))
    side_sign = tl.where(along > 0, 1.0, -1.0)
    face = 2 * axis + (along > 0).to(tl.int32)
    axis, side_sign, face = tl.where(flat, 2, axis), tl.where(flat, -1.0, side_sign), tl.where(flat, 4, face)
    return axis, side_sign, face


@triton.jit
def shade_hits(
    table, looks, texture, texels, lens, light, scene, index, depth, rx, ry,
    primitives, step, side, surfaces, levels, stride,
    boxes, balls, rooms, skies,
):  # fmt: skip
    """Compute color, light, gloss and normal of hits."""
    row, own = table + scene * primitives + index, looks + scene * primitives + index
    flat, around = index < boxes, index >= rooms
    is_round = ((index >= balls) & (index < rooms)) | (index >= skies)
    ox, oy, oz = to_local(row, step, rx, ry, depth)
    mx, my = ripple(ox, oy, row, step)
    mx, my = tl.where(flat, mx, ox), tl.where(flat, my, oy)
    axis, side_sign, face = face_of(ox, oy, oz, flat)
    # Normals: in local coordinates, then in camera coordinates, then in world coordinates at time 0.
    nx = tl.where(is_round, ox, tl.where(axis == 0, side_sign, 0.0))
    ny = tl.where(is_round, oy, tl.where(axis == 1, side_sign, 0.0))
    nz = tl.where(is_round, oz, tl.where(axis == 2, side_sign, 0.0))
    cx = tl.load(row) * nx + tl.load(row + 3 * step) * ny + tl.load(row + 6 * step) * nz
    cy = tl.load(row + step) * nx + tl.load(row + 4 * step) * ny + tl.load(row + 7 * step) * nz
    cz = tl.load(row + 2 * step) * nx + tl.load(row + 5 * step) * ny + tl.load(row + 8 * step) * nz
    length = 1.0 / tl.sqrt(tl.maximum(cx * cx + cy * cy + cz * cz, 1e-24))
    length = tl.where(cx * rx + cy * ry + cz > 0, -length, length)
    cx, cy, cz = cx * length, cy * length, cz * length
    lx, ly, lz = multiply(own + 3 * step, step, nx, ny, nz)
    sx, sy, sz = tl.load(light + 4 * scene), tl.load(light + 4 * scene + 1), tl.load(light + 4 * scene + 2)
    towards = (lx * sx + ly * sy + lz * sz) / tl.sqrt(tl.maximum(lx * lx + ly * ly + lz * lz, 1e-24))
    towards = tl.where(flat, tl.abs(towards), towards)
    ambient = tl.load(light + 4 * scene + 3)
    lit = ambient + (1 - ambient) * tl.minimum(tl.maximum(0.5 + 0.5 * towards, 0.0), 1.0)
    lit = tl.where(around, 1.0, lit)
    # Texture coordinates and pixel footprint.
    mx, my, mz = mx * tl.load(own), my * tl.load(own + step), oz * tl.load(own + 2 * step)
    s, t = tl.where(axis == 0, mz, mx), tl.where(axis == 1, mz, my)
    t0, t1, t2 = tl.load(own + 12 * step), tl.load(own + 13 * step), tl.load(own + 14 * step)
    t3, t4, t5 = tl.load(own + 15 * step), tl.load(own + 16 * step), tl.load(own + 17 * step)
    which = tl.load(texture + scene * primitives + index).to(tl.int32)
    u = t0 * s + t1 * t + t2 + tl.where(which < surfaces, 0.37 * face, 0.0)
    v = t3 * s + t4 * t + t5
    facing = -(cx * rx + cy * ry + cz) / tl.sqrt(1 + rx * rx + ry * ry)
    meters = depth / tl.load(lens + 4 * scene)
    footprint = side * side * meters * meters * tl.abs(t0 * t4 - t1 * t3) / tl.maximum(facing, MIN_FACING)
    level = tl.minimum(tl.maximum(0.5 * tl.log2(tl.maximum(footprint, 1e-12)) + SOFTNESS, 0.0), levels - 1.0)
    whole = tl.minimum(level.to(tl.int32), levels - 2)
    blend = level - whole
    size = side >> whole
    u, v = _mirrored(u), _mirrored(v)
    red, green, blue = _bilinear(texels, which.to(tl.int64) * stride, size, side, u, v)
    red2, green2, blue2 = _bilinear(texels, which.to(tl.int64) * stride, size >> 1, side, u, v)
    red = (red + (red2 - red) * blend) / 255.0
    green = (green + (green2 - green) * blend) / 255.0
    blue = (blue + (blue2 - blue) * blend) / 255.0
    red = tl.load(own + 18 * step) * red + tl.load(own + 21 * step)
    green = tl.load(own + 19 * step) * green + tl.load(own + 22 * step)
    blue = tl.load(own + 20 * step) * blue + tl.load(own + 23 * step)
    red, green, blue = clamp01(red), clamp01(green), clamp01(blue)
    return red, green, blue, lit, tl.load(own + 24 * step), cx, cy, cz


@triton.jit
def clamp01(value):
    """Clamp to 0 .. 1."""
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def _surface(
    table, looks, texture, texels, lens, light, indices, depths, across, down, out,
    rays, apart, primitives, step, side, surfaces, levels, stride,
    boxes, balls, rooms, skies,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    index = tl.load(indices + offset, inside, 0).to(tl.int32)
    depth = tl.load(depths + offset, inside, 1.0)
    rx, ry = tl.load(across + offset, inside, 0.0), tl.load(down + offset, inside, 0.0)
    red, green, blue, lit, gloss, cx, cy, cz = shade_hits(
        table, looks, texture, texels, lens, light, scene, index, depth, rx, ry,
        primitives, step, side, surfaces, levels, stride, boxes, balls, rooms, skies,
    )  # fmt: skip
    tl.store(out + offset, red, inside)
    tl.store(out + apart + offset, green, inside)
    tl.store(out + 2 * apart + offset, blue, inside)
    tl.store(out + 3 * apart + offset, lit, inside)
    tl.store(out + 4 * apart + offset, gloss, inside)
    tl.store(out + 5 * apart + offset, cx, inside)
    tl.store(out + 6 * apart + offset, cy, inside)
    tl.store(out + 7 * apart + offset, cz, inside)


def light_of(looks: surfaces_of.Looks) -> Tensor:
    """Return the sun direction in world coordinates and the ambient fraction: B x 4."""
    return torch.cat((looks.sun, looks.ambient[:, None]), dim=1)


def surface(
    table: Tensor, looks: Tensor, texture: Tensor, texels: Tensor, side: int, surfaces: int, counts: tuple[int, ...],
    lens: Tensor, light: Tensor, index: Tensor, depth: Tensor, ray: Tensor,
) -> Tensor:  # fmt: skip
    """Run `surface.plain_surface` in one kernel: 8 x B x N, color, light, gloss and normal.

    light: B x 4, the sun direction in world coordinates and the ambient fraction.
    """
    batch, rays = index.shape
    primitives = table.shape[2]
    out = torch.empty(8, batch, rays, device=index.device)
    starts = ends_of(counts)
    _surface[(triton.cdiv(rays, BLOCK), batch)](
        table, looks, texture, texels, lens, light.contiguous(), index.contiguous(), depth.contiguous(),
        ray[0].contiguous(), ray[1].contiguous(), out,
        rays, batch * rays, primitives, batch * primitives, side, surfaces, side.bit_length(),
        (4 * side * side - 1) // 3, starts[3], starts[4], starts[5], starts[6],
        SIZE=BLOCK,
    )  # fmt: skip
    return out


KEPT = tl.constexpr(1 - render.TOLERANCE)


@triton.jit
def move_points(before, after, step, rx, ry, depth, flat):
    """Compute where the same material point is in another frame, camera coordinates. before, after: table rows."""
    x, y, z = to_local(before, step, rx, ry, depth)
    mx, my = ripple(x, y, before, step)
    wave = after + 24 * step
    my = my - tl.load(wave + 3 * step) * tl.sin(tl.load(wave + 4 * step) * mx + tl.load(wave + 5 * step))
    mx = mx - tl.load(wave) * tl.sin(tl.load(wave + step) * my + tl.load(wave + 2 * step))
    x, y = tl.where(flat, mx, x), tl.where(flat, my, y)
    x, y, z = multiply(after + 12 * step, step, x, y, z)
    return x + tl.load(after + 21 * step), y + tl.load(after + 22 * step), z + tl.load(after + 23 * step)


@triton.jit
def _moved(
    before, after, alive, outline, texture, silhouettes, lens, indices, depths, across, down, positions,
    flow, valid, occluded,
    rays, own_positions, height, width, primitives, step, side, surfaces,
    e0, e1, e2, e3, e4, e5, e6, e7,
    SIZE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    ray = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = ray < rays
    offset = scene.to(tl.int64) * rays + ray
    index = tl.load(indices + offset, inside, 0).to(tl.int32)
    depth = tl.load(depths + offset, inside, 1.0)
    rx, ry = tl.load(across + offset, inside, 0.0), tl.load(down + offset, inside, 0.0)
    own = scene * primitives + index
    x, y, z = move_points(before + own, after + own, step, rx, ry, depth, index < e3)
    ahead = z > NEAREST
    start = positions + 2 * scene.to(tl.int64) * own_positions * rays + ray
    from_x, from_y = tl.load(start, inside, 0.0), tl.load(start + rays, inside, 0.0)
    eye, along = lens + 4 * scene, tl.where(ahead, z, 1.0)
    to_x = tl.where(ahead, tl.div_rn(x, along) * tl.load(eye) + tl.load(eye + 2), from_x)
    to_y = tl.where(ahead, tl.div_rn(y, along) * tl.load(eye + 1) + tl.load(eye + 3), from_y)
    rx, ry = directions(eye, to_x, to_y)
    depth, _ = nearest_hit(
        after, alive, outline, texture, silhouettes, after, rx, ry, 0.0, 0.0, 0.0, 0.0, scene,
        primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, e6, e7, False,
    )  # fmt: skip
    # Round to a thousandth of a pixel, so that rounding errors do not put static border points outside.
    x, y = rounded(to_x * 1024) * (1 / 1024), rounded(to_y * 1024) * (1 / 1024)
    within = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    seen = ahead & within & ~(depth < z * KEPT)
    out = flow + 2 * scene.to(tl.int64) * rays + ray
    tl.store(out, to_x - from_x, inside)
    tl.store(out + rays, to_y - from_y, inside)
    tl.store(valid + offset, ahead.to(tl.uint8), inside)
    tl.store(occluded + offset, 1 - seen.to(tl.uint8), inside)


def moved(hit: Hits, shapes: Shapes, positions: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
    """Run `Renderer.moved` in one kernel: flow B x 2 x N, valid and occluded B x 1 x N, bool."""
    batch, rays = hit.index.shape
    primitives, bank, ray = frame.table.shape[2], shapes.bank, hit.ray.contiguous()
    flow = hit.depth.new_empty(batch, 2, rays)
    valid, occluded = (torch.empty(batch, 1, rays, dtype=torch.bool, device=flow.device) for _ in range(2))
    _moved[(triton.cdiv(rays, BLOCK), batch)](
        hit.frame.table, frame.table, frame.alive.view(torch.uint8), shapes.outline, shapes.texture, bank.silhouettes,
        frame.lens, hit.index.contiguous(), hit.depth.contiguous(), ray[0], ray[1], positions.contiguous(),
        flow, valid.view(torch.uint8), occluded.view(torch.uint8),
        rays, int(len(positions) > 1), *frame.size, primitives, batch * primitives, bank.side, bank.surfaces,
        *ends_of(frame.counts),
        SIZE=BLOCK,
    )  # fmt: skip
    return flow, valid, occluded
