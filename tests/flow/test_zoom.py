"""Small frames are processed enlarged, and the flow is returned in their own pixels."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import protoformer as pf
from protoformer.flow import predictor as flow_module
from protoformer.flow import tiling as planning
from protoformer.flow.engine import flow_confidence, propagate_flow
from protoformer.flow.tiling import FRAME_BYTES, plan_flow, working_size
from protoformer.geometry.warps import occlusion_by_consistency, resize, resize_flow
from protoformer.models.runtime import normalize_images
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import flow_sample
from protoformer.synthetic.samples import FlowSample

CPU = torch.device("cpu")
FAST = pf.PRESETS["fast"]
SMALL = (240, 320)
CLOSE = {"atol": 1e-4, "rtol": 0}


def by_hand(model: pf.FlowPredictor, first: torch.Tensor, second: torch.Tensor, seen: tuple[int, int]) -> pf.FlowResult:
    """Enlarge, estimate as it is, and bring back."""
    size = (first.shape[2], first.shape[3])
    output = model.network(normalize_images(resize(first, seen)), normalize_images(resize(second, seen)))
    pixel = math.sqrt(seen[0] * seen[1] / (size[0] * size[1]))
    confidence = flow_confidence(output.log_scales[-1] - math.log(pixel))
    maps = resize_flow(torch.cat((output.flows[-1], confidence), dim=1), size)[0]
    return pf.FlowResult(maps[:2], maps[2:])


@torch.no_grad()
def test_a_zoom_of_one_is_the_network_as_it_is(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    output = tiny.network(normalize_images(scene.first), normalize_images(scene.second))
    for zoom in (1, 1.0, None):  # the smallest network enlarges nothing by itself
        result = tiny.flow(scene.first, scene.second, zoom=zoom)
        assert torch.equal(result.flow, output.flows[-1][0]) and result.input_size is None
        assert torch.equal(result.confidence, flow_confidence(output.log_scales[-1][0]))


@torch.no_grad()
@pytest.mark.parametrize(("zoom", "seen"), [(2, (74, 122)), (1.5, (56, 92)), (0.5, (18, 30))])
def test_a_zoom_is_what_one_would_do_by_hand(
    tiny: pf.FlowPredictor, scene: FlowSample, zoom: float, seen: tuple[int, int]
) -> None:
    expected = by_hand(tiny, scene.first, scene.second, seen)
    result = tiny.flow(scene.first, scene.second, zoom=zoom)
    assert result.flow.shape == (2, 37, 61) and result.confidence.shape == (1, 37, 61) and result.input_size == seen
    torch.testing.assert_close(result.flow, expected.flow, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(result.confidence, expected.confidence, atol=1e-6, rtol=1e-6)


def test_a_network_enlarges_small_images_by_itself(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", flow={"min_pixels": 4 * 37 * 61})
    model.network.load_state_dict(tiny.network.state_dict())
    own = model.flow(scene.first, scene.second)
    assert own.input_size == (74, 122)
    assert torch.equal(own.flow, tiny.flow(scene.first, scene.second, zoom=2).flow)
    assert torch.equal(model.flow(scene.first, scene.second, zoom=1).flow, tiny.flow(scene.first, scene.second).flow)
    (step,) = model.flow_video([scene.first[0], scene.second[0]], precision="full")
    assert step.input_size == (74, 122)
    torch.testing.assert_close(step.flow, own.flow, **CLOSE)


def test_the_confidence_is_that_in_a_pixel_of_the_image(tiny: pf.FlowPredictor) -> None:
    """Of gray, which is the same enlarged: an error of a pixel as the network sees it is half a pixel of the image."""
    gray = torch.full((3, 64, 64), 0.5)
    large = tiny.flow(torch.full((3, 128, 128), 0.5), torch.full((3, 128, 128), 0.5), num_updates=1).confidence
    zoomed = tiny.flow(gray, gray, num_updates=1, zoom=2).confidence
    torch.testing.assert_close(1 - zoomed[:, 8:-8, 8:-8].mean(), (1 - large[:, 16:-16, 16:-16].mean()) ** 2, **CLOSE)


def test_occlusion_and_prototypes_come_along(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    both = tiny.flow(scene.first, scene.second, zoom=2, occlusion=True, return_prototypes=True)
    back = tiny.flow(scene.second, scene.first, zoom=2)
    assert both.occlusion is not None and both.occlusion.shape == (1, 37, 61)
    expected = occlusion_by_consistency(both.flow[None], back.flow[None])[0]
    assert (both.occlusion != expected).float().mean() < 0.01
    enlarged = resize(scene.first, (74, 122)), resize(scene.second, (74, 122))
    own = tiny.flow(*enlarged, zoom=1, return_prototypes=True).prototypes
    for stage, of_enlarged in zip(both.prototypes, own, strict=True):
        for each, expected in zip(stage, of_enlarged, strict=True):
            assert each.size == expected.size
            assert (each.owners != expected.owners).float().mean() < 0.01


@pytest.mark.parametrize("zoom", [1.6, 0.7])
@pytest.mark.parametrize("tile", [None, (40, 56)])
def test_a_clip_gives_what_its_pairs_give_whatever_the_batch(
    tiny: pf.FlowPredictor, frames: list[np.ndarray], tile: tuple[int, int] | None, zoom: float
) -> None:
    frames = [frame[:45, :51] for frame in frames[:4]]
    pairs = [tiny.flow(*pair, num_updates=2, tile=tile, zoom=zoom) for pair in itertools.pairwise(frames)]
    for batch in (1, 2, 16):
        options = {"tile": tile, "batch_size": batch, "num_updates": 2, "precision": "full", "zoom": zoom}
        steps = list(tiny.flow_video(frames, **options))
        assert [step.flow.shape for step in steps] == [(2, 45, 51)] * 3
        for step, pair in zip(steps, pairs, strict=True):
            assert step.input_size == pair.input_size == (round(zoom * 45), round(zoom * 51))
            torch.testing.assert_close(step.flow, pair.flow, **CLOSE)
            torch.testing.assert_close(step.confidence, pair.confidence, **CLOSE)


def test_a_warm_start_is_that_of_the_pair_before(tiny: pf.FlowPredictor, frames: list[np.ndarray]) -> None:
    steps = list(tiny.flow_video(frames[:3], num_updates=2, warm_start=True, precision="full", zoom=2))
    before = tiny.flow(frames[0], frames[1], num_updates=2, zoom=2)
    after = tiny.flow(frames[1], frames[2], num_updates=2, zoom=2, previous=before)
    torch.testing.assert_close(steps[1].flow, after.flow, **CLOSE)
    cold = tiny.flow(frames[1], frames[2], num_updates=2, zoom=2)
    assert (after.flow - cold.flow).abs().max() > 1e-3


def test_what_is_carried_on_moves_as_far_as_the_enlarged_images_do() -> None:
    pan = torch.tensor([8.0, -4.0]).view(2, 1, 1).expand(2, 64, 96)
    start = propagate_flow(pan, (128, 192), CPU)
    torch.testing.assert_close(start, torch.tensor([16.0, -8.0]).view(1, 2, 1, 1).expand(1, 2, 128, 192))


class TestPlans:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planning, "free_bytes", lambda _: 64 * 10**9)
        monkeypatch.setattr(planning, "_resident_bytes", lambda: 0)

    def test_the_memory_is_that_of_the_enlarged_images(self) -> None:
        plan = plan_flow(SMALL, FAST, CPU, memory=400 * 10**6, zoom=2)
        assert plan.working == (480, 640)
        assert plan.tile is not None and [side.stop for side in plan.tiles[-1]] == [480, 640]
        window = planning._required_bytes(FAST, CPU, False, 1, plan.tile, not plan.low_memory)
        assert window + FRAME_BYTES * 480 * 640 <= 400 * 10**6

    def test_images_are_enlarged_by_themselves_only_where_they_fit_as_a_whole(self) -> None:
        assert plan_flow(SMALL, FAST, CPU).working == (480, 640)
        own = plan_flow(SMALL, FAST, CPU, memory=400 * 10**6)
        assert own == plan_flow(SMALL, FAST, CPU, memory=400 * 10**6, zoom=1)
        assert own.working == SMALL and own.tile is None and not own.low_memory

    @given(
        size=st.tuples(st.integers(1, 600), st.integers(1, 600)),
        memory=st.integers(10**7, 2 * 10**9),
        tile=st.sampled_from([None, "auto", (128, 256), (432, 960)]),
        batch=st.sampled_from([None, 1, 4]),
        half=st.booleans(),
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_fails_or_goes_in_windows_does_so_at_its_own_size_too(
        self, size: tuple[int, int], memory: int, tile: planning.TileSize, batch: int | None, half: bool
    ) -> None:
        def planned(zoom: float | None) -> planning.FlowPlan | None:
            try:
                return plan_flow(size, FAST, CPU, tile, memory, batch, half, zoom)
            except pf.InputError:
                return None

        chosen, own = planned(None), planned(1)
        if chosen != own:
            assert chosen is not None and chosen.tile is None and not chosen.low_memory
            assert chosen.working == planning.enlarged_size(size, FAST.flow.min_pixels, 16) != size

    def test_several_at_once_need_as_much_more(self) -> None:
        gpu, memory = torch.device("cuda"), 700 * 10**6
        assert plan_flow(SMALL, FAST, gpu, memory=memory).working == (480, 640)
        assert plan_flow(SMALL, FAST, gpu, memory=memory, pairs=2).working == SMALL
        assert plan_flow(SMALL, FAST, gpu, memory=memory, batch_size=2).working == SMALL

    def test_windows_that_are_asked_for_are_of_images_as_they_are(self) -> None:
        assert plan_flow(SMALL, FAST, CPU, tile=(480, 640)).working == (480, 640)
        plan = plan_flow(SMALL, FAST, CPU, tile=(479, 640))
        assert plan.working == SMALL and plan.tile is None
        assert working_size(SMALL, FAST, CPU, tile=(480, 640)) == (480, 640)
        assert working_size(SMALL, FAST, CPU, tile=(480, 639)) == SMALL

    def test_they_say_how_images_are_looked_at(self) -> None:
        small, large = ((384, 512), (1080, 1920))
        assert str(plan_flow(small, FAST, CPU)) == "whole images resized by 1.5, one at a time"
        assert str(plan_flow(large, FAST, CPU, zoom=0.5)) == "whole images resized by 0.5, one at a time"
        assert str(plan_flow(large, FAST, CPU)) == "whole images, one at a time"

    def test_what_does_not_fit_is_told_with_its_zoom(
        self, tiny: pf.FlowPredictor, clip: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flow_module, "free_bytes", lambda _: 2**20)
        said = r"flow at 160x96 pixels \(images of 40x24, with a zoom of 4\) takes"
        with pytest.raises(pf.InputError, match=rf"{said} .* make the images or the zoom smaller\.$"):
            tiny.flow(clip[0], clip[1], zoom=4)
        with pytest.raises(pf.InputError, match=rf"{said} .* make the images, the tiles or the zoom smaller, or"):
            tiny.flow(clip[0], clip[1], zoom=4, memory=2**20)


class TestScarceMemory:
    """A network that would enlarge a pair of 61x37 pixels to 122x74, which is padded to 128x80."""

    @pytest.fixture
    def eager(self, tiny: pf.FlowPredictor) -> pf.FlowPredictor:
        with pytest.warns(pf.UntrainedWarning):
            model = pf.load("tiny", device="cpu", flow={"min_pixels": 4 * 37 * 61})
        model.network.load_state_dict(tiny.network.state_dict())
        return model

    def leave(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        monkeypatch.setattr(planning, "_resident_bytes", lambda: 0)
        for module in (planning, flow_module):
            monkeypatch.setattr(module, "free_bytes", lambda _: free)

    def test_a_pair_is_seen_at_its_own_size(
        self, eager: pf.FlowPredictor, tiny: pf.FlowPredictor, scene: FlowSample, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = (scene.first, scene.second)
        own = tiny.flow(*pair, num_updates=1)
        self.leave(monkeypatch, 16 * 10**6)
        for limits in ({}, {"tile": "auto"}, {"memory": 12 * 10**6}):
            output = eager.flow(*pair, num_updates=1, **limits)
            assert output.input_size is None and torch.equal(output.flow, own.flow)
        (step,) = eager.flow_video([scene.first[0], scene.second[0]], num_updates=1, precision="full")
        assert step.input_size is None
        torch.testing.assert_close(step.flow, own.flow, **CLOSE)
        with pytest.raises(pf.InputError, match=r"122x74 pixels \(images of 61x37, with a zoom of 2\) takes"):
            eager.flow(*pair, num_updates=1, zoom=2)

    def test_the_flow_back_at_the_same_time_takes_twice_as_much(
        self, eager: pf.FlowPredictor, scene: FlowSample, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair = (scene.first, scene.second)
        self.leave(monkeypatch, 34 * 10**6)
        assert eager.flow(*pair, num_updates=1).input_size == (74, 122)
        assert eager.flow(*pair, num_updates=1, occlusion=True).input_size is None
        assert eager.flow(*pair, num_updates=1, occlusion=True, tile="auto").input_size == (
            74,
            122,
        )  # one after the other
        assert eager.flow(*pair, num_updates=1, occlusion=True, return_prototypes=True, tile="auto").input_size is None

    def test_a_pair_of_240x320_takes_400_mib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = pf.load("flow", device="cpu")
        self.leave(monkeypatch, 400 * 2**20)
        pair = torch.rand(2, 3, *SMALL, generator=torch.Generator().manual_seed(0))
        assert model.flow(*pair, num_updates=1).input_size is None


@pytest.mark.parametrize("zoom", [np.float32(2), np.float64(2), np.int64(2), Fraction(2)])
def test_a_zoom_is_any_real_number(tiny: pf.FlowPredictor, clip: list[torch.Tensor], zoom: Any) -> None:
    output = tiny.flow(clip[0], clip[1], num_updates=1, zoom=zoom)
    assert output.input_size == (48, 80) and torch.equal(
        output.flow, tiny.flow(clip[0], clip[1], num_updates=1, zoom=2).flow
    )


@pytest.mark.parametrize(
    "zoom", [np.bool_(True), 2j, np.float32("nan"), 0, 0.2, 4.1, -1, math.nan, math.inf, True, "2"]
)
def test_a_zoom_that_cannot_be_is_one_sentence(tiny: pf.FlowPredictor, clip: list[torch.Tensor], zoom: object) -> None:
    said = r"images cannot be resized by a zoom of .*; give a zoom from 0\.25 to 4\.$"
    with pytest.raises(pf.InputError, match=said):
        tiny.flow(clip[0], clip[1], zoom=zoom)  # type: ignore[arg-type]
    with pytest.raises(pf.InputError, match=said):
        tiny.flow_video(clip, zoom=zoom)  # type: ignore[arg-type]


def test_the_smallest_images_can_be_looked_at_in_any_way(tiny: pf.FlowPredictor) -> None:
    for zoom in (0.25, 4):
        assert tiny.flow(torch.rand(3, 1, 3), torch.rand(3, 1, 3), num_updates=1, zoom=zoom).flow.shape == (2, 1, 3)


@pytest.mark.parametrize("name", list(pf.PRESETS))
def test_a_configuration_of_before_is_read_as_one_that_enlarges_nothing(name: str) -> None:
    fields = pf.PRESETS[name].as_dict()
    assert fields["flow"].pop("min_pixels") == (440 * 1024 if name == "fast" else 1)
    before = pf.ModelConfig.from_dict(fields)
    assert before == pf.PRESETS[name].changed(flow={"min_pixels": 1})
    assert working_size((24, 32), before, CPU) == (24, 32)


def test_the_packages_weights_are_better_on_small_images_that_they_see_enlarged() -> None:
    model = pf.load("flow", device="cpu")
    assert model.network.config == FAST.changed(encoder={"spatial_prior": False})  # trained before there was one
    sample = flow_sample(SyntheticScenes("objects", seed=11, size=(96, 128)).renderer([5]))
    errors = []
    for zoom in (1, None):
        output = model.flow(sample.first[0], sample.second[0], zoom=zoom)
        errors.append(float((output.flow - sample.flow[0]).norm(dim=0)[sample.valid[0, 0]].mean()))
    assert errors[1] < 0.8 * errors[0]
