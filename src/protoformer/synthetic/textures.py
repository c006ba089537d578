"""Textures and silhouettes made from numbers alone, in families that look like the surfaces of things.

Every texture is 3 x side x side RGB in [0, 1], decided by its generator alone. Coordinates run over 0 .. 1 across the
square; `field` names a side x side tensor.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from protoformer.synthetic.patterns import (
    banded,
    bars,
    below,
    bricks,
    evened,
    grid,
    looked_up,
    palette,
    ramp,
    spectral,
    strewn,
    thick_lines,
    turned,
    uniform,
    voronoi,
    written,
)

_MARGIN = 2  # texels around a silhouette that stay empty
_LEAST_SIDE = 64  # thin shapes would fall between fewer texels


def cloud(side: int, generator: Generator) -> Tensor:
    """Noise from smooth to grainy, some of it ridged like rock or veined like marble."""
    field = spectral(side, generator, slope=uniform(generator, 0.8, 2.0), stretch=uniform(generator, 0.5, 2.0))
    kind = below(4, generator)
    if kind == 0:
        value = torch.exp(-uniform(generator, 1.0, 3.0) * field.abs())
    elif kind == 1:
        across, _ = turned(side, generator)
        bend = uniform(generator, 0.1, 0.5) * field
        value = 0.5 + 0.5 * torch.sin(2 * math.pi * (uniform(generator, 1, 6) * across + bend))
    else:
        value = evened(field)
    return _finished(ramp(value, palette(3 + below(3, generator), generator)), generator)


def stripes(side: int, generator: Generator) -> Tensor:
    """Straight or wavy bars, bars of many colors, checks and plaid."""
    across, along = turned(side, generator)
    if below(2, generator):
        bend = uniform(generator, 0.01, 0.06) * spectral(side, generator, slope=uniform(generator, 2.0, 3.0))
        across, along = across + bend, along - bend
    count, kind = uniform(generator, 3, 22), below(4, generator)
    colors = palette(6, generator)
    if kind == 0:
        return _finished(ramp(bars(across * count, generator), colors[:2]), generator)
    if kind == 1:
        one, other = bars(across * count, generator), bars(along * count, generator)
        return _finished(ramp(one + other - 2 * one * other, colors[:2]), generator)
    pattern = colors[torch.randint(6, (5 + below(20, generator),), generator=generator)]
    image = banded(across * count / len(pattern), pattern)
    if kind == 2:
        return _finished(image, generator)
    weave = 0.5 + 0.2 * torch.sin((across + along) * (math.pi * side / 4)).sign()
    return _finished(weave * image + (1 - weave) * banded(along * count / len(pattern), pattern), generator)


def cells(side: int, generator: Generator) -> Tensor:
    """Bricks, planks, tiles, hexagons, cracked ground and pebbles: pieces of related colors between joints."""
    pieces = 2 * (2 + below(7, generator))
    kind = below(5, generator)
    if kind < 2:
        edge, owner = bricks(side, pieces, generator)
        round_off = torch.zeros(())
    else:
        jitter = (0.0, 0.6, 1.0)[kind - 2]
        edge, owner, center = voronoi(side, pieces, jitter, generator)
        round_off = uniform(generator, 0.0, 0.5) * center
    colors = palette(5, generator)
    shades = torch.rand(pieces * pieces, generator=generator)
    image = looked_up(ramp(shades, colors[1:]), owner)
    wear = spectral(side, generator, slope=uniform(generator, 0.6, 1.5))
    image = image * (1 - round_off + uniform(generator, 0.02, 0.12) * wear)
    width = uniform(generator, 0.0, 0.15)
    joint = torch.sigmoid((edge + 0.02 * wear - width) * uniform(generator, 20, 80))
    return _finished(joint * image + (1 - joint) * colors[0, :, None, None] * (1 + 0.1 * wear), generator)


def gradient(side: int, generator: Generator) -> Tensor:
    """Smooth ramps of color, straight, round or wandering, with a little grain."""
    across, along = turned(side, generator)
    kind = below(3, generator)
    if kind == 0:
        value = across + 0.5
    elif kind == 1:
        away = torch.hypot(across - uniform(generator, -0.4, 0.4), along - uniform(generator, -0.4, 0.4))
        value = away * uniform(generator, 0.7, 1.5)
    else:
        value = evened(spectral(side, generator, slope=3.0))
    value = value + uniform(generator, 0.0, 0.08) * spectral(side, generator, slope=2.5)
    grain = uniform(generator, 0.005, 0.03) * spectral(side, generator, slope=uniform(generator, 0.2, 1.2))
    return _finished(ramp(value, palette(2 + below(3, generator), generator)) + grain, generator)


def marks(side: int, generator: Generator) -> Tensor:
    """Rows of letter-like strokes in words on paper, or a few large ones on a sign."""
    sign = below(3, generator) == 0
    rows = 1 + below(3, generator) if sign else 5 + below(12, generator)
    columns = max(2, round(rows * uniform(generator, 1.3, 2.2)))
    ink = written(rows, columns, generator)
    ink = F.interpolate(ink[None, None], size=(side, side), mode="bilinear", antialias=True)[0, 0]
    ink = ((ink - 0.5) * max(1.0, side / (32 * rows)) + 0.5).clamp(0, 1)  # enlarged edges are blurred
    colors = palette(3, generator)
    # Ink and paper must differ in brightness, or there is nothing to see.
    paper, inked = colors[0] * 0 + uniform(generator, 0.6, 0.85), colors[1] * uniform(generator, 0.2, 0.6)
    paper = paper + (0.9 if sign else 0.4) * (colors[0] - colors[0].mean())
    if below(3, generator) == 0:
        paper, inked = inked, paper
    if sign:
        across = torch.linspace(-1, 1, side).abs()
        border = torch.maximum(across[:, None], across[None, :])
        ink = torch.maximum(ink, torch.exp(-((border - 0.93) * 40).square()))
    wear = 1 + uniform(generator, 0.02, 0.08) * spectral(side, generator, slope=1.2)
    return _finished(torch.lerp(paper[:, None, None] * wear, inked[:, None, None], ink), generator)


def flat(side: int, generator: Generator) -> Tensor:
    """One color with faint blotches and some scratches."""
    color = palette(3, generator)[1, :, None, None]
    blotches = uniform(generator, 0.005, 0.03) * spectral(side, generator, slope=uniform(generator, 0.5, 2.0))
    brushed = uniform(generator, 0.0, 0.02) * spectral(side, generator, slope=0.7, stretch=uniform(generator, 0.02, 1))
    place, half, angle = (torch.rand(3, 1, 1, generator=generator) for _ in range(3))
    y, x = grid(side)
    cos, sin = torch.cos(angle * math.pi), torch.sin(angle * math.pi)
    off, on = cos * x + sin * y - (place - 0.5) * 0.8, cos * y - sin * x
    scratches = (1 - off.abs() * side).clamp_min(0) * ((on - half + 0.5).abs() < 0.5 * half)
    depth = uniform(generator, -0.1, 0.1)
    return _finished(color + blotches + brushed + depth * scratches.amax(dim=0), generator)


def speckle(side: int, generator: Generator) -> Tensor:
    """Fine natural stuff: grass, litter of leaves, gravel, moss, fur."""
    colors = palette(5, generator)
    if below(4, generator) == 0:
        flow = spectral(
            side, generator, slope=0.3, coarsest=uniform(generator, 3, 10), stretch=uniform(generator, 0.2, 1)
        )
        clump = spectral(side, generator, slope=1.5)
        return _finished(ramp(evened(flow) * (0.75 + 0.25 * torch.tanh(clump)), colors), generator)
    length, plump = uniform(generator, 0.012, 0.035), uniform(generator, 0.12, 0.9)
    owner = strewn(side, length, plump, spread=uniform(generator, 0.2, math.pi), generator=generator)
    count = int(owner.max()) + 1
    # Later pieces lie on top and catch more light.
    height = torch.linspace(0, 1, count)
    shade = 0.55 * height + 0.45 * torch.rand(count, generator=generator)
    image = looked_up(ramp(shade, colors[colors.mean(dim=1).argsort()]), owner)
    soft = F.avg_pool2d(F.pad(image[None], (1, 1, 1, 1), mode="replicate"), 3, stride=1)[0]
    image = 0.6 * image + 0.4 * soft
    return _finished(image * (1 + 0.12 * spectral(side, generator, slope=1.5)), generator)


FAMILIES: dict[str, Callable[[int, Generator], Tensor]] = {
    "cloud": cloud,
    "stripes": stripes,
    "cells": cells,
    "gradient": gradient,
    "marks": marks,
    "flat": flat,
    "speckle": speckle,
}
"""Every family of opaque textures by its name."""


def cutout(side: int, generator: Generator) -> Tensor:
    """A silhouette in the colors of some family: 4 x side x side RGBA, alpha 0 or 1 but for an antialiased outline.

    The shape is centered, its longer extent fills the square and `_MARGIN` texels along every border are empty.
    """
    shape = _SHAPES[below(len(_SHAPES), generator)](max(_LEAST_SIDE, side), generator)
    alpha = _fitted(shape, side)
    names = sorted(FAMILIES)
    color = FAMILIES[names[below(len(names), generator)]](side, generator)
    return torch.cat((color, alpha[None]))


# Silhouettes are implicit: a field positive inside, over grid's square; they are cut to their extent afterwards.


def _leaf(side: int, generator: Generator) -> Tensor:
    y, x = turned(side, generator)
    angle, away = torch.atan2(x, y), torch.hypot(x, y)
    lobes = 1 + 2 * below(4, generator)
    reach = 0.18 + 0.14 * torch.cos(angle) + 0.1 * torch.cos(angle * lobes).abs() * (1.2 + torch.cos(angle))
    teeth = 0.012 * torch.cos(angle * (20 + below(30, generator)))
    stem = 0.012 - torch.maximum(x.abs(), (y + 0.2).abs() - 0.2)
    return torch.maximum(reach + teeth - away, stem)


def _star(side: int, generator: Generator) -> Tensor:
    y, x = turned(side, generator)
    points, waist = 3 + below(7, generator), uniform(generator, 0.3, 0.8)
    sector = math.pi / points
    # By symmetry one straight edge, from a tip to the waist beside it, stands for all of them.
    angle = (torch.atan2(x, y) % (2 * sector) - sector).abs()
    away = torch.hypot(x, y)
    u, v = away * torch.cos(sector - angle), away * torch.sin(sector - angle)
    tip, end_u, end_v = 0.45, 0.45 * waist * math.cos(sector), 0.45 * waist * math.sin(sector)
    return (tip - u) * end_v - v * (tip - end_u)


def _blob(side: int, generator: Generator) -> Tensor:
    y, x = grid(side)
    body = 0.36 - torch.hypot(x, y) + 0.05 * spectral(side, generator, slope=uniform(generator, 1.8, 2.6))
    holes = spectral(side, generator, slope=2.2, coarsest=3)
    return torch.minimum(body, 0.08 * (uniform(generator, 0.6, 1.6) - holes))


def _lattice(side: int, generator: Generator) -> Tensor:
    y, x = grid(side)
    slope = 1.0 if below(2, generator) else 0.0
    one, other = x + slope * y, y - slope * x
    pitch, thick = uniform(generator, 0.08, 0.25), uniform(generator, 0.15, 0.45)
    bars = [thick / 2 - ((line / pitch) % 1 - 0.5).abs() for line in (one, other)]
    frame = torch.maximum(x.abs(), y.abs() / uniform(generator, 0.7, 1.0))
    lattice = torch.maximum(torch.maximum(*bars) * pitch, 0.02 - (frame - 0.42).abs())
    return torch.minimum(lattice, 0.44 - frame)


def _tree(side: int, generator: Generator) -> Tensor:
    forks, branches = 4, []
    foot, angle, length, thick = torch.tensor([[0.45, 0.0]]), torch.zeros(1), torch.full((1,), 0.3), 0.03
    for _ in range(forks + 1):
        head = foot + length[:, None] * torch.stack((-torch.cos(angle), torch.sin(angle)), dim=1)
        branches.append(torch.cat((foot, head, torch.full((len(foot), 1), thick)), dim=1))
        turn = 0.25 + 0.45 * torch.rand(2, len(foot), generator=generator)
        shrink = 0.6 + 0.25 * torch.rand(2, len(foot), generator=generator)
        foot, angle = head.repeat(2, 1), torch.cat((angle - turn[0], angle + turn[1]))
        length, thick = length.repeat(2) * shrink.flatten(), thick * 0.65
    # Thirty branches at half the resolution: the distance to them is smooth.
    bare = thick_lines(side // 2, torch.cat(branches))
    bare = F.interpolate(bare[None, None], size=(side, side), mode="bilinear", align_corners=False)[0, 0]
    if below(3, generator) == 0:
        return bare
    y, x = grid(side)
    crown = 0.3 - torch.hypot(x, (y + 0.12) * uniform(generator, 0.9, 1.3))
    leaves = crown + uniform(generator, 0.04, 0.1) * spectral(side, generator, slope=1.1, coarsest=4)
    return torch.maximum(bare, leaves)


def _glyph(side: int, generator: Generator) -> Tensor:
    strokes = 3 + below(4, generator)
    walk = torch.randint(3, (strokes + 1, 2), generator=generator) * torch.tensor([0.36, 0.28]) - torch.tensor(
        [0.36, 0.28]
    )
    walk[0], walk[1] = torch.tensor([-0.36, -0.28]), torch.tensor([0.36, walk[1, 1].item()])
    thick = torch.full((strokes, 1), uniform(generator, 0.04, 0.09))
    return thick_lines(side, torch.cat((walk[:-1], walk[1:], thick), dim=1))


def _ring(side: int, generator: Generator) -> Tensor:
    y, x = turned(side, generator)
    away, angle = torch.hypot(x, y * uniform(generator, 1.0, 1.4)), torch.atan2(x, y)
    width = uniform(generator, 0.04, 0.12)
    teeth = below(2, generator) * 0.02 * torch.tanh(4 * torch.cos(angle * (8 + below(12, generator))))
    band = width - (away - 0.4 + width).abs() + teeth * (away > 0.4 - width)
    spokes = 0.02 - (away * torch.sin(angle * (1 + below(4, generator)))).abs() * 0.5
    return torch.maximum(band, torch.minimum(spokes, 0.38 - away)) if below(2, generator) else band


_SHAPES = (_leaf, _star, _blob, _lattice, _tree, _glyph, _ring)


def _fitted(field: Tensor, side: int) -> Tensor:
    """Cut a shape (positive inside) to its extent, stretch it to the square within the margin, and make it alpha."""
    inside = field > 0
    rows, columns = inside.any(dim=1).nonzero()[:, 0], inside.any(dim=0).nonzero()[:, 0]
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    room = side - 2 * _MARGIN - 2  # a texel more on each side, where the outline fades
    longest = max(bottom - top, right - left)
    # Thin shapes are widened to a good half of the square, or there would be little to see.
    height, width = (max(2, round(room * max(0.55, extent / longest))) for extent in (bottom - top, right - left))
    cut = F.interpolate(field[None, None, top:bottom, left:right], size=(height, width), mode="bilinear")[0, 0]
    above, before = (side - height) // 2, (side - width) // 2
    cut = F.pad(cut[None], (1, 1, 1, 1), mode="replicate")[0]
    down, right_ = cut[2:, 1:-1] - cut[:-2, 1:-1], cut[1:-1, 2:] - cut[1:-1, :-2]
    # The value over its slope is about the distance to the outline in texels.
    distance = 2 * cut[1:-1, 1:-1] / torch.hypot(down, right_).clamp_min(1e-6)
    alpha = (distance + 0.5).clamp(0, 1)
    return F.pad(alpha, (before, side - width - before, above, side - height - above))


def _finished(image: Tensor, generator: Generator) -> Tensor:
    """Shade a 3 x side x side image a little at large and bring its mean brightness into the middle, within [0, 1]."""
    side = image.shape[-1]
    # Smooth enough to be made small and enlarged, which is quicker.
    shading = uniform(generator, 0.0, 0.06) * spectral(max(4, side // 4), generator, slope=2.0)
    shading = F.interpolate(shading[None, None], size=(side, side), mode="bilinear")[0]
    image = (image * (1 + shading)).clamp(0, 1)
    mean = float(image.mean())
    wanted = min(max(mean, 0.27), 0.73)
    # A power moves the middle and keeps black and white where they are.
    return image.clamp_min(1e-4) ** (math.log(wanted) / math.log(mean))


def noise(height: int, width: int, generator: torch.Generator, coarsest: int = 64, falloff: float = 0.7) -> Tensor:
    """A colored cloud with detail at every scale from `coarsest` pixels down to 2: 3 x height x width in [0, 1].

    Each octave is `falloff` times as strong as the one twice as coarse: near 1 is grainy, near 0 is smooth.
    """
    total = torch.zeros(3, height, width)
    strength, spacing = 1.0, coarsest
    while spacing >= 2:
        knots = torch.rand(1, 3, height // spacing + 2, width // spacing + 2, generator=generator) - 0.5
        size = (spacing * knots.shape[2], spacing * knots.shape[3])
        fine = F.interpolate(knots, size=size, mode="bicubic", align_corners=False)[0]
        total += strength * fine[:, spacing // 2 :, spacing // 2 :][:, :height, :width]
        strength, spacing = strength * falloff, spacing // 2
    # Things vary more in brightness than in color.
    shaded = 0.75 * total.mean(dim=0, keepdim=True) + 0.25 * total
    centered = shaded - shaded.mean(dim=(1, 2), keepdim=True)
    contrast = 0.2 / centered.std(dim=(1, 2), keepdim=True, correction=0).clamp_min(1e-6)
    tint = 0.25 + 0.5 * torch.rand(3, 1, 1, generator=generator)
    return (centered * contrast + tint).clamp(0, 1)
