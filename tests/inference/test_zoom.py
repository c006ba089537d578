"""Small frames are looked at enlarged, and what is found there is told in their own pixels."""

import itertools
import math

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.geometry import occlusion_by_consistency, resized, resized_flow
from protoformer.inference import flow as flow_module
from protoformer.inference import planning
from protoformer.inference.flow_windows import carried_start, confidence_of
from protoformer.inference.planning import FRAME_BYTES, plan_flow, seen_size
from protoformer.model.flow import normalised
from protoformer.world import FlowSample, World
from protoformer.world.tasks import flow_sample

CPU = torch.device("cpu")
FAST = pf.PRESETS["fast"]
CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    """Four frames of 51x45 pixels: a pattern that moves by two pixels a frame."""
    random = np.random.default_rng(5)
    wide = np.kron(random.integers(0, 256, (15, 24, 3)), np.ones((3, 3, 1))).astype(np.uint8)
    return [np.ascontiguousarray(wide[:, 2 * number : 2 * number + 51]) for number in range(4)]


def by_hand(model: pf.FlowModel, first: torch.Tensor, second: torch.Tensor, seen: tuple[int, int]) -> pf.FlowResult:
    """Enlarge, estimate as it is, and bring back."""
    size = (first.shape[2], first.shape[3])
    found = model.network(normalised(resized(first, seen)), normalised(resized(second, seen)))
    pixel = math.sqrt(seen[0] * seen[1] / (size[0] * size[1]))
    confidence = confidence_of(found.log_scales[-1] - math.log(pixel))
    maps = resized_flow(torch.cat((found.flows[-1], confidence), dim=1), size)[0]
    return pf.FlowResult(maps[:2], maps[2:])


@torch.no_grad()
def test_a_zoom_of_one_is_the_network_as_it_is(tiny: pf.FlowModel, scene: FlowSample) -> None:
    found = tiny.network(normalised(scene.first), normalised(scene.second))
    for zoom in (1, 1.0, None):  # the smallest network enlarges nothing by itself
        result = tiny.flow(scene.first, scene.second, zoom=zoom)
        assert torch.equal(result.flow, found.flows[-1][0]) and result.seen is None
        assert torch.equal(result.confidence, confidence_of(found.log_scales[-1][0]))


@torch.no_grad()
@pytest.mark.parametrize(("zoom", "seen"), [(2, (74, 122)), (1.5, (56, 92)), (0.5, (18, 30))])
def test_a_zoom_is_what_one_would_do_by_hand(
    tiny: pf.FlowModel, scene: FlowSample, zoom: float, seen: tuple[int, int]
) -> None:
    expected = by_hand(tiny, scene.first, scene.second, seen)
    result = tiny.flow(scene.first, scene.second, zoom=zoom)
    assert result.flow.shape == (2, 37, 61) and result.confidence.shape == (1, 37, 61) and result.seen == seen
    torch.testing.assert_close(result.flow, expected.flow, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(result.confidence, expected.confidence, atol=1e-6, rtol=1e-6)


def test_a_network_enlarges_small_images_by_itself(tiny: pf.FlowModel, scene: FlowSample) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", flow_pixels=4 * 37 * 61)
    model.network.load_state_dict(tiny.network.state_dict())
    own = model.flow(scene.first, scene.second)
    assert own.seen == (74, 122)
    assert torch.equal(own.flow, tiny.flow(scene.first, scene.second, zoom=2).flow)
    assert torch.equal(model.flow(scene.first, scene.second, zoom=1).flow, tiny.flow(scene.first, scene.second).flow)
    (step,) = model.flow_video([scene.first[0], scene.second[0]], precision="full")
    assert step.seen == (74, 122)
    torch.testing.assert_close(step.flow, own.flow, **CLOSE)


def test_the_confidence_is_that_in_a_pixel_of_the_image(tiny: pf.FlowModel) -> None:
    """Of grey, which is the same enlarged: an error of a pixel as the network sees it is half a pixel of the image."""
    grey = torch.full((3, 64, 64), 0.5)
    large = tiny.flow(torch.full((3, 128, 128), 0.5), torch.full((3, 128, 128), 0.5), updates=1).confidence
    zoomed = tiny.flow(grey, grey, updates=1, zoom=2).confidence
    torch.testing.assert_close(1 - zoomed[:, 8:-8, 8:-8].mean(), (1 - large[:, 16:-16, 16:-16].mean()) ** 2, **CLOSE)


def test_occlusion_and_prototypes_come_along(tiny: pf.FlowModel, scene: FlowSample) -> None:
    both = tiny.flow(scene.first, scene.second, zoom=2, occlusion=True, prototypes=True)
    back = tiny.flow(scene.second, scene.first, zoom=2)
    assert both.occlusion is not None and both.occlusion.shape == (1, 37, 61)
    expected = occlusion_by_consistency(both.flow[None], back.flow[None])[0]
    assert (both.occlusion != expected).float().mean() < 0.01
    enlarged = resized(scene.first, (74, 122)), resized(scene.second, (74, 122))
    own = tiny.flow(*enlarged, prototypes=True).prototypes
    for stage, of_enlarged in zip(both.prototypes, own, strict=True):
        assert [each.size for each in stage] == [each.size for each in of_enlarged]


@pytest.mark.parametrize("zoom", [1.6, 0.7])
@pytest.mark.parametrize("tile", [None, (40, 56)])
def test_a_clip_gives_what_its_pairs_give_whatever_the_batch(
    tiny: pf.FlowModel, frames: list[np.ndarray], tile: tuple[int, int] | None, zoom: float
) -> None:
    pairs = [tiny.flow(*pair, updates=2, tile=tile, zoom=zoom) for pair in itertools.pairwise(frames)]
    for batch in (1, 2, 16):
        options = {"tile": tile, "batch": batch, "updates": 2, "precision": "full", "zoom": zoom}
        steps = list(tiny.flow_video(frames, **options))
        assert [step.flow.shape for step in steps] == [(2, 45, 51)] * 3
        for step, pair in zip(steps, pairs, strict=True):
            assert step.seen == pair.seen == (round(zoom * 45), round(zoom * 51))
            torch.testing.assert_close(step.flow, pair.flow, **CLOSE)
            torch.testing.assert_close(step.confidence, pair.confidence, **CLOSE)


def test_a_warm_start_is_that_of_the_pair_before(tiny: pf.FlowModel, frames: list[np.ndarray]) -> None:
    steps = list(tiny.flow_video(frames[:3], updates=2, warm_start=True, precision="full", zoom=2))
    before = tiny.flow(frames[0], frames[1], updates=2, zoom=2)
    after = tiny.flow(frames[1], frames[2], updates=2, zoom=2, previous=before)
    torch.testing.assert_close(steps[1].flow, after.flow, **CLOSE)
    cold = tiny.flow(frames[1], frames[2], updates=2, zoom=2)
    assert (after.flow - cold.flow).abs().max() > 1e-3


def test_what_is_carried_on_moves_as_far_as_the_enlarged_images_do() -> None:
    pan = torch.tensor([8.0, -4.0]).view(2, 1, 1).expand(2, 64, 96)
    start = carried_start(pan, (128, 192), CPU)
    torch.testing.assert_close(start, torch.tensor([16.0, -8.0]).view(1, 2, 1, 1).expand(1, 2, 128, 192))


class TestPlans:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planning, "free_bytes", lambda _: 64 * 10**9)
        monkeypatch.setattr(planning, "_resident", lambda: 0)

    def test_the_memory_is_that_of_the_enlarged_images(self) -> None:
        seen = seen_size((240, 320), FAST)
        assert seen == (480, 640)
        plan = plan_flow((240, 320), FAST, CPU, memory=400 * 10**6, seen=seen)
        assert plan.tile is not None and [side.stop for side in plan.windows[-1]] == [480, 640]
        window = planning._bytes(plan.tile, FAST, stored=not plan.low_memory, halved=False)
        assert window + FRAME_BYTES * 480 * 640 <= 400 * 10**6
        assert plan_flow((240, 320), FAST, CPU, memory=400 * 10**6).tile is None

    def test_they_say_how_images_are_looked_at(self) -> None:
        small, large = ((384, 512), (1080, 1920))
        assert str(plan_flow(small, FAST, CPU, seen=seen_size(small, FAST))) == (
            "whole images looked at enlarged 1.5 times, one at a time"
        )
        assert str(plan_flow(large, FAST, CPU, seen=seen_size(large, FAST, 0.5))) == (
            "whole images looked at shrunk 0.5 times, one at a time"
        )
        assert str(plan_flow(large, FAST, CPU, seen=seen_size(large, FAST))) == "whole images, one at a time"

    def test_what_does_not_fit_is_told_with_its_zoom(
        self, tiny: pf.FlowModel, clip: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flow_module, "free_bytes", lambda _: 2**20)
        said = r"flow at 160x96 pixels \(images of 40x24, with a zoom of 4\) takes"
        with pytest.raises(pf.InputError, match=rf"{said} .* make the images or the zoom smaller\.$"):
            tiny.flow(clip[0], clip[1], zoom=4)
        with pytest.raises(pf.InputError, match=said):
            tiny.flow(clip[0], clip[1], zoom=4, memory=2**20)


@pytest.mark.parametrize("zoom", [0, 0.2, 4.1, -1, math.nan, math.inf, True, "2"])
def test_a_zoom_that_cannot_be_is_one_sentence(tiny: pf.FlowModel, clip: list[torch.Tensor], zoom: object) -> None:
    said = r"images cannot be looked at .* times as large; give a zoom from 0\.25 to 4\.$"
    with pytest.raises(pf.InputError, match=said):
        tiny.flow(clip[0], clip[1], zoom=zoom)  # type: ignore[arg-type]
    with pytest.raises(pf.InputError, match=said):
        tiny.flow_video(clip, zoom=zoom)  # type: ignore[arg-type]


def test_the_smallest_images_can_be_looked_at_in_any_way(tiny: pf.FlowModel) -> None:
    for zoom in (0.25, 4):
        assert tiny.flow(torch.rand(3, 1, 3), torch.rand(3, 1, 3), updates=1, zoom=zoom).flow.shape == (2, 1, 3)


def test_a_configuration_of_before_is_read_as_one_that_enlarges() -> None:
    fields = FAST.as_dict()
    del fields["flow_pixels"]
    assert pf.ModelConfig.from_dict(fields) == FAST and FAST.flow_pixels == 440 * 1024
    assert [name for name, config in pf.PRESETS.items() if config.flow_pixels == 1] == ["paper", "tiny"]


def test_the_packages_weights_are_better_on_small_images_that_they_see_enlarged() -> None:
    model = pf.load("flow", device="cpu")
    assert model.network.config == FAST
    sample = flow_sample(World("objects", seed=11, size=(96, 128)).renderer([5]))
    errors = []
    for zoom in (1, None):
        found = model.flow(sample.first[0], sample.second[0], zoom=zoom)
        errors.append(float((found.flow - sample.flow[0]).norm(dim=0)[sample.valid[0, 0]].mean()))
    assert errors[1] < 0.8 * errors[0]
