"""The kernels of the world agree with the plain versions beside them."""

import pytest
import torch

from protoformer.geometry.warps import pixel_grid
from protoformer.synthetic import casting
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.surface import Hits, plain_surface, surface
from protoformer.synthetic.texture_bank import procedural_bank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SIZE = (75, 101)


def renderer(family: str) -> Renderer:
    return SyntheticScenes(family, seed=5, size=SIZE, bank=procedural_bank(64, 3)).renderer(range(3), "cuda")


def seen(renderer: Renderer) -> Hits:
    frame = renderer.scenes.frame(0.1, device=renderer.device)
    return renderer.cast(frame, pixel_grid(*SIZE, device=renderer.device).flatten(1)[None])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_meets_what_the_plain_version_meets(family: str) -> None:
    renders = renderer(family)
    hit = seen(renders)
    frame = hit.frame
    depth, index = casting._nearest(frame.table, frame.alive, renders.shapes, frame.counts, *hit.ray)
    assert (index != hit.index).float().mean() < 1e-3  # a ray through the very edge may fall on either side
    same = index == hit.index
    assert ((depth - hit.depth).abs() / depth)[same].max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_throws_the_plain_version_s_shadows(family: str) -> None:
    renders = renderer(family)
    hit = seen(renders)
    frame = hit.frame
    plain = casting._blocked(frame.table, frame.casts, frame.sun, renders.shapes, frame.counts, hit.points, hit.index)
    assert 0 < plain.float().mean() < 1
    assert (plain != casting.in_shadow(frame, renders.shapes, hit.points, hit.index)).float().mean() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_sees_the_plain_version_s_colors(family: str) -> None:
    renders = renderer(family)
    hit = seen(renders)
    fast, plain = surface(hit, renders.looks, renders.bank), plain_surface(hit, renders.looks, renders.bank)
    for name in ("color", "light", "gloss", "normals"):
        assert (getattr(fast, name) - getattr(plain, name)).abs().max() < 1e-3, name


def test_one_scene_is_a_batch_too() -> None:
    world = SyntheticScenes("drive", seed=5, size=SIZE, bank=procedural_bank(64, 3))
    one, two = world.renderer([0], "cuda"), world.renderer([0, 1], "cuda")
    assert (one.final(one.view(0.0)) - two.final(two.view(0.0))[:1]).abs().mean() < 1e-4


@pytest.mark.parametrize("look", ["clean", "final"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_renders_what_a_cpu_renders(family: str, look: str) -> None:
    world = SyntheticScenes(family, seed=5, size=SIZE, bank=procedural_bank(64, 3))
    pictures, flows = [], []
    for device in ("cpu", "cuda"):
        renders = world.renderer([3, 4], device)
        view = renders.view(0.1)
        pictures.append(getattr(renders, look)(view).cpu())
        flows.append(renders.motion_to(view, renders.scenes.frame(0.14, device=renders.device)).flow.cpu())
    # Compression rounds, so that a difference in the last digit can move a coefficient by a whole step.
    assert (pictures[0] - pictures[1]).abs().mean() < (1e-3 if look == "final" else 1e-4)
    assert (flows[0] - flows[1]).abs().median() < 1e-3
