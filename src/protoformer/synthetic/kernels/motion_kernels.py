"""Triton kernel for the motion of hits; it mirrors `Renderer.moved` step by step, and tests compare them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from protoformer.synthetic import renderer as render
from protoformer.synthetic.casting import Shapes
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
from protoformer.synthetic.kernels.surface_kernels import to_local
from protoformer.synthetic.scene import Frame
from protoformer.synthetic.surface import Hits

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
