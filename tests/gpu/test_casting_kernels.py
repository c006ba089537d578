"""The kernels of ray casting, shadows and colors agree with torch, in Triton's interpreter and on a GPU."""

import pytest
import torch

from protoformer.geometry.warps import pixel_grid
from protoformer.synthetic import surface as casting
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.surface import Hits, plain_surface
from protoformer.synthetic.texture_bank import procedural_bank

pytestmark = [pytest.mark.usefixtures("requires_kernels"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
GPU = torch.cuda.is_available()
"""A GPU fuses multiplications and additions; the interpreter rounds each, as torch does."""
SIZE = (19, 31)
"""More rays than one block, and not a multiple of it."""
QUICK = ("objects", "chase")
"""Families of few primitives; the first has all kinds."""


@pytest.fixture(
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow_interpreted) for name in FAMILIES]
)
def view(request: pytest.FixtureRequest) -> tuple[Renderer, Hits]:
    """Two scenes of a family on the CPU, and the hits of the rays through their pixels."""
    renderer = SyntheticScenes(request.param, seed=5, size=SIZE, bank=procedural_bank(64, 3)).renderer(range(2), "cpu")
    frame = renderer.scenes.frame(0.1)
    return renderer, renderer.cast(frame, pixel_grid(*SIZE).flatten(1)[None])


def test_the_nearest_primitive_equals_torch(view: tuple[Renderer, Hits], numbers) -> None:
    from protoformer.synthetic.kernels import surface_kernels as kernels

    renderer, hit = view
    frame, shapes = hit.frame, renderer.shapes
    *tensors, side, surfaces = casting._tensors(frame, shapes)
    rays = (each.to(numbers.device) for each in hit.ray[:2])
    depth, index = kernels.nearest(*(each.to(numbers.device) for each in tensors), side, surfaces, frame.counts, *rays)
    right_depth, right_index = casting._nearest(frame.table, frame.alive, shapes, frame.counts, *hit.ray[:2])
    same = index.cpu() == right_index
    assert same.float().mean() > 0.998  # rounding decides about rays through an edge
    assert len(right_index[same].unique()) > 2
    assert ((depth.cpu() - right_depth).abs() / right_depth)[same].max() < (1e-4 if GPU else 1e-5)


def test_shadows_equal_torch(view: tuple[Renderer, Hits], numbers) -> None:
    from protoformer.synthetic.kernels import surface_kernels as kernels

    renderer, hit = view
    frame, shapes = hit.frame, renderer.shapes
    table, _, *rest, side, surfaces = casting._tensors(frame, shapes)
    tensors = [each.to(numbers.device) for each in (table, frame.casts, *rest)]
    arguments = [each.to(numbers.device) for each in (frame.sun, hit.points, hit.index)]
    actual = kernels.blocked(*tensors, side, surfaces, frame.counts, *arguments).cpu()
    right = casting._blocked(frame.table, frame.casts, frame.sun, shapes, frame.counts, hit.points, hit.index)
    assert 0 < right.float().mean() < 1
    assert (actual != right).float().mean() < 2e-3


def test_surfaces_equal_torch(view: tuple[Renderer, Hits], numbers) -> None:
    from protoformer.synthetic.kernels import surface_kernels

    renderer, hit = view
    frame, materials, bank = hit.frame, renderer.materials, renderer.bank
    tables = (each.to(numbers.device) for each in (frame.table, materials.table, materials.texture, bank.texels))
    arguments = (each.to(numbers.device) for each in (frame.lens, surface_kernels.light_of(materials)))
    hits = (each.to(numbers.device) for each in (hit.index, hit.depth, hit.ray))
    actual = surface_kernels.surface(*tables, bank.side, bank.surfaces, frame.counts, *arguments, *hits).cpu()
    right = plain_surface(hit, materials, bank)
    expected = torch.cat((right.color, right.light[None], right.gloss[None], right.normals))
    assert expected.std(dim=(1, 2)).min() > 0 or expected[4].std() == 0  # only gloss may be constant
    assert (actual - expected).abs().max() < (1e-3 if GPU else 1e-5)
