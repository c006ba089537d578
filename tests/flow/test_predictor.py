"""Any two images of the same size give a flow of that size."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.errors import InputError
from protoformer.flow import predictor as flow_module
from protoformer.io.memory import BYTES_PER_PIXEL, free_bytes
from protoformer.synthetic.samples import FlowSample
from protoformer.viz.colormaps import to_uint8


@pytest.mark.parametrize("size", [(1, 1), (15, 15), (64, 64), (37, 61), (61, 37), (2, 90), (8, 2000), (300, 1)])
def test_flow_has_the_size_of_the_images(tiny: pf.FlowPredictor, size: tuple[int, int]) -> None:
    first, second = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    result = tiny.flow(first, second, num_updates=2)
    assert result.flow.shape == (2, *size) and result.flow.dtype == torch.float32
    assert result.confidence.shape == (1, *size)
    assert result.flow.isfinite().all()
    assert result.confidence.min() >= 0 and result.confidence.max() <= 1


def test_only_what_was_asked_for_is_there(result: pf.FlowResult) -> None:
    assert result.occlusion is None and result.prototypes == ()
    assert not result.trained


def test_the_same_pair_gives_the_same_flow(tiny: pf.FlowPredictor, scene: FlowSample, result: pf.FlowResult) -> None:
    again = tiny.flow(scene.first, scene.second)
    assert torch.equal(again.flow, result.flow) and torch.equal(again.confidence, result.confidence)


def test_paths_arrays_and_tensors_give_one_flow(tiny: pf.FlowPredictor, scene: FlowSample, tmp_path: Path) -> None:
    arrays = [to_uint8(scene.first[0]), to_uint8(scene.second[0])]
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, array in zip(paths, arrays, strict=True):
        Image.fromarray(array).save(path)
    tensors = [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]
    pairs = (arrays, paths, map(str, paths), tensors, (paths[0], tensors[1]))
    flows = [tiny.flow(first, second, num_updates=2).flow for first, second in pairs]
    for flow in flows[1:]:
        torch.testing.assert_close(flow, flows[0], atol=1e-4, rtol=0)


def test_a_result_can_be_changed_and_learned_from(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    flow = tiny.flow(scene.first, scene.second, num_updates=1).flow
    gain = torch.ones((), requires_grad=True)
    (gain * flow.mul_(2)).sum().backward()
    assert gain.grad is not None


def test_no_gradient_is_kept(result: pf.FlowResult) -> None:
    assert not result.flow.requires_grad and not result.confidence.requires_grad


def test_images_of_two_sizes_are_refused_by_both_sizes(tiny: pf.FlowPredictor, tmp_path: Path) -> None:
    Image.new("RGB", (40, 24)).save(tmp_path / "wide.png")
    sizes = f"{tmp_path / 'wide.png'} is 40x24 pixels and the second image is 24x40; "
    with pytest.raises(InputError, match=re.escape(sizes)):
        tiny.flow(tmp_path / "wide.png", np.zeros((40, 24, 3)))


def test_a_bad_image_is_called_first_or_second(tiny: pf.FlowPredictor) -> None:
    good, bad = np.zeros((4, 4)), np.full((4, 4), np.nan)
    with pytest.raises(InputError, match="the first image contains NaN"):
        tiny.flow(bad, good)
    with pytest.raises(InputError, match="the second image contains NaN"):
        tiny.flow(good, bad)


class TestOcclusion:
    def test_it_marks_pixels(self, tiny: pf.FlowPredictor, scene: FlowSample, result: pf.FlowResult) -> None:
        seen = tiny.flow(scene.first, scene.second, occlusion=True)
        assert seen.occlusion is not None
        assert seen.occlusion.shape == (1, 37, 61) and seen.occlusion.dtype == torch.bool
        torch.testing.assert_close(seen.flow, result.flow, atol=1e-3, rtol=0)

    def test_pixels_that_leave_are_hidden(self, tiny: pf.FlowPredictor, scene: FlowSample) -> None:
        seen = tiny.flow(scene.first, scene.second, occlusion=True)
        height, width = seen.flow.shape[1:]
        x = torch.arange(width) + seen.flow[0]
        y = torch.arange(height)[:, None] + seen.flow[1]
        leaves = (x < 0) | (x > width - 1) | (y < 0) | (y > height - 1)
        assert leaves.any()
        assert seen.occlusion[0][leaves].all()


class TestPrototypes:
    def test_they_are_those_of_the_first_image(self, tiny: pf.FlowPredictor, scene: FlowSample) -> None:
        output = tiny.flow(scene.first, scene.second, return_prototypes=True, num_updates=1).prototypes
        with_another = tiny.flow(scene.first, 1 - scene.second, return_prototypes=True, num_updates=1).prototypes
        swapped = tiny.flow(scene.second, scene.first, return_prototypes=True, num_updates=1).prototypes
        for stage, other_stage, swapped_stage in zip(output, with_another, swapped, strict=True):
            for one, same, different in zip(stage, other_stage, swapped_stage, strict=True):
                torch.testing.assert_close(one.centers, same.centers, atol=1e-4, rtol=0)
                assert not torch.allclose(one.centers, different.centers, atol=1e-4)

    def test_every_stage_and_block_has_some(self, tiny: pf.FlowPredictor, scene: FlowSample) -> None:
        output = tiny.flow(scene.first, scene.second, return_prototypes=True, occlusion=True, num_updates=1).prototypes
        assert [len(stage) for stage in output] == list(tiny.network.config.encoder.depths)
        # 61x37 pixels are padded to 64x64, of which the stages see 1/4 and 1/8.
        for stage, side, width in zip(output, (16, 8), tiny.network.config.encoder.embed_dims, strict=True):
            assert stage[0].size == (side, side)
            assert stage[0].centers.shape == (1, 16, width)
            assert stage[0].memberships.shape == (1, width // 32, 16, side**2)

    def test_a_pixel_belongs_wholly_to_its_prototypes(self, tiny: pf.FlowPredictor, scene: FlowSample) -> None:
        for stage in tiny.flow(scene.first, scene.second, return_prototypes=True, num_updates=1).prototypes:
            for one in stage:
                shares = one.memberships.sum(dim=2)
                torch.testing.assert_close(shares, torch.ones_like(shares))


class TestPrevious:
    def test_a_start_from_no_motion_is_no_start(self, tiny: pf.FlowPredictor, clip: list[torch.Tensor]) -> None:
        still = pf.FlowResult(torch.zeros(2, 24, 40), torch.ones(1, 24, 40))
        cold, warm = (tiny.flow(clip[0], clip[1], previous=previous) for previous in (None, still))
        torch.testing.assert_close(warm.flow, cold.flow, atol=1e-4, rtol=0)

    def test_a_start_is_taken_up(self, tiny: pf.FlowPredictor, clip: list[torch.Tensor]) -> None:
        pan = pf.FlowResult(torch.tensor([16.0, 0.0]).view(2, 1, 1).expand(2, 24, 40), torch.ones(1, 24, 40))
        cold = tiny.flow(clip[0], clip[1], num_updates=1)
        warm = tiny.flow(clip[0], clip[1], num_updates=1, previous=pan)
        # An untrained update moves the estimate little, so a start 16 px to the right shows.
        assert float((warm.flow[0] - cold.flow[0]).mean()) == pytest.approx(16, abs=4)

    def test_it_goes_with_occlusion(self, tiny: pf.FlowPredictor, clip: list[torch.Tensor]) -> None:
        before = tiny.flow(clip[0], clip[1])
        plain = tiny.flow(clip[1], clip[2], previous=before)
        both = tiny.flow(clip[1], clip[2], previous=before, occlusion=True)
        torch.testing.assert_close(both.flow, plain.flow, atol=1e-3, rtol=0)

    def test_a_start_of_another_size_is_refused(self, tiny: pf.FlowPredictor, clip: list[torch.Tensor]) -> None:
        before = pf.FlowResult(torch.zeros(2, 40, 24), torch.ones(1, 40, 24))
        with pytest.raises(InputError, match="previous flow is of 24x40 pixels and the images are 40x24"):
            tiny.flow(clip[0], clip[1], previous=before)


class TestUpdates:
    @pytest.mark.parametrize("updates", [0, -1, 2.5, "3"])
    def test_fewer_than_one_are_refused(self, tiny: pf.FlowPredictor, clip: list[torch.Tensor], updates: int) -> None:
        with pytest.raises(InputError, match=f"{updates!r} updates cannot be run; give a whole number, 1 or more"):
            tiny.flow(clip[0], clip[1], num_updates=updates)

    @pytest.mark.parametrize("occlusion", [False, True])
    @pytest.mark.parametrize("updates", [1, 4, None])
    def test_each_is_told_once_and_in_order(
        self, tiny: pf.FlowPredictor, clip: list[torch.Tensor], updates: int | None, occlusion: bool
    ) -> None:
        calls: list[tuple[int, int]] = []
        tiny.flow(
            clip[0],
            clip[1],
            num_updates=updates,
            occlusion=occlusion,
            progress=lambda done, total: calls.append((done, total)),
        )
        total = updates or tiny.network.config.flow.num_updates
        assert calls == [(done, total) for done in range(1, total + 1)]

    def test_nobody_is_told_of_the_next_pair(self, tiny: pf.FlowPredictor, clip: list[torch.Tensor]) -> None:
        calls: list[int] = []
        tiny.flow(clip[0], clip[1], num_updates=2, progress=lambda done, _: calls.append(done))
        tiny.flow(clip[1], clip[2], num_updates=2)
        assert calls == [1, 2]

    def test_an_interrupted_pair_leaves_the_model_as_it_was(
        self, tiny: pf.FlowPredictor, clip: list[torch.Tensor]
    ) -> None:
        def interrupt(*_: int) -> None:
            raise KeyboardInterrupt

        before = tiny.flow(clip[0], clip[1], num_updates=2).flow
        with pytest.raises(KeyboardInterrupt):
            tiny.flow(clip[0], clip[1], num_updates=2, progress=interrupt)
        assert torch.equal(tiny.flow(clip[0], clip[1], num_updates=2).flow, before)


class TestMemory:
    @pytest.mark.parametrize("occlusion", [False, True])
    def test_a_pair_too_large_is_refused_before_it_is_tried(
        self, tiny: pf.FlowPredictor, clip: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, occlusion: bool
    ) -> None:
        monkeypatch.setattr(flow_module, "free_bytes", lambda _: 2**20)
        with pytest.raises(InputError, match=r"flow at 40x24 pixels takes about .* MiB .* make the images smaller"):
            tiny.flow(clip[0], clip[1], occlusion=occlusion)

    def test_flow_both_ways_takes_twice_as_much(self, tiny: pf.FlowPredictor, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = torch.rand(2, 3, 64, 64)
        monkeypatch.setattr(flow_module, "free_bytes", lambda _: BYTES_PER_PIXEL["recurrent"] * 64 * 64)
        tiny.flow(first, second, num_updates=1)
        with pytest.raises(InputError, match="make the images smaller"):
            tiny.flow(first, second, num_updates=1, occlusion=True)

    def test_a_thin_pair_takes_what_its_padding_takes(
        self, tiny: pf.FlowPredictor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One row of pixels is padded to 64 rows."""
        monkeypatch.setattr(flow_module, "free_bytes", lambda _: BYTES_PER_PIXEL["recurrent"] * 64 * 800 - 1)
        with pytest.raises(InputError, match="flow at 800x1 pixels"):
            tiny.flow(torch.rand(3, 1, 800), torch.rand(3, 1, 800))

    def test_where_nobody_can_tell_it_is_tried(
        self, tiny: pf.FlowPredictor, clip: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flow_module, "free_bytes", lambda _: None)
        assert tiny.flow(clip[0], clip[1], num_updates=1).flow.shape == (2, 24, 40)

    def test_free_memory_is_known_where_the_system_says_it(self) -> None:
        free = free_bytes(torch.device("cpu"))
        assert free is None or free > 2**20
        assert free_bytes(torch.device("meta")) is None

    def test_the_flow_does_not_depend_on_how_costs_are_stored(self, tiny: pf.FlowPredictor, scene: FlowSample) -> None:
        stored = tiny.flow(scene.first, scene.second, low_memory=False)
        on_demand = tiny.flow(scene.first, scene.second, low_memory=True)
        torch.testing.assert_close(on_demand.flow, stored.flow, atol=1e-3, rtol=0)
        torch.testing.assert_close(on_demand.confidence, stored.confidence, atol=1e-3, rtol=0)
