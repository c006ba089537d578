"""Stabilization losses, compared with values computed by hand."""

import dataclasses

import pytest
import torch
from torch import Tensor

from protoformer.models.heads.stabilization import StabilizationPrediction
from protoformer.stabilization.losses import StabilizeLoss, stabilize_loss
from protoformer.synthetic.samples import StabilityWindows
from protoformer.training.recipe import LossSection

CELLS = (4, 6)
PLAIN = LossSection(consistency=0.0, shape=0.0, alignment=0.0, borders=0.0)


def windows(warp: Tensor | None = None, count: int = 1) -> StabilityWindows:
    """Gray windows of 32 x 48 pixels; warp: N x 2 x 2 x h x w."""
    warp = torch.zeros(count, 2, 2, *CELLS) if warp is None else warp
    return StabilityWindows(
        unstable=torch.full((count, 2, 3, 32, 48), 0.5),
        stable=torch.full((count, 3, 32, 48), 0.5),
        displacements=torch.zeros(count, 2, 1, 2, *CELLS),
        confidence=torch.ones(count, 2, 1, 1, *CELLS),
        warp=warp,
        valid=torch.ones(count, 2, 1, *CELLS, dtype=torch.bool),
    )


def loss_of(*warps: Tensor, of: StabilityWindows | None = None, weights: LossSection = PLAIN) -> StabilizeLoss:
    """warps: of each stage, N x 2 x 2 x h x w."""
    return stabilize_loss(
        StabilizationPrediction(tuple(warp.flatten(0, 1) for warp in warps)), of or windows(), weights
    )


def constant(x: float, y: float, second: float = 1.0) -> Tensor:
    """One window of fields that are the same everywhere, in the second frame `second` times as large."""
    field = torch.tensor([x, y]).view(1, 1, 2, 1, 1).expand(1, 2, 2, *CELLS)
    return field * torch.tensor([1.0, second]).view(1, 2, 1, 1, 1)


def test_a_warp_that_is_off_by_hand() -> None:
    loss = loss_of(constant(3, -4))
    assert loss.distance.item() == pytest.approx(7) and loss.total.item() == pytest.approx(7)
    assert loss.error.item() == pytest.approx(5) and loss.shake.item() == 0


def test_earlier_stages_weigh_less() -> None:
    loss = loss_of(constant(2, 0), constant(1, 0), constant(0, 0))
    assert loss.total.item() == pytest.approx(2 * 0.64 + 1 * 0.8) and loss.distance.item() == 0


def test_the_share_is_the_error_over_the_shake() -> None:
    loss = loss_of(constant(6, 9), of=windows(constant(6, 8)))
    assert loss.shake.item() == pytest.approx(10) and loss.relative_error.item() == pytest.approx(0.1)


def test_a_change_from_frame_to_frame_that_the_truth_has_not() -> None:
    weights = dataclasses.replace(PLAIN, consistency=0.5)
    jumps = loss_of(constant(1, 1, second=3), of=windows(constant(1, 1)), weights=weights)
    assert jumps.distance.item() == pytest.approx((0 + 4) / 2) and jumps.consistency.item() == pytest.approx(4)
    assert jumps.total.item() == pytest.approx(2 + 0.5 * 4)
    both_off = loss_of(constant(1, 1, second=3) + 5, of=windows(constant(1, 1, second=3)))
    assert both_off.distance.item() == pytest.approx(10) and both_off.consistency.item() == pytest.approx(0, abs=1e-6)


def test_only_bends_that_the_truth_has_not_count() -> None:
    bent = torch.zeros(1, 2, 2, *CELLS)
    bent[..., 0, :, 3] = 2.0  # of each row of x: second differences 2, -4, 2
    assert loss_of(bent).shape.item() == pytest.approx((2 + 4 + 2) * 4 / 24)
    assert loss_of(bent, of=windows(bent)).shape.item() == 0
    slope = torch.arange(6.0).expand(1, 2, 2, *CELLS)
    assert loss_of(slope).shape.item() == 0


def test_pictures_are_aligned_by_the_true_warp() -> None:
    ramp = (torch.arange(48.0) / 48).expand(32, 48)
    pictures = ramp.expand(1, 2, 3, 32, 48)
    shifted = dataclasses.replace(windows(constant(4, 0)), unstable=pictures, stable=pictures[:, 0] + 4 / 48)
    weights = dataclasses.replace(PLAIN, alignment=2.0)
    right, wrong = loss_of(constant(4, 0), of=shifted), loss_of(constant(0, 0), of=shifted, weights=weights)
    assert right.alignment.item() == pytest.approx(0, abs=1e-5)
    assert wrong.alignment.item() == pytest.approx(4 / 48, abs=1e-5)
    assert wrong.total.item() == pytest.approx(4 + 2 * 4 / 48, abs=1e-4)


def test_corners_may_be_moved_by_a_tenth_of_the_frame() -> None:
    assert loss_of(constant(4.8, 3.2)).borders.item() == pytest.approx(0, abs=1e-6)
    assert loss_of(constant(-6.8, 3.2)).borders.item() == pytest.approx(2 / 2, abs=1e-5)


def test_cells_without_a_valid_warp_have_no_gradient() -> None:
    given = windows()
    given.valid[..., 2:] = False
    warp = torch.zeros(1, 2, 2, *CELLS)
    warp[..., 3:] = 9.0
    warp = warp.requires_grad_()
    loss = loss_of(warp, of=given, weights=LossSection(alignment=0.0, borders=0.0))
    loss.total.backward()
    assert loss.distance.item() == 0 and warp.grad is not None and warp.grad[..., 4:].abs().max() == 0


def test_the_loss_of_a_batch_is_the_mean_of_its_halves() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, result = 3 * torch.randn(2, 2, 2, 2, *CELLS, generator=generator)
    pictures = torch.rand(2, 3, 3, 32, 48, generator=generator)
    whole = dataclasses.replace(windows(truth, 2), unstable=pictures[:, :2], stable=pictures[:, 2])
    parts = [
        dataclasses.replace(windows(truth[n : n + 1]), unstable=pictures[n : n + 1, :2], stable=pictures[n : n + 1, 2])
        for n in (0, 1)
    ]
    losses = [loss_of(result[n : n + 1], of=parts[n], weights=LossSection()) for n in (0, 1)]
    together = loss_of(result, of=whole, weights=LossSection())
    assert together.total.item() == pytest.approx((losses[0].total + losses[1].total).item() / 2, rel=1e-5)
