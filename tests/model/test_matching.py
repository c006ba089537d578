"""A first flow by global matching."""

import math

import pytest
import torch

from protoformer.model import matching as module
from protoformer.model.matching import CELL, GlobalMatching


def features(height: int, width: int, channels: int = 64) -> torch.Tensor:
    """Cells that resemble themselves alone."""
    cells = torch.randn(1, channels, -(-height // CELL), -(-width // CELL), generator=torch.Generator().manual_seed(0))
    return 2 * cells.repeat_interleave(CELL, 2).repeat_interleave(CELL, 3)[:, :, :height, :width]


@torch.no_grad()
def test_what_has_moved_far_is_found():
    source = features(24, 32)
    target = source.roll((8, -14), dims=(2, 3))
    flow = GlobalMatching()(source, target)
    # Where two cells meet whose ways differ, since one of them came in at the other side, a flow lies between them.
    assert torch.allclose(flow[:, :, :14, 16:], torch.tensor([-14.0, 8.0]).view(1, 2, 1, 1), atol=1e-2)


@torch.no_grad()
def test_an_odd_side_moves_nothing():
    source = features(25, 33)
    flow = GlobalMatching()(source, source.roll((4, -6), dims=(2, 3)))
    even = GlobalMatching()(source[:, :, :24, :32], source.roll((4, -6), dims=(2, 3))[:, :, :24, :32])
    assert torch.allclose(flow[:, :, 2:18, 8:30], even[:, :, 2:18, 8:30], atol=1e-2)
    assert torch.allclose(flow[:, :, 2:18, 8:30], torch.tensor([-6.0, 4.0]).view(1, 2, 1, 1), atol=1e-2)


@torch.no_grad()
def test_what_resembles_nothing_stays():
    flow = GlobalMatching()(features(24, 32), torch.zeros(1, 64, 24, 32))
    # 12 x 16 places by chance, each e^0, against e^6.
    assert flow.abs().max() < 32 * 192 / math.exp(module.STAY * module.SHARPNESS)


@torch.no_grad()
@pytest.mark.parametrize("size", [(24, 32), (13, 9), (1, 5)])
def test_a_few_cells_at_a_time_are_all_cells(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "COMPARED", 100)
    source, target = features(*size), features(*size).flip(3)
    whole, parts = (GlobalMatching()(source, target, low_memory) for low_memory in (False, True))
    assert whole.shape == (1, 2, *size)
    assert torch.allclose(whole, parts, atol=1e-5)


def test_it_learns_how_sharp_to_be():
    built, source = GlobalMatching(), features(16, 16).requires_grad_()
    built(source, source.detach().roll(4, 3)).abs().sum().backward()
    assert all(
        each.grad is not None and each.grad.isfinite().all() for each in (source, built.log_sharpness, built.stay)
    )
