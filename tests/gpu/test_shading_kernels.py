"""Whole pictures and their motion by kernels are the plain ones; and nothing waits for the device."""

import pytest
import torch

from protoformer.synthetic.casting import _against_the_light, _bounds
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample, stability_clip, track_clip
from protoformer.synthetic.renderer import Renderer, View
from protoformer.synthetic.texture_bank import procedural_bank

pytestmark = [pytest.mark.usefixtures("kernels_run"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]
SIZE = (20, 37) if torch.cuda.is_available() else (16, 17)  # more than one tile, and not whole ones
FEW = tuple(FAMILIES) if torch.cuda.is_available() else ("objects",)  # interpreted, a family takes seconds


def renderers(family: str, device: str) -> tuple[Renderer, Renderer]:
    """The same scenes where the kernels run, and on the CPU."""
    world = SyntheticScenes(family, seed=5, size=SIZE, bank=procedural_bank(64, 3))
    return world.renderer([3, 5], device), world.renderer([3, 5], "cpu")


def plain_view(theirs: Renderer, device: str, time: float = 0.1) -> tuple[View, View]:
    """A view cast on the CPU, with its frame on the device and on the CPU: kernels begin with the very same hits."""
    plain = theirs.view(time)
    hits, frame = plain.hits, theirs.scenes.frame(time, device=torch.device(device))
    index, depth, ray = (values.to(device) for values in (hits.index, hits.depth, hits.ray))
    return View(frame, type(hits)(frame, index, depth, ray)), plain


@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_are_the_plain_ones(family: str, numbers) -> None:
    from protoformer.synthetic.kernels.shading_kernels import bounds_of

    theirs = renderers(family, numbers.device)[1]
    frames = [theirs.scenes.frame(time) for time in (0.0, 0.3)]
    tables, suns = torch.stack([each.table for each in frames]), torch.stack([each.sun for each in frames])
    found = bounds_of(tables.to(numbers.device), suns.to(numbers.device), frames[0].counts).cpu()
    for each, mine in zip(frames, found, strict=True):
        plain = _bounds(each)
        torch.testing.assert_close(mine[:4], plain, rtol=1e-4, atol=1e-4)
        ends = _against_the_light(each, torch.zeros(3, 2, 1))[2]
        torch.testing.assert_close(mine[4:], ends, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("family", FEW)
def test_an_exposure_is_the_plain_one(family: str, numbers) -> None:
    ours, theirs = renderers(family, numbers.device)
    view, plain = plain_view(theirs, numbers.device)
    apart = (ours._exposed_by_kernels(view, 3).cpu() - theirs._exposed(plain, 3)).abs()
    # A ray or a shadow through the very edge may fall on either side.
    assert apart.mean() < 1e-4 and (apart > 1e-3).float().mean() < 2e-3


@pytest.mark.parametrize("family", FEW)
def test_a_clean_picture_is_the_plain_one(family: str, numbers) -> None:
    ours, theirs = renderers(family, numbers.device)
    view, plain = plain_view(theirs, numbers.device)
    apart = (ours._clean_by_kernels(view).cpu() - theirs.clean(plain)).abs()
    assert apart.mean() < 1e-4 and (apart > 1e-3).float().mean() < 2e-3


@pytest.mark.parametrize("family", FEW)
def test_motion_is_the_plain_one(family: str, numbers) -> None:
    from protoformer.synthetic.kernels.motion_kernels import moved

    ours, theirs = renderers(family, numbers.device)
    view, plain = plain_view(theirs, numbers.device)
    later = theirs.scenes.frame(0.14, device=torch.device(numbers.device))
    for positions in (theirs._centers(), theirs._centers().repeat(2, 1, 1)):
        found = moved(view.hits, ours.shapes, positions.to(numbers.device), later)
        flow, valid, occluded = theirs.moved(plain.hits, positions, theirs.scenes.frame(0.14))
        assert torch.equal(found[1].cpu(), valid)
        assert (found[2].cpu() != occluded).float().mean() < 2e-3
        torch.testing.assert_close(found[0].cpu(), flow, rtol=1e-4, atol=2e-3)


def test_a_final_picture_is_the_plain_one(numbers) -> None:
    ours, theirs = renderers("objects", numbers.device)
    assert len(theirs._soft()) == 1  # one image of the two is blurred
    view, plain = plain_view(theirs, numbers.device)
    image = theirs._exposed(plain, 2)
    found = ours._developed_by_kernels(image.clone().to(numbers.device), view).cpu()
    right = theirs._developed(image, plain)
    # A difference in the last digit can move a coefficient by a whole step.
    assert (found - right).abs().mean() < 2e-4


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("look", ["clean", "final"])
def test_nothing_waits_for_the_device(look: str) -> None:
    world = SyntheticScenes("objects", seed=5, size=SIZE, bank=procedural_bank(64, 3)).on("cuda")
    tasks = (
        flow_sample,
        depth_sample,
        lambda renderer, look: track_clip(renderer, look, frames=2),
        lambda renderer, look: stability_clip(renderer, look, frames=2),
    )
    for _ in range(2):  # the first time kernels are compiled
        for task in tasks:
            renderer = world.renderer([3, 4, 5], "cuda")
            task(renderer, look)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for task in tasks:
            task(world.renderer([3, 4, 5], "cuda"), look)
    finally:
        torch.cuda.set_sync_debug_mode("default")
