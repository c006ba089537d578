"""Triton kernels for whole images: a tile of pixels casts its rays, shades the hits and writes only their mean.

`clean` and `exposed` are the passes of `Renderer` before lens and sensor; tests compare them. A tile culls primitives
that its rays cannot hit, as `surface.nearest` does on a CPU.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.synthetic import scene
from protoformer.synthetic.kernels.surface_kernels import (
    FAR,
    clamp01,
    directions,
    ends_of,
    face_of,
    in_shadow,
    light_of,
    nearest_hit,
    shade_hits,
    to_local,
)
from protoformer.synthetic.scene import Frame

if TYPE_CHECKING:
    from protoformer.synthetic.surface import Hits, Materials, Shapes

SHADED = tl.constexpr(scene.SHADED)
ROWS = tl.constexpr(30)
"""Rows of a frame's table."""
BLOCK = 256
"""Primitives, or pixels, per program that has no tile."""


@triton.jit
def across_sun(sx, sy, sz):
    """Return two orthogonal axes perpendicular to the sun direction."""
    ax, ay, az = tl.abs(sx), tl.abs(sy), tl.abs(sz)
    by_x, by_y = (ax <= ay) & (ax <= az), ay <= az
    x = tl.where(by_x, 0.0, tl.where(by_y, -sz, sy))
    y = tl.where(by_x, sz, tl.where(by_y, 0.0, -sx))
    z = tl.where(by_x, -sy, tl.where(by_y, sx, 0.0))
    length = tl.sqrt(x * x + y * y + z * z)
    x, y, z = x / length, y / length, z / length
    return x, y, z, sy * z - sz * y, sz * x - sx * z, sx * y - sy * x


@triton.jit
def _bounds(tables, suns, out, count, primitives, step, boxes, SIZE: tl.constexpr):
    """Compute `surface._bounds` and those of `surface._against_the_light`: moments x 8 x scenes x primitives."""
    number = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = number < count
    moment, own = number // step, number % step
    row = tables + moment * ROWS * step + own
    offset, out = row + 21 * step, out + moment * 8 * step + own
    x, y, z = tl.load(offset, inside, 0.0), tl.load(offset + step, inside, 0.0), tl.load(offset + 2 * step, inside, 0.0)
    flat_square, square = tl.zeros((SIZE,), tl.float32), tl.zeros((SIZE,), tl.float32)
    for part in tl.static_range(9):
        value = tl.load(row + (12 + part) * step, inside, 0.0)
        square += value * value
        if part % 3 != 2:
            flat_square += value * value
    wavy = 1 + tl.abs(tl.load(row + 24 * step, inside, 0.0)) + tl.abs(tl.load(row + 27 * step, inside, 0.0))
    flat = own % primitives < boxes
    radius = 1.001 * tl.where(flat, tl.sqrt(flat_square) * wavy, tl.sqrt(square)) + 1e-6
    near, far = tl.maximum(z - radius, 1e-9), tl.maximum(z + radius, 1e-9)
    endless = z <= radius  # behind or around the camera: never culled
    low, high = x - radius, x + radius
    tl.store(out, tl.where(endless, -FAR, tl.minimum(low / near, low / far)), inside)
    tl.store(out + step, tl.where(endless, FAR, tl.maximum(high / near, high / far)), inside)
    low, high = y - radius, y + radius
    tl.store(out + 2 * step, tl.where(endless, -FAR, tl.minimum(low / near, low / far)), inside)
    tl.store(out + 3 * step, tl.where(endless, FAR, tl.maximum(high / near, high / far)), inside)
    sun = suns + number // primitives * 3
    sx, sy, sz = tl.load(sun, inside, 0.0), tl.load(sun + 1, inside, 0.0), tl.load(sun + 2, inside, 1.0)
    ax, ay, az, bx, by, bz = across_sun(sx, sy, sz)
    across, down = ax * x + ay * y + az * z, bx * x + by * y + bz * z
    tl.store(out + 4 * step, across - radius, inside)
    tl.store(out + 5 * step, across + radius, inside)
    tl.store(out + 6 * step, down - radius, inside)
    tl.store(out + 7 * step, down + radius, inside)


@triton.jit
def tile_of(height, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Return row and column of each of a program's pixels, and those of the first."""
    wide = tl.cdiv(width, WIDE)
    top, left = tl.program_id(0) // wide * TALL, tl.program_id(0) % wide * WIDE
    lane = tl.arange(0, TALL * WIDE)
    return top + lane // WIDE, left + lane % WIDE, top, left


@triton.jit
def _exposed(
    tables, bounds, suns, alive, casts, outline, shape_texture, silhouettes, materials, texture, texels, lens, light,
    atmosphere, shifts, out,
    subframes, height, width, batch, primitives, step, side, surfaces, levels, stride,
    e0, e1, e2, e3, e4, e5, e6, e7,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    row, column, top, left = tile_of(height, width, TALL, WIDE)
    atmosphere += 8 * scene
    ambient, fog = tl.load(atmosphere), tl.load(atmosphere + 1)
    light_r, light_g, light_b = tl.load(atmosphere + 2), tl.load(atmosphere + 3), tl.load(atmosphere + 4)
    fog_r, fog_g, fog_b = tl.load(atmosphere + 5), tl.load(atmosphere + 6), tl.load(atmosphere + 7)
    red, green = tl.zeros((TALL * WIDE,), tl.float32), tl.zeros((TALL * WIDE,), tl.float32)
    blue = tl.zeros((TALL * WIDE,), tl.float32)
    for moment in range(subframes):
        table, bound = tables + moment * ROWS * step, bounds + moment * 8 * step
        shift_x, shift_y = tl.load(shifts + 2 * moment), tl.load(shifts + 2 * moment + 1)
        rx, ry = directions(lens + 4 * scene, column + shift_x, row + shift_y)
        low_x, low_y = directions(lens + 4 * scene, left + shift_x, top + shift_y)
        high_x, high_y = directions(lens + 4 * scene, left + (WIDE - 1) + shift_x, top + (TALL - 1) + shift_y)
        depth, index = nearest_hit(
            table, alive, outline, shape_texture, silhouettes, bound, rx, ry, low_x, high_x, low_y, high_y, scene,
            primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, e6, e7, True,
        )  # fmt: skip
        r, g, b, _, gloss, nx, ny, nz = shade_hits(
            table, materials, texture, texels, lens, light, scene, index, depth, rx, ry,
            primitives, step, side, surfaces, levels, stride, e3, e4, e5, e6,
        )  # fmt: skip
        # Shadows of everything but the sky.
        sun = suns + (moment * batch + scene) * 3
        sx, sy, sz = tl.load(sun), tl.load(sun + 1), tl.load(sun + 2)
        ax, ay, az, bx, by, bz = across_sun(sx, sy, sz)
        px, py = rx * depth, ry * depth
        across, down = ax * px + ay * py + az * depth, bx * px + by * py + bz * depth
        counts = (index < e6) & (depth < FAR)
        low_x, high_x = tl.min(tl.where(counts, across, FAR), 0), tl.max(tl.where(counts, across, -FAR), 0)
        low_y, high_y = tl.min(tl.where(counts, down, FAR), 0), tl.max(tl.where(counts, down, -FAR), 0)
        shadow = in_shadow(
            table, casts, outline, shape_texture, silhouettes, bound + 4 * step, sx, sy, sz, px, py, depth, index,
            low_x, high_x, low_y, high_y, scene,
            primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, True,
        )  # fmt: skip
        shadow = shadow & (index < e6)
        lit = ambient + (1 - ambient) * clamp01(0.5 + 0.5 * (nx * sx + ny * sy + nz * sz))
        lit = tl.where(shadow, ambient, lit)
        lit = tl.where(index >= e5, tl.where(shadow, SHADED, 1.0), lit)
        # Specular highlight: the reflected ray against the sun direction.
        length = tl.sqrt(rx * rx + ry * ry + 1)
        vx, vy, vz = rx / length, ry / length, 1 / length
        twice = 2 * (vx * nx + vy * ny + vz * nz)
        glint = tl.maximum((vx - twice * nx) * sx + (vy - twice * ny) * sy + (vz - twice * nz) * sz, 0.0)
        glint = glint * glint
        glint = glint * glint
        glint = glint * glint
        glint = tl.where(shadow, 0.0, glint * glint * glint * gloss)
        clear = tl.exp(-fog * depth)
        red += clamp01((r * lit * light_r + glint) * clear + fog_r * (1 - clear))
        green += clamp01((g * lit * light_g + glint) * clear + fog_g * (1 - clear))
        blue += clamp01((b * lit * light_b + glint) * clear + fog_b * (1 - clear))
    inside = (row < height) & (column < width)
    offset = out + scene.to(tl.int64) * 3 * height * width + row * width + column
    tl.store(offset, red / subframes, inside)
    tl.store(offset + height * width, green / subframes, inside)
    tl.store(offset + 2 * height * width, blue / subframes, inside)


@triton.jit
def _code(table, lens, indices, depths, row, column, height, width, step, boxes):
    """Return an id per face of each primitive at pixels, with replicated borders."""
    row, column = tl.minimum(tl.maximum(row, 0), height - 1), tl.minimum(tl.maximum(column, 0), width - 1)
    offset = row * width + column
    index = tl.load(indices + offset).to(tl.int32)
    rx, ry = directions(lens, column.to(tl.float32), row.to(tl.float32))
    ox, oy, oz = to_local(table + index, step, rx, ry, tl.load(depths + offset))
    _, _, face = face_of(ox, oy, oz, index < boxes)
    return 6 * index + face


@triton.jit
def _edges(
    table, lens, indices, depths, out,
    height, width, primitives, step, boxes,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Mark the pixels at surface boundaries with 1, others with 0."""
    scene = tl.program_id(1)
    offset = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    row, column = offset // width, offset % width
    pixels = scene.to(tl.int64) * height * width
    own, eye, seen, deep = table + scene * primitives, lens + 4 * scene, indices + pixels, depths + pixels
    code = _code(own, eye, seen, deep, row, column, height, width, step, boxes)
    edge = code != _code(own, eye, seen, deep, row, column - 1, height, width, step, boxes)
    edge = edge | (code != _code(own, eye, seen, deep, row, column + 1, height, width, step, boxes))
    edge = edge | (code != _code(own, eye, seen, deep, row - 1, column, height, width, step, boxes))
    edge = edge | (code != _code(own, eye, seen, deep, row + 1, column, height, width, step, boxes))
    tl.store(out + pixels + offset, edge.to(tl.uint8), offset < height * width)


@triton.jit
def _clean(
    table, bounds, alive, outline, shape_texture, silhouettes, materials, texture, texels, lens, light, sunlight,
    shifts, edges, indices, depths, out,
    rays, height, width, primitives, step, side, surfaces, levels, stride,
    e0, e1, e2, e3, e4, e5, e6, e7,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    scene = tl.program_id(1)
    row, column, top, left = tile_of(height, width, TALL, WIDE)
    pixels = scene.to(tl.int64) * height * width
    eye = lens + 4 * scene
    inside = (row < height) & (column < width)
    # One ray through the center, whose hit is given; edge pixels take the mean of `rays` more instead.
    offset = pixels + row * width + column
    index, depth = tl.load(indices + offset, inside, 0).to(tl.int32), tl.load(depths + offset, inside, 1.0)
    edge = tl.load(edges + offset, inside, 0) != 0
    light_r, light_g = tl.load(sunlight + 3 * scene), tl.load(sunlight + 3 * scene + 1)
    light_b = tl.load(sunlight + 3 * scene + 2)
    rx, ry = directions(eye, column.to(tl.float32), row.to(tl.float32))
    r, g, b, lit, _, _, _, _ = shade_hits(
        table, materials, texture, texels, lens, light, scene, index, depth, rx, ry,
        primitives, step, side, surfaces, levels, stride, e3, e4, e5, e6,
    )  # fmt: skip
    red, green, blue = clamp01(r * lit * light_r), clamp01(g * lit * light_g), clamp01(b * lit * light_b)
    fine_r, fine_g = tl.zeros((TALL * WIDE,), tl.float32), tl.zeros((TALL * WIDE,), tl.float32)
    fine_b = tl.zeros((TALL * WIDE,), tl.float32)
    for ray in range(rays * tl.max(edge.to(tl.int32), 0)):
        shift_x, shift_y = tl.load(shifts + 2 * ray), tl.load(shifts + 2 * ray + 1)
        rx, ry = directions(eye, column + shift_x, row + shift_y)
        low_x, low_y = directions(eye, left + shift_x, top + shift_y)
        high_x, high_y = directions(eye, left + (WIDE - 1) + shift_x, top + (TALL - 1) + shift_y)
        depth, index = nearest_hit(
            table, alive, outline, shape_texture, silhouettes, bounds, rx, ry, low_x, high_x, low_y, high_y, scene,
            primitives, step, side, surfaces, e0, e1, e2, e3, e4, e5, e6, e7, True,
        )  # fmt: skip
        r, g, b, lit, _, _, _, _ = shade_hits(
            table, materials, texture, texels, lens, light, scene, index, depth, rx, ry,
            primitives, step, side, surfaces, levels, stride, e3, e4, e5, e6,
        )  # fmt: skip
        fine_r += clamp01(r * lit * light_r)
        fine_g += clamp01(g * lit * light_g)
        fine_b += clamp01(b * lit * light_b)
    red, green = tl.where(edge, fine_r / rays, red), tl.where(edge, fine_g / rays, green)
    blue = tl.where(edge, fine_b / rays, blue)
    offset = out + 3 * pixels + row * width + column
    tl.store(offset, red, inside)
    tl.store(offset + height * width, green, inside)
    tl.store(offset + 2 * height * width, blue, inside)


def bounds_of(tables: Tensor, suns: Tensor, counts: tuple[int, ...]) -> Tensor:
    """Return ray and shadow bounds of primitives, T x 8 x B x P, from tables T x F x B x P and suns T x B x 3."""
    moments, _, batch, primitives = tables.shape
    out = tables.new_empty(moments, 8, batch, primitives)
    step = batch * primitives
    _bounds[(triton.cdiv(moments * step, BLOCK),)](
        tables, suns, out, moments * step, primitives, step, ends_of(counts)[3], SIZE=BLOCK
    )
    return out


def exposed(
    frame: Frame,
    shapes: "Shapes",
    materials: "Materials",
    tables: Tensor,
    suns: Tensor,
    atmosphere: Tensor,
    shifts: Tensor,
) -> Tensor:
    """Compute the mean of `Renderer._final_color` over T moments: B x 3 x H x W.

    tables: T x F x B x P. suns: T x B x 3. atmosphere: B x 8, ambient fraction, fog per meter, colors of sunlight and
    fog. shifts: T x 2, offset of each moment's rays from the pixel centers. Lens and primitives are the frame's.
    """
    bank, (height, width) = shapes.bank, frame.size
    moments, _, batch, primitives = tables.shape
    out = tables.new_empty(batch, 3, height, width)
    tall, wide = 16, 16
    _exposed[(triton.cdiv(height, tall) * triton.cdiv(width, wide), batch)](
        tables, bounds_of(tables, suns, frame.counts), suns,
        frame.alive.view(torch.uint8), frame.casts.view(torch.uint8), shapes.outline, shapes.texture, bank.silhouettes,
        materials.table, materials.texture, bank.texels, frame.lens, light_of(materials), atmosphere, shifts, out,
        moments, height, width, batch, primitives, batch * primitives, bank.side, bank.surfaces, bank.levels,
        bank.stride, *ends_of(frame.counts),
        TALL=tall, WIDE=wide, num_warps=8, maxnreg=128,
    )  # fmt: skip
    return out


def clean(frame: Frame, shapes: "Shapes", materials: "Materials", hit: "Hits", shifts: Tensor) -> Tensor:
    """Run `Renderer.clean` for one hit per pixel: B x 3 x H x W. shifts: R x 2, ray offsets in edge pixels."""
    bank, (height, width) = shapes.bank, frame.size
    _, batch, primitives = frame.table.shape
    out = frame.table.new_empty(batch, 3, height, width)
    index, depth, ends = hit.index.contiguous(), hit.depth.contiguous(), ends_of(frame.counts)
    edges = torch.empty(batch, height * width, dtype=torch.uint8, device=out.device)
    _edges[(triton.cdiv(height * width, BLOCK), batch)](
        frame.table, frame.lens, index, depth, edges, height, width, primitives, batch * primitives, ends[3],
        SIZE=BLOCK,
    )  # fmt: skip
    tall, wide = 8, 16
    _clean[(triton.cdiv(height, tall) * triton.cdiv(width, wide), batch)](
        frame.table, bounds_of(frame.table[None], frame.sun[None], frame.counts), frame.alive.view(torch.uint8),
        shapes.outline, shapes.texture, bank.silhouettes, materials.table, materials.texture, bank.texels, frame.lens,
        light_of(materials), materials.sunlight, shifts, edges, index, depth, out,
        len(shifts), height, width, primitives, batch * primitives, bank.side, bank.surfaces, bank.levels, bank.stride,
        *ends,
        TALL=tall, WIDE=wide,
    )  # fmt: skip
    return out
