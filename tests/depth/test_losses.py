"""The depth loss, against sums computed by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.depth.losses import DepthLoss, depth_loss, edge_sum, silog, valid_depth_mask
from protoformer.models.heads.depth import CANONICAL_FOCAL, DepthPrediction, canonical_log_depth

FOCAL = torch.tensor([CANONICAL_FOCAL])
EVERYWHERE = torch.ones(1, 1, 4, 5, dtype=torch.bool)


def maps(*values: float) -> torch.Tensor:
    """20 pixels, the values again and again."""
    return torch.tensor(values).repeat(20 // len(values) + 1)[:20].view(1, 1, 4, 5)


def predicted(*logs: torch.Tensor, log_scale: float = 0.0) -> DepthPrediction:
    return DepthPrediction(tuple(logs), tuple(torch.full_like(log, log_scale) for log in logs), ())


def test_silog_is_ten_times_the_root_of_what_is_left_of_the_square() -> None:
    error = maps(0.1, -0.2, 0.3, 0.0, 0.4)
    mean, square = 0.12, (0.01 + 0.04 + 0.09 + 0.16) / 5
    assert silog(error, EVERYWHERE).item() == pytest.approx(10 * math.sqrt(square - 0.85 * mean**2), rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 10))
def test_a_wrong_scale_is_forgiven_but_for_its_share(factor: float) -> None:
    """Without an error of shape, d = log factor: 10 sqrt(0.15) |d| is left of it."""
    error = torch.full((1, 1, 4, 5), math.log(factor))
    left = 10 * math.sqrt(0.15) * abs(math.log(factor))
    assert silog(error, EVERYWHERE).item() == pytest.approx(max(1e-3, left), rel=1e-3)
    shape = maps(0.1, -0.1)
    both = silog(shape + error, EVERYWHERE).item()
    assert both == pytest.approx(10 * math.sqrt(0.01 + 0.15 * math.log(factor) ** 2), rel=1e-3)


def test_a_camera_does_not_change_the_loss_of_the_same_error() -> None:
    depth, off = maps(1.0, 2.0, 4.0), maps(0.2, -0.1)
    totals = []
    for focal in (100.0, 1000.0):
        lens = torch.tensor([focal])
        totals.append(depth_loss(predicted(canonical_log_depth(depth, lens) + off), depth, EVERYWHERE, lens).total)
    assert torch.allclose(totals[0], totals[1], atol=1e-5)


def test_later_updates_weigh_more_and_the_last_one_is_measured() -> None:
    depth = maps(1.0)
    first, second = maps(math.log(2)), maps(math.log(1.2))
    loss = depth_loss(predicted(first, second), depth, EVERYWHERE, FOCAL, gamma=0.5, confidence=0.0, edges=0.0)
    assert loss.total.item() == pytest.approx(10 * math.sqrt(0.15) * (0.5 * math.log(2) + math.log(1.2)), rel=1e-4)
    assert loss.abs_rel.item() == pytest.approx(0.2, rel=1e-4) and loss.delta1.item() == 1
    assert depth_loss(predicted(second, first), depth, EVERYWHERE, FOCAL).delta1.item() == 0


def test_the_nll_is_minus_the_log_of_a_laplace_density_and_leaves_the_depth_alone() -> None:
    log = maps(0.3).requires_grad_()
    prediction = predicted(log, log_scale=-1.0)
    loss = depth_loss(prediction, maps(1.0), EVERYWHERE, FOCAL)
    scale = math.exp(-1)
    assert loss.nll.item() == pytest.approx(-math.log(math.exp(-0.3 / scale) / (2 * scale)), rel=1e-4)
    assert not loss.nll.requires_grad and loss.total.requires_grad


def test_edges_compare_changes_and_not_values() -> None:
    step = torch.zeros(1, 1, 8, 8)
    step[..., 4:] = 0.5
    everywhere = torch.ones_like(step, dtype=torch.bool)
    # Eight rows at full size, four at half, two at a quarter; each pixel there stands for 1, 4 and 16.
    assert edge_sum(step, everywhere).item() == pytest.approx(0.5 * (8 + 4 * 4 + 2 * 16))
    assert edge_sum(torch.full_like(step, 3.0), everywhere).item() == 0
    hidden = everywhere.clone()
    hidden[..., 4] = False  # one side of every pair
    assert edge_sum(step, hidden).item() == 0


def test_unknown_near_and_far_depths_do_not_count() -> None:
    depth = maps(2.0)
    depth[..., 0, :4] = torch.tensor([0.05, 100.0, 0.0, torch.nan])
    counted = valid_depth_mask(depth, EVERYWHERE & (depth != 0), 0.1, 80.0)
    assert counted.sum() == 16
    loss = depth_loss(predicted(maps(math.log(2)).requires_grad_()), depth, counted, FOCAL)
    assert loss.abs_rel.item() == pytest.approx(0, abs=1e-6) and loss.total.isfinite()


@pytest.mark.parametrize("counts", [True, False])
def test_gradients_are_finite_where_nothing_is_wrong_and_where_nothing_counts(counts: bool) -> None:
    log = torch.zeros(1, 1, 4, 5, requires_grad=True)
    loss = depth_loss(predicted(log), maps(1.0), EVERYWHERE & counts, FOCAL)
    loss.total.backward()
    assert log.grad is not None and log.grad.isfinite().all()
    assert loss.total.item() == pytest.approx(1e-3 + 0.1 * math.log(2) if counts else 0.0, abs=1e-5)


def test_processes_weigh_by_their_pixels() -> None:
    """Each divides by the mean of their counts; the mean of what they find is the pixels' mean of their SILogs."""
    depth, few = maps(1.0), EVERYWHERE.clone()
    few[..., 1:, :] = False  # 5 of 20 pixels
    parts = [(predicted(maps(0.5)), EVERYWHERE), (predicted(maps(-0.1, 0.1)), few)]
    pixels = torch.tensor((20 + 5) / 2)
    shared = [depth_loss(each, depth, counted, FOCAL, pixels=pixels) for each, counted in parts]
    alone = [depth_loss(each, depth, counted, FOCAL) for each, counted in parts]
    for field in ("total", "silog", "nll", "edges", "abs_rel", "delta1"):
        mean = sum(getattr(loss, field) for loss in shared) / 2
        expected = (20 * getattr(alone[0], field) + 5 * getattr(alone[1], field)) / 25
        assert torch.allclose(mean, expected, rtol=1e-4), field


def test_silog_of_parts_is_no_more_than_that_of_the_whole_and_all_else_is_its_mean() -> None:
    """A root of a mean is concave: what differs between the parts is missed, and where nothing does, nothing is."""
    generator = torch.Generator().manual_seed(0)
    depth = 1 + torch.rand(4, 1, 8, 8, generator=generator)
    counted = torch.rand(4, 1, 8, 8, generator=generator) < torch.tensor([0.2, 0.4, 0.8, 0.9]).view(-1, 1, 1, 1)
    focal = torch.full((4,), CANONICAL_FOCAL)
    level = torch.tensor([0.1, 0.2, 0.3, 0.4]).view(-1, 1, 1, 1)
    log = canonical_log_depth(depth, focal) + 0.2 * torch.randn(4, 1, 8, 8, generator=generator) + level

    def loss(part: list[int], pixels: torch.Tensor | None = None) -> DepthLoss:
        return depth_loss(predicted(log[part]), depth[part], counted[part], focal[part], pixels=pixels)

    whole, mean = loss([0, 1, 2, 3]), counted.sum() / 2
    halves = [loss(part, mean) for part in ([0, 1], [2, 3])]
    for name in ("nll", "edges", "abs_rel", "delta1"):
        assert torch.allclose(sum(getattr(half, name) for half in halves) / 2, getattr(whole, name), rtol=1e-4), name
    together = sum(half.silog for half in halves) / 2
    assert 0.8 * whole.silog < together < whole.silog
    twice = loss([0, 1, 0, 1]).silog
    assert torch.allclose(loss([0, 1], counted[[0, 1]].sum()).silog, twice, rtol=1e-5)
