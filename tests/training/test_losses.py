"""What training makes small, against sums done by hand."""

import math
from dataclasses import replace

import pytest
import torch

from protoformer.model import FlowPrediction
from protoformer.training import flow_loss
from protoformer.training.losses import laplace_surprise


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


def test_a_matched_flow_is_one_more_update():
    matched = replace(predicted(constant(3, 4), constant(1, 0)), matched=constant(-2, 1))
    loss = flow_loss(matched, constant(0, 0), EVERYWHERE, gamma=0.8)
    assert loss.distance.item() == pytest.approx(0.64 * 3 + 0.8 * 7 + 1)


def test_the_surprise_is_minus_the_log_of_two_laplace_densities():
    error, log_scale = torch.tensor([1.5, -0.5]).view(1, 2, 1, 1), torch.tensor(0.7).view(1, 1, 1, 1)
    scale = math.exp(0.7)
    by_hand = -sum(math.log(math.exp(-abs(e) / scale) / (2 * scale)) for e in (1.5, -0.5))
    assert laplace_surprise(error, log_scale).item() == pytest.approx(by_hand, abs=1e-5)


def test_the_likeliest_scale_is_the_mean_absolute_error():
    log_scale = torch.zeros(1, 1, 4, 5, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_scale], max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        total = laplace_surprise(constant(3, 1), log_scale).sum()
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
