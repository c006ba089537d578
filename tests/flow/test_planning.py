"""Large images are processed in tiles that fit into memory, without visible seams."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import protoformer as pf
from protoformer.errors import InputError
from protoformer.flow import tiling as planning
from protoformer.flow.tiling import FRAME_BYTES, FlowPlan, plan_flow
from protoformer.io.memory import BYTES_PER_PIXEL
from protoformer.models.kernels import dispatch
from protoformer.synthetic.layers import random_scene

CPU = torch.device("cpu")
FAST, PAPER = pf.PRESETS["fast"], pf.PRESETS["paper"]
GB = 10**9


def whole_images(size: tuple[int, int]) -> FlowPlan:
    return FlowPlan(size, size, tile=None, batch_size=1, low_memory=False)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds nothing on a machine with 64 GB."""
    monkeypatch.setattr(planning, "free_bytes", lambda _: 64 * GB)
    monkeypatch.setattr(planning, "_resident_bytes", lambda: 0)


@pytest.mark.usefixtures("alone")
class TestPlans:
    def test_what_fits_stays_whole(self) -> None:
        assert plan_flow((440, 1024), FAST, CPU) == whole_images((440, 1024))

    def test_4k_goes_in_windows_of_a_multiple_of_eight(self) -> None:
        plan = plan_flow((2160, 3840), FAST, CPU, memory=4 * GB)
        assert plan.tile is not None and all(side % 8 == 0 for side in plan.tile)
        assert str(plan) == f"{len(plan.tiles)} tiles of {plan.tile[0]}x{plan.tile[1]} per image, one at a time"

    @given(
        size=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
        memory=st.integers(GB, 40 * GB),
        config=st.sampled_from([FAST, PAPER]),
    )
    def test_windows_fit_the_budget_and_cover_the_image(
        self, size: tuple[int, int], memory: int, config: pf.ModelConfig
    ) -> None:
        try:
            plan = plan_flow(size, config, CPU, memory=memory, zoom=1)
        except InputError:
            assert memory - FRAME_BYTES * size[0] * size[1] < 600 * 2**20
            return
        window = plan.tile or size
        takes = planning._required_bytes(config, CPU, False, 1, window, not plan.low_memory)
        assert takes + FRAME_BYTES * size[0] * size[1] <= memory
        rows, columns = ({(each[axis].start, each[axis].stop) for each in plan.tiles} for axis in (0, 1))
        for spans, side in ((rows, size[0]), (columns, size[1])):
            assert min(spans)[0] == 0 and max(spans)[1] == side

    def test_more_memory_means_fewer_windows(self) -> None:
        counts = [len(plan_flow((2160, 3840), FAST, CPU, memory=n * GB).tiles) for n in (2, 3, 5, 10, 60)]
        assert counts == sorted(counts, reverse=True) and counts[0] > 3 * counts[-1]

    def test_a_gpu_takes_several_at_a_time(self) -> None:
        assert plan_flow((440, 1024), FAST, torch.device("cuda"), memory=60 * GB).batch_size == planning.MAX_BATCH_SIZE
        assert plan_flow((440, 1024), FAST, torch.device("cuda"), memory=2 * GB).batch_size == 2

    def test_kernels_in_half_precision_have_room_for_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu = torch.device("cuda")
        monkeypatch.setattr(dispatch, "TRITON_AVAILABLE", False)
        assert plan_flow((1080, 1920), FAST, gpu, memory=6 * GB, half=True).tile is not None
        monkeypatch.setattr(dispatch, "TRITON_AVAILABLE", True)
        plans = [plan_flow((1080, 1920), FAST, gpu, memory=6 * GB, half=half) for half in (True, False)]
        assert plans[0].tile is None and plans[1].tile is not None

    def test_so_has_a_cpu_in_half_precision(self) -> None:
        plans = [plan_flow((1080, 1920), FAST, CPU, memory=7 * GB, half=half) for half in (True, False)]
        assert plans[0].tile is None and plans[1].tile is not None

    @pytest.mark.parametrize(
        ("size", "half", "measured"),
        [((440, 1024), True, 343), ((440, 1024), False, 476), ((1080, 1920), True, 3474)],
    )
    def test_what_is_planned_is_over_what_was_measured_and_not_twice_as_much(
        self, size: tuple[int, int], half: bool, measured: int
    ) -> None:
        """MiB of a frame on a CPU, by benchmarks/inference.py."""
        planned = planning._required_bytes(FAST, CPU, half, 1, size, True) / 2**20
        assert measured < planned < 2 * measured

    def test_a_window_larger_than_the_image_is_the_whole(self) -> None:
        assert plan_flow((100, 200), FAST, CPU, tile=(128, 256), zoom=1).tile is None
        assert plan_flow((100, 300), FAST, CPU, tile=(128, 256), zoom=1).tile == (128, 256)

    def test_whole_images_without_room_for_all_costs_compute_them_on_demand(self) -> None:
        memory = (FRAME_BYTES + BYTES_PER_PIXEL["recurrent"]) * 1080 * 1920 + 2**26
        plan = plan_flow((1080, 1920), FAST, CPU, tile=None, memory=memory)
        assert plan.low_memory and plan.tile is None

    @pytest.mark.parametrize(("tile", "said"), [("auto", " in tiles of "), (None, " takes about")])
    def test_too_little_is_refused(self, tile: planning.TileSize, said: str) -> None:
        with pytest.raises(InputError, match=rf"flow at 1920x1080 pixels{said}.* 0 MiB are left for it; ") as refused:
            plan_flow((1080, 1920), FAST, CPU, tile, memory=10**8)
        advised = re.search(r"allow more memory, such as ([0-9.]+)GB\.$", str(refused.value))
        assert advised is not None
        plan_flow((1080, 1920), FAST, CPU, tile, memory=int(float(advised[1]) * GB))

    def test_no_more_is_advised_than_there_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planning, "free_bytes", lambda _: 10**8)
        with pytest.raises(InputError, match=r"takes about [0-9.]+ [GM]iB .* smaller, or close other programs\.$"):
            plan_flow((1080, 1920), FAST, CPU, None)

    def test_a_batch_of_none_is_refused(self) -> None:
        with pytest.raises(InputError, match="a batch size of 0 is not possible"):
            plan_flow((64, 64), FAST, CPU, batch_size=0)


def test_what_the_process_holds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_bytes", lambda _: None)
    monkeypatch.setattr(planning, "_resident_bytes", lambda: GB)
    assert plan_flow((440, 1024), FAST, CPU, memory=3 * GB).tile is None
    assert plan_flow((440, 1024), FAST, CPU, memory=int(1.5 * GB)).tile is not None


def test_where_nobody_can_tell_the_whole_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_bytes", lambda _: None)
    assert plan_flow((440, 1024), FAST, CPU) == whole_images((440, 1024))
    assert plan_flow((1080, 1920), FAST, CPU).low_memory


class TestSeams:
    def test_windows_differ_little_from_the_whole_and_least_of_all_in_steps(self, tiny: pf.FlowPredictor) -> None:
        """Windows see less of the image, so they differ everywhere; at a seam the difference must not jump."""
        scene = random_scene((320, 448), seed=1, motion=6.0, shapes=3).render()
        whole = tiny.flow(scene.first, scene.second).flow
        windows = tiny.flow(scene.first, scene.second, tile=(192, 256)).flow
        off = windows - whole
        seam = slice(144, 176)  # the windows' rows overlap from 128 to 192
        assert float(off[:, seam].norm(dim=0).mean()) < 0.25 * float(whole.norm(dim=0).mean())
        steps = off.diff(dim=1).norm(dim=0)
        assert float(steps[seam].mean()) < 3 * float(steps.mean())
        assert float(steps[seam].max()) < float(whole.diff(dim=1).norm(dim=0).max())

    def test_one_window_is_the_whole(self, tiny: pf.FlowPredictor) -> None:
        first, second = torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(0))
        whole = tiny.flow(first, second, num_updates=2)
        one = tiny.flow(first, second, num_updates=2, tile=(64, 64))
        torch.testing.assert_close(one.flow, whole.flow, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("tile", ["auto", (40, 48)])
    def test_occlusion_and_a_start_go_with_windows(self, tiny: pf.FlowPredictor, tile: planning.TileSize) -> None:
        first, second = torch.rand(2, 3, 56, 72, generator=torch.Generator().manual_seed(0))
        before = tiny.flow(first, second, num_updates=1)
        result = tiny.flow(first, second, num_updates=1, tile=tile, occlusion=True, previous=before)
        whole = tiny.flow(first, second, num_updates=1, occlusion=True, previous=before)
        assert result.occlusion is not None and result.occlusion.shape == (1, 56, 72)
        assert float((result.flow - whole.flow).norm(dim=0).mean()) < 0.5
        assert float((result.occlusion != whole.occlusion).float().mean()) < 0.2

    def test_windows_have_no_prototypes(self, tiny: pf.FlowPredictor) -> None:
        with pytest.raises(InputError, match="prototypes are not available for tiled images"):
            tiny.flow(torch.rand(3, 64, 96), torch.rand(3, 64, 96), tile=(40, 48), return_prototypes=True)
