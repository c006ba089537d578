"""The kernels of whole images and their motion agree with torch, and rendering does not synchronize."""

import pytest
import torch

from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample, stability_clip, track_clip
from protoformer.synthetic.renderer import Renderer, View
from protoformer.synthetic.surface import _against_the_light, _bounds
from protoformer.synthetic.texture_bank import procedural_bank

pytestmark = [pytest.mark.usefixtures("requires_kernels"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
SIZE = (20, 37) if torch.cuda.is_available() else (16, 17)  # more than one tile, and not a multiple
FEW = tuple(FAMILIES) if torch.cuda.is_available() else ("objects",)  # a family takes seconds in the interpreter


def renderers(family: str, device: str) -> tuple[Renderer, Renderer]:
    """Return renderers of the same scenes on a device and on the CPU."""
    scenes = SyntheticScenes(family, seed=5, size=SIZE, bank=procedural_bank(64, 3))
    return scenes.renderer([3, 5], device), scenes.renderer([3, 5], "cpu")


def make_views(reference: Renderer, device: str, time: float = 0.1) -> tuple[View, View]:
    """Return a view with the same hits on the device and on the CPU, where its rays were cast."""
    plain = reference.view(time)
    hits, frame = plain.hits, reference.scenes.frame(time, device=torch.device(device))
    index, depth, ray = (values.to(device) for values in (hits.index, hits.depth, hits.ray))
    return View(frame, type(hits)(frame, index, depth, ray)), plain


@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_equal_torch(family: str, numbers) -> None:
    from protoformer.synthetic.kernels.shading_kernels import bounds_of

    reference = renderers(family, numbers.device)[1]
    frames = [reference.scenes.frame(time) for time in (0.0, 0.3)]
    tables, suns = torch.stack([each.table for each in frames]), torch.stack([each.sun for each in frames])
    actual = bounds_of(tables.to(numbers.device), suns.to(numbers.device), frames[0].counts).cpu()
    for frame, bounds in zip(frames, actual, strict=True):
        plain = _bounds(frame)
        torch.testing.assert_close(bounds[:4], plain, rtol=1e-4, atol=1e-4)
        ends = _against_the_light(frame, torch.zeros(3, 2, 1))[2]
        torch.testing.assert_close(bounds[4:], ends, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("family", FEW)
def test_an_exposure_equals_torch(family: str, numbers) -> None:
    device_renderer, reference = renderers(family, numbers.device)
    view, plain = make_views(reference, numbers.device)
    difference = (device_renderer._exposed_by_kernels(view, 3).cpu() - reference._exposed(plain, 3)).abs()
    # Rounding decides about rays and shadows through an edge.
    assert difference.mean() < 1e-4 and (difference > 1e-3).float().mean() < 2e-3


@pytest.mark.parametrize("family", FEW)
def test_a_clean_image_equals_torch(family: str, numbers) -> None:
    device_renderer, reference = renderers(family, numbers.device)
    view, plain = make_views(reference, numbers.device)
    difference = (device_renderer._clean_by_kernels(view).cpu() - reference.clean(plain)).abs()
    assert difference.mean() < 1e-4 and (difference > 1e-3).float().mean() < 2e-3


@pytest.mark.parametrize("family", FEW)
def test_motion_equals_torch(family: str, numbers) -> None:
    from protoformer.synthetic.kernels.surface_kernels import moved

    device_renderer, reference = renderers(family, numbers.device)
    view, plain = make_views(reference, numbers.device)
    later = reference.scenes.frame(0.14, device=torch.device(numbers.device))
    for positions in (reference._centers(), reference._centers().repeat(2, 1, 1)):
        actual = moved(view.hits, device_renderer.shapes, positions.to(numbers.device), later)
        flow, valid, occluded = reference.moved(plain.hits, positions, reference.scenes.frame(0.14))
        assert torch.equal(actual[1].cpu(), valid)
        assert (actual[2].cpu() != occluded).float().mean() < 2e-3
        torch.testing.assert_close(actual[0].cpu(), flow, rtol=1e-4, atol=2e-3)


def test_a_final_image_equals_torch(numbers) -> None:
    device_renderer, reference = renderers("objects", numbers.device)
    assert len(reference._soft()) == 1  # one of the two images is blurred
    view, plain = make_views(reference, numbers.device)
    image = reference._exposed(plain, 2)
    actual = device_renderer._developed_by_kernels(image.clone().to(numbers.device), view).cpu()
    expected = reference._developed(image, plain)
    # A difference in the last digit can change a coefficient by one quantization step.
    assert (actual - expected).abs().mean() < 2e-4


@pytest.mark.usefixtures("requires_gpu")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("render_pass", ["clean", "final"])
def test_rendering_does_not_synchronize(render_pass: str) -> None:
    scenes = SyntheticScenes("objects", seed=5, size=SIZE, bank=procedural_bank(64, 3)).on("cuda")
    tasks = (
        flow_sample,
        depth_sample,
        lambda renderer, render_pass: track_clip(renderer, render_pass, frames=2),
        lambda renderer, render_pass: stability_clip(renderer, render_pass, frames=2),
    )
    for _ in range(2):  # the first run compiles kernels
        for task in tasks:
            renderer = scenes.renderer([3, 4, 5], "cuda")
            task(renderer, render_pass)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for task in tasks:
            task(scenes.renderer([3, 4, 5], "cuda"), render_pass)
    finally:
        torch.cuda.set_sync_debug_mode("default")
