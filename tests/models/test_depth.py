"""The depth network, and the camera in which it tells depths."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.errors import InputError
from protoformer.models.config import PRESETS, preset
from protoformer.models.heads.depth import (
    CANONICAL_FOCAL,
    DEPTH_STRIDES,
    MIN_LOG_SCALE,
    canonical_log_depth,
    focal_length,
    image_center,
    metric_depth,
    pixel_rays,
    updates_per_level,
)
from protoformer.models.profiling import (
    count_depth_operations,
    count_flow_operations,
    count_operations,
    count_parameters,
)
from protoformer.models.protoformer import ProtoFormer, build_network


def images(height: int, width: int, batch: int = 1) -> torch.Tensor:
    return 2 * torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(0)) - 1


def network(**fields: object) -> ProtoFormer:
    torch.manual_seed(0)
    built = build_network(preset("tiny", depth=fields), "depth").eval()
    # The last layers start near zero, which would hide most differences.
    for layer in (built.depth_head.update.delta_head[-1], built.depth_head.refiner.delta_head):
        torch.nn.init.normal_(layer.weight, std=0.05)
    return built


@pytest.mark.parametrize("size", [(1, 1), (15, 40), (64, 96), (131, 67)])
def test_depth_and_its_scale_have_the_images_size_and_lie_between_the_bounds(size: tuple[int, int]) -> None:
    with torch.no_grad():
        prediction = network()(images(*size, batch=2))
    assert prediction.log_depths[-1].shape == prediction.log_scales[-1].shape == (2, 1, *size)
    config = PRESETS["tiny"]
    assert prediction.log_depths[-1].min() >= math.log(config.depth.min_depth)
    assert prediction.log_depths[-1].max() <= math.log(config.depth.max_depth)
    assert prediction.log_scales[-1].min() >= MIN_LOG_SCALE


def test_bounds_hold_whatever_the_state_says_and_their_gradient_lives_in_between() -> None:
    built = network(min_depth=1.0, max_depth=10.0)
    for bias, meters in ((-40.0, 1.0), (40.0, 10.0)):
        torch.nn.init.constant_(built.depth_head.refiner.delta_head.bias, bias)
        with torch.no_grad():
            prediction = built(images(64, 64))
        assert torch.allclose(prediction.log_depths[-1].exp(), torch.full((), meters), rtol=1e-4)
    assert prediction.log_scales[-1].min() > MIN_LOG_SCALE


def test_every_update_is_returned_on_request_and_the_last_alone_otherwise() -> None:
    built, heard = network(), []
    with torch.no_grad():
        every = built(
            images(64, 64), num_updates=5, return_all=True, progress=lambda done, of: heard.append((done, of))
        )
        last = built(images(64, 64), num_updates=5)
    assert (len(every.log_depths), len(every.log_scales), len(last.log_depths)) == (5, 5, 1)
    assert torch.equal(every.log_depths[-1], last.log_depths[-1])
    assert heard == [(number, 5) for number in range(1, 6)]


@given(st.integers(1, 50))
def test_updates_are_shared_out_evenly_and_the_finest_level_always_has_one(updates: int) -> None:
    found = updates_per_level(updates)
    assert sum(found) == updates and len(found) == len(DEPTH_STRIDES)
    assert found[-1] >= 1 and sorted(found) == list(found) and found[-1] - found[0] <= 1


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("updates", [1, 3])
def test_training_reaches_every_parameter(name: str, updates: int) -> None:
    torch.manual_seed(0)
    built = build_network(preset(name), "depth").train()
    prediction = built(images(64, 64), num_updates=updates, return_all=True)
    sum((each.abs().mean() for each in prediction.log_depths + prediction.log_scales), torch.zeros(())).backward()
    assert [key for key, parameter in built.named_parameters() if parameter.grad is None] == []


def test_an_images_depth_does_not_depend_on_what_else_is_in_the_batch() -> None:
    built, batch = network(), images(64, 72, batch=3)
    with torch.no_grad():
        together, alone = built(batch).log_depths[-1], built(batch[1:2]).log_depths[-1]
    assert torch.allclose(together[1:2], alone, atol=1e-4)


def test_prototypes_of_the_encoder_come_on_request() -> None:
    built = network()
    with torch.no_grad():
        asked, not_asked = built(images(64, 64), return_prototypes=True), built(images(64, 64))
        alone = built.encoder(images(64, 64), return_prototypes=True).prototypes
    assert not_asked.prototypes == ()
    assert torch.allclose(asked.prototypes[0][0].centers, alone[0][0].centers, atol=1e-4)


def test_half_precision_is_close_and_learns() -> None:
    built = network()
    with torch.no_grad():
        exact = built(images(64, 72)).log_depths[-1]
    with torch.autocast("cpu", torch.bfloat16):
        lowered = built(images(64, 72)).log_depths[-1]
    assert lowered.dtype == torch.float32 and (lowered - exact).abs().mean() < 0.05
    lowered.abs().mean().backward()
    assert all(each.grad.isfinite().all() for each in built.parameters() if each.grad is not None)


def test_what_is_no_image_and_no_updates_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a batch of images, B x 3 x H x W, not \(3, 8, 8\)"):
        network()(torch.zeros(3, 8, 8))
    with pytest.raises(ValueError, match="at least one update, not 0"):
        network()(images(64, 64), num_updates=0)


def test_bounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match=r"depth\.min_depth is 5, but it must be below max_depth, 3\."):
        preset("tiny", depth={"min_depth": 5, "max_depth": 3})
    with pytest.raises(
        InputError, match=r"depth.min_depth is 0, but it must be a number, 0\.0001 or more and at most 1e\+06\."
    ):
        preset("tiny", depth={"min_depth": 0})
    with pytest.raises(InputError, match=r"depth\.embed_dims has 48, not a multiple of encoder\.head_dim, 32"):
        preset("tiny", depth={"embed_dims": (64, 48)})


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 500), st.floats(20, 4000))
def test_canonical_and_metric_depth_are_inverse(meters: float, focal: float) -> None:
    depth, lens = torch.full((1, 1, 2, 2), meters, dtype=torch.float64), torch.tensor([focal], dtype=torch.float64)
    there = canonical_log_depth(depth, lens)
    assert torch.allclose(metric_depth(there, lens), depth, rtol=1e-9)
    assert math.isclose(float(there[0, 0, 0, 0].exp()), meters * CANONICAL_FOCAL / focal, rel_tol=1e-9)


def test_an_image_of_twice_the_size_is_that_of_a_camera_half_as_far_away() -> None:
    """Enlarging doubles the focal length; meters stay, and what the network is to say is half."""
    depth, camera = torch.rand(2, 1, 4, 5) + 1, torch.tensor([[300.0, 0, 1], [0, 300.0, 1], [0, 0, 1]]).expand(2, 3, 3)
    focal, larger = focal_length(camera), focal_length(camera * torch.tensor([2.0, 2.0, 1.0])[:, None])
    gap = canonical_log_depth(depth, larger) - canonical_log_depth(depth, focal)
    assert torch.allclose(gap, torch.full((), -math.log(2)), atol=1e-5)
    assert torch.allclose(metric_depth(canonical_log_depth(depth, larger), larger), depth, rtol=1e-5)


def test_unknown_depths_have_a_finite_logarithm() -> None:
    assert canonical_log_depth(torch.zeros(1, 1, 2, 2), torch.tensor([300.0])).isfinite().all()


@pytest.mark.parametrize("focal", [128.0, 512.0])
def test_a_floor_lies_at_its_height_over_the_slope_of_the_ray(focal: float) -> None:
    """A camera 1.5 m over a floor sees row y of it at 1.5 f / (y - center): canonical, at 1.5 over the ray's slope."""
    height, width, below = 96, 64, 1.5
    row = torch.arange(height)[:, None].expand(height, width) - (height - 1) / 2
    floor = torch.where(row > 0, below * focal / row, 0.0)[None, None]
    middle = image_center(floor)
    slope = pixel_rays(floor, 1, middle)[:, 1:]
    canonical = canonical_log_depth(floor, torch.tensor([focal])).exp()
    assert torch.allclose(canonical[floor > 0], (below / slope)[floor > 0], rtol=1e-4)
    coarse = pixel_rays(torch.zeros(1, 1, height // 8, width // 8), 8, middle)
    fine = torch.nn.functional.avg_pool2d(pixel_rays(floor, 1, middle), 8)
    assert torch.allclose(coarse, fine, atol=1e-6)


def test_networks_are_as_large_as_they_are_said_to_be() -> None:
    with torch.device("meta"):
        counts = {name: count_parameters(build_network(config, "depth")) for name, config in PRESETS.items()}
    assert {name: round(count / 1e6, 2) for name, count in counts.items()} == {
        "paper": 8.90,
        "fast": 7.28,
        "tiny": 0.67,
    }


def test_a_crop_has_the_rays_of_the_image_it_was_cut_from() -> None:
    whole = pixel_rays(torch.zeros(1, 1, 40, 56), 1, torch.tensor([[27.5, 19.5]]))
    crops = torch.tensor([[27.5 - 16, 19.5 - 8], [27.5 - 24, 19.5]])  # which begin at (16, 8) and at (24, 0)
    rays = pixel_rays(torch.zeros(2, 1, 24, 32), 1, crops)
    assert torch.allclose(rays[0], whole[0, :, 8:32, 16:48]) and torch.allclose(rays[1], whole[0, :, :24, 24:])


def test_each_image_of_a_batch_has_its_own_camera() -> None:
    built, batch, center = network(), images(64, 72, batch=2), torch.tensor([[20.0, 30.0], [60.0, 5.0]])
    with torch.no_grad():
        together = built(batch, center).log_depths[-1]
        alone = torch.cat([built(batch[i : i + 1], center[i : i + 1]).log_depths[-1] for i in range(2)])
        middle = built(batch).log_depths[-1]
    assert torch.allclose(together, alone, atol=1e-4) and (together - middle).abs().max() > 1e-3


def test_operations_are_counted_of_either_task_and_grow_with_what_is_computed() -> None:
    one, two = (count_operations("depth", preset("tiny", depth={"num_updates": updates}), 64, 96) for updates in (3, 6))
    assert one < two and one == count_depth_operations(preset("tiny", depth={"num_updates": 3}), 64, 96)
    assert count_operations("flow", preset("tiny"), 64, 96) == count_flow_operations(preset("tiny"), 64, 96)
