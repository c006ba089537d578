"""A first flow by global matching."""

import pytest
import torch

from protoformer.models.heads import matching as module
from protoformer.models.heads.matching import BLOCK, GlobalMatching


def matching() -> GlobalMatching:
    """One that takes features for what blocks are."""
    built = GlobalMatching(64)
    built.embed = torch.nn.Identity()
    return built.requires_grad_(False)


def features(height: int, width: int, channels: int = 64) -> torch.Tensor:
    """Blocks that resemble themselves alone."""
    blocks = torch.randn(
        1, channels, -(-height // BLOCK), -(-width // BLOCK), generator=torch.Generator().manual_seed(0)
    )
    return 2 * blocks.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :height, :width]


def constant(x: float, y: float) -> torch.Tensor:
    return torch.tensor([float(x), float(y)]).view(1, 2, 1, 1)


def test_what_has_moved_far_is_found():
    source = features(24, 32)
    target = source.roll((8, -14), dims=(2, 3))
    flow = matching().flow(source, target)
    # Where two blocks meet whose ways differ, since one of them came in at the other side, a flow lies between them.
    assert torch.allclose(flow[:, :, :14, 16:], constant(-14, 8), atol=0.1)


def test_an_odd_side_moves_nothing():
    source = features(25, 33)
    flow = matching().flow(source, source.roll((4, -6), dims=(2, 3)))
    assert flow.shape == (1, 2, 25, 33)
    assert torch.allclose(flow[:, :, 2:18, 8:30], constant(-6, 4), atol=0.1)


def test_of_two_places_that_look_alike_one_is_chosen():
    source = features(16, 16)
    target = torch.zeros(1, 64, 16, 32)
    target[..., :16] = target[..., 16:] = source
    flow = matching().flow(torch.cat((source, torch.zeros_like(source)), dim=3), target)
    middle = flow[0, 0, 2:14, 2:14]
    assert ((middle.abs() < 1) | ((middle - 16).abs() < 1)).all()


def test_what_resembles_nothing_stays():
    assert matching().flow(features(24, 32), torch.zeros(1, 64, 24, 32)).abs().max() < 0.7


def test_what_resembles_nothing_goes_with_what_is_around():
    source = features(32, 32, channels=512)
    target = source.roll((0, 6), dims=(2, 3))
    target[:, :, 14:18, 20:24] = 0  # what was at 14:18, 14:18
    matches = matching()(source, target)
    nowhere = matches.log_probs[0, :, -1].exp().view(16, 16)
    assert nowhere[7:9, 7:9].min() > 20 * nowhere[3:6, 3:6].max()
    assert torch.allclose(matches.flow[:, :, 14:18, 14:18], constant(6, 0), atol=1.5)


@pytest.mark.parametrize("sharpness", [15.0, 60.0, 1000.0])
def test_what_is_far_less_likely_than_nowhere_stays_however_sharp_likeness_is(sharpness: float):
    """All shares of places are then too small for a number."""
    built, source = matching(), features(24, 32)
    built.logit_scale.fill_(sharpness).log_()
    built.no_match_score.fill_(4.0)
    flow = built.flow(source, source.roll(8, 3))
    assert flow.isfinite().all() and flow.abs().max() < 0.01


@pytest.mark.parametrize("size", [(24, 32), (13, 9), (1, 5)])
def test_a_few_cells_at_a_time_are_all_cells(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_PAIRS", 100)
    source, target = features(*size), features(*size).flip(3)
    whole, parts = (matching().flow(source, target, low_memory) for low_memory in (False, True))
    assert whole.shape == (1, 2, *size)
    assert torch.allclose(whole, parts, atol=1e-5)
    assert torch.equal(matching()(source, target).flow, whole)


def test_shares_add_up_and_teach_everything():
    built, source = GlobalMatching(64), features(16, 16).requires_grad_()
    matches = built(source, source.detach().roll(4, 3))
    assert matches.size == (8, 8)
    assert torch.allclose(matches.log_probs.exp().sum(dim=2), torch.ones(1, 64), atol=1e-5)
    assert not matches.flow.requires_grad
    matches.log_probs[..., 3].sum().backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in (source, *built.parameters()))
