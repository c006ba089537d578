"""The renderer on a GPU agrees with torch and with the renderer on a CPU."""

import pytest
import torch

from protoformer.geometry.warps import pixel_grid
from protoformer.synthetic import surface as casting
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.surface import Hits, plain_surface, surface
from protoformer.synthetic.texture_bank import procedural_bank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SIZE = (75, 101)


def renderer(family: str) -> Renderer:
    return SyntheticScenes(family, seed=5, size=SIZE, bank=procedural_bank(64, 3)).renderer(range(3), "cuda")


def cast_rays(renderer: Renderer) -> Hits:
    frame = renderer.scenes.frame(0.1, device=renderer.device)
    return renderer.cast(frame, pixel_grid(*SIZE, device=renderer.device).flatten(1)[None])


@pytest.mark.parametrize("family", FAMILIES)
def test_hits_equal_torch(family: str) -> None:
    renders = renderer(family)
    hit = cast_rays(renders)
    frame = hit.frame
    depth, index = casting._nearest(frame.table, frame.alive, renders.shapes, frame.counts, *hit.ray)
    assert (index != hit.index).float().mean() < 1e-3  # rounding decides about rays through an edge
    same = index == hit.index
    assert ((depth - hit.depth).abs() / depth)[same].max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_shadows_equal_torch(family: str) -> None:
    renders = renderer(family)
    hit = cast_rays(renders)
    frame = hit.frame
    plain = casting._blocked(frame.table, frame.casts, frame.sun, renders.shapes, frame.counts, hit.points, hit.index)
    assert 0 < plain.float().mean() < 1
    assert (plain != casting.in_shadow(frame, renders.shapes, hit.points, hit.index)).float().mean() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_colors_equal_torch(family: str) -> None:
    renders = renderer(family)
    hit = cast_rays(renders)
    fast, plain = surface(hit, renders.materials, renders.bank), plain_surface(hit, renders.materials, renders.bank)
    for name in ("color", "light", "gloss", "normals"):
        assert (getattr(fast, name) - getattr(plain, name)).abs().max() < 1e-3, name


def test_a_batch_may_have_one_scene() -> None:
    scenes = SyntheticScenes("drive", seed=5, size=SIZE, bank=procedural_bank(64, 3))
    one, two = scenes.renderer([0], "cuda"), scenes.renderer([0, 1], "cuda")
    assert (one.final(one.view(0.0)) - two.final(two.view(0.0))[:1]).abs().mean() < 1e-4


@pytest.mark.parametrize("render_pass", ["clean", "final"])
@pytest.mark.parametrize("family", FAMILIES)
def test_images_and_flow_equal_those_on_a_cpu(family: str, render_pass: str) -> None:
    scenes = SyntheticScenes(family, seed=5, size=SIZE, bank=procedural_bank(64, 3))
    images, flows = [], []
    for device in ("cpu", "cuda"):
        renders = scenes.renderer([3, 4], device)
        view = renders.view(0.1)
        images.append(getattr(renders, render_pass)(view).cpu())
        flows.append(renders.motion_to(view, renders.scenes.frame(0.14, device=renders.device)).flow.cpu())
    # A difference in the last digit can change a coefficient of the compression by one quantization step.
    assert (images[0] - images[1]).abs().mean() < (1e-3 if render_pass == "final" else 1e-4)
    assert (flows[0] - flows[1]).abs().median() < 1e-3
