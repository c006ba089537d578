"""The flow loss, against sums computed by hand."""

import math
from dataclasses import replace

import pytest
import torch

from protoformer.flow.losses import flow_loss, laplace_nll, matching_nll
from protoformer.models.heads.flow import FlowPrediction
from protoformer.models.heads.matching import MatchResult


def predicted(*flows: torch.Tensor, log_scale: float = 0.0) -> FlowPrediction:
    scales = tuple(torch.full_like(flow[:, :1], log_scale) for flow in flows)
    return FlowPrediction(tuple(flows), scales, ())


def constant(u: float, v: float) -> torch.Tensor:
    return torch.tensor([float(u), float(v)]).view(1, 2, 1, 1).expand(1, 2, 4, 5).clone()


EVERYWHERE = torch.ones(1, 1, 4, 5, dtype=torch.bool)


def test_later_updates_weigh_more():
    loss = flow_loss(predicted(constant(3, 4), constant(1, 0)), constant(0, 0), EVERYWHERE, gamma=0.8)
    assert loss.distance.item() == pytest.approx(0.8 * 7 + 1)
    assert loss.epe.item() == pytest.approx(1)


def matched(size: tuple[int, int], **likely: dict[int, float]) -> MatchResult:
    """Shares of cells, by their number; what is left is nowhere's."""
    count = size[0] * size[1]
    shares = torch.full((1, count, count + 1), 1e-9)
    for cell, result in likely.items():
        for place, share in result.items():
            shares[0, int(cell[1:]), place] = share
    return MatchResult(torch.zeros(1, 2, 2 * size[0], 2 * size[1]), size, shares.log())


def test_a_cell_is_found_between_the_four_where_its_middle_goes():
    size = (2, 3)
    flow = torch.zeros(1, 2, 32, 48)
    flow[:, 0, :, :16], flow[:, 1, :, :16] = 16 * 1.25 - 0.5, 16 * 0.5 - 0.5
    flow[:, 0, :, 16:] = -0.5  # a pixel at 8 lies half a pixel past the middle of its cell
    flow[:, 1, :, 16:] = -0.5
    counted = torch.zeros(1, 1, 32, 48, dtype=torch.bool)
    counted[:, :, :16, :32] = True  # cells 0 and 1
    matches = matched(size, c0={1: 0.4, 2: 0.3, 4: 0.2, 5: 0.1}, c1={1: 0.5})
    by_hand = -(0.375 * math.log(0.4) + 0.125 * math.log(0.3) + 0.375 * math.log(0.2) + 0.125 * math.log(0.1))
    assert matching_nll(matches, flow, counted).item() == pytest.approx(256 * (by_hand - math.log(0.5)), rel=1e-4)


def test_what_leaves_or_is_hidden_is_nowhere():
    size = (2, 3)
    flow = torch.zeros(1, 2, 32, 48)
    flow[:, 0, :, 32:] = 30.0
    hidden = torch.zeros(1, 1, 32, 48, dtype=torch.bool)
    hidden[:, :, :16, :16] = True
    counted = torch.zeros_like(hidden)
    counted[:, :, :16, :16] = counted[:, :, :16, 32:] = True  # cells 0 and 2
    matches = matched(size, c0={6: 0.25}, c2={6: 0.125})
    expected = -256 * (math.log(0.25) + math.log(0.125))
    assert matching_nll(matches, flow, counted, hidden).item() == pytest.approx(expected, rel=1e-4)


def test_matching_is_one_more_part_of_the_loss():
    prediction = replace(predicted(constant(1, 0)), matches=matched((1, 1), c0={0: 0.5}))
    loss = flow_loss(prediction, constant(0, 0), EVERYWHERE, matching=2.0)
    # One cell of 256 pixels, of which 20 are there.
    assert loss.matching.item() == pytest.approx(256 * math.log(2) / 20, rel=1e-4)
    assert loss.total.item() == pytest.approx((loss.distance + 0.1 * loss.nll + 2 * loss.matching).item())


def test_the_nll_is_minus_the_log_of_two_laplace_densities():
    error, log_scale = torch.tensor([1.5, -0.5]).view(1, 2, 1, 1), torch.tensor(0.7).view(1, 1, 1, 1)
    scale = math.exp(0.7)
    by_hand = -sum(math.log(math.exp(-abs(e) / scale) / (2 * scale)) for e in (1.5, -0.5))
    assert laplace_nll(error, log_scale).item() == pytest.approx(by_hand, abs=1e-5)


def test_the_likeliest_scale_is_the_mean_absolute_error():
    log_scale = torch.zeros(1, 1, 4, 5, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_scale], max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        total = laplace_nll(constant(3, 1), log_scale).sum()
        total.backward()
        return total

    optimizer.step(closure)
    assert torch.allclose(log_scale.exp(), torch.full((), 2.0), atol=1e-3)


def test_estimating_the_error_does_not_change_the_flow():
    flow = constant(1, 1).requires_grad_()
    (with_confidence,) = torch.autograd.grad(flow_loss(predicted(flow), constant(0, 0), EVERYWHERE).total, flow)
    (without,) = torch.autograd.grad(flow_loss(predicted(flow), constant(0, 0), EVERYWHERE, confidence=0.0).total, flow)
    assert torch.equal(with_confidence, without)


def test_unknown_and_very_fast_pixels_do_not_count():
    truth = constant(0, 0)
    truth[..., 0, 0] = 500.0  # faster than the limit of 400 px
    truth[..., 0, 1] = torch.nan
    valid = EVERYWHERE.clone()
    valid[..., 0, 1] = False
    loss = flow_loss(predicted(constant(2, 0)), truth, valid)
    assert loss.epe.item() == pytest.approx(2)
    assert loss.total.isfinite()


def test_without_any_valid_pixel_the_loss_is_zero():
    loss = flow_loss(predicted(constant(2, 0)), constant(0, 0), ~EVERYWHERE)
    assert loss.total.item() == 0
