"""Costs around an estimate: what they are, and that storing them or not makes no difference."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from protoformer.geometry.warps import pixel_grid
from protoformer.models.heads import correlation
from protoformer.models.heads.correlation import (
    OnDemandCorrelation,
    RowCorrelation,
    StoredCorrelation,
    all_pairs_bytes,
    row_bytes,
)


def maps(height: int, width: int, channels: int = 8, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randn(2, batch, channels, height, width, generator=generator)
    return source, target


def estimates(height: int, width: int, spread: float, batch: int = 2, seed: int = 0) -> torch.Tensor:
    wander = torch.randn(batch, 2, height, width, generator=torch.Generator().manual_seed(seed))
    return pixel_grid(height, width) + spread * wander


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.integers(2, 20), st.sampled_from([0.0, 1.0, 30.0]), st.integers(1, 4), st.integers(0, 9))
def test_stored_and_on_demand_agree(height, width, spread, levels, seed):
    source, target = maps(height, width)
    centers = estimates(height, width, spread, seed=seed)
    stored = StoredCorrelation(source, target, levels).windows(centers, 4)
    on_demand = OnDemandCorrelation(source, target, levels).windows(centers, 4)
    assert stored.shape == (2, levels * 81, height, width)
    assert torch.allclose(stored, on_demand, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 20), st.integers(2, 20), st.sampled_from([0.0, 1.0, 30.0]), st.integers(1, 4), st.integers(2, 4))
def test_rows_with_zeros_between_them_hold_the_same_costs(height, width, spread, levels, radius):
    source, target = maps(height, width)
    centers = estimates(height, width, spread)
    stored = StoredCorrelation(source, target, levels).windows(centers, radius)
    in_rows = RowCorrelation(source, target, levels, radius=4).windows(centers, radius)
    assert torch.allclose(in_rows, stored, atol=1e-4)


def test_costs_kept_in_half_precision_are_as_fine_as_windows_read_so():
    source, target = (each.bfloat16() for each in maps(14, 19, channels=64))
    centers = estimates(14, 19, 2.0)
    right = StoredCorrelation(source, target, 4).windows(centers, 4)
    kept = RowCorrelation(source, target, 4, radius=4)
    found = kept.windows(centers, 4)
    assert found.dtype == torch.bfloat16
    assert all(volume.dtype == torch.bfloat16 for volume in kept.volumes)
    assert (found - right).square().mean().sqrt() < 1.6 * (right.bfloat16() - right).square().mean().sqrt()


def test_rows_refuse_windows_that_are_wider_than_the_zeros_between_them():
    kept = RowCorrelation(*maps(9, 11), levels=2, radius=2)
    with pytest.raises(ValueError, match="windows of radius 2 at most, not 3"):
        kept.windows(estimates(9, 11, 1.0), 3)


def test_they_agree_in_their_gradients_too():
    centers = estimates(9, 11, 1.0)
    gradients = []
    for kind in (StoredCorrelation, OnDemandCorrelation):
        source, target = (each.clone().requires_grad_() for each in maps(9, 11))
        kind(source, target, 2).windows(centers, 3).square().sum().backward()
        gradients.append((source.grad, target.grad))
    for stored, on_demand in zip(*gradients, strict=True):
        assert torch.allclose(stored, on_demand, atol=1e-3)


def test_looking_up_in_small_pieces_changes_nothing(monkeypatch):
    source, target = maps(9, 11)
    centers = estimates(9, 11, 1.0)
    whole = OnDemandCorrelation(source, target, 2).windows(centers, 4)
    monkeypatch.setattr(correlation, "GATHER_LIMIT", 5000)
    assert torch.equal(OnDemandCorrelation(source, target, 2).windows(centers, 4), whole)


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_on_demand_never_makes_all_pairs(monkeypatch):
    monkeypatch.setattr(correlation, "GATHER_LIMIT", 50_000)
    source, target = maps(30, 40, channels=4, batch=1)
    with LargestTensor() as largest:
        OnDemandCorrelation(source, target, 4).windows(estimates(30, 40, 1.0, batch=1), 4)
    assert largest.elements <= 4 * 81 * 30 * 40  # the windows themselves
    assert largest.elements < (30 * 40) ** 2 / 2


@pytest.mark.parametrize("size", [(7, 5), (55, 13)])
def test_levels_of_odd_sizes_are_means_of_the_pixels_there_are(size):
    _, target = maps(*size, batch=1)
    pyramid = OnDemandCorrelation(target, target, 4).pyramid
    for level, pooled in enumerate(pyramid):
        side = 2**level
        rows, columns = ((length - 1) % side + 1 for length in size)  # what is left for the last cell
        assert pooled.shape[2:] == tuple(-(-length // side) for length in size)
        assert torch.allclose(pooled[..., -1, -1], target[..., -rows:, -columns:].mean(dim=(2, 3)), atol=1e-6)


def test_the_middle_of_a_window_is_the_scaled_product_at_the_estimate():
    source, target = maps(6, 7)
    window = StoredCorrelation(source, target, 1).windows(estimates(6, 7, 0.0), 4)
    assert torch.allclose(window[:, 40], (source * target).sum(dim=1) / 8**0.5, atol=1e-5)


def test_a_window_is_read_row_by_row_and_is_zero_outside_the_target():
    source, target = maps(6, 7)
    window = StoredCorrelation(source, target, 1).windows(estimates(6, 7, 0.0), 1)
    right = (source[:, :, :, :-1] * target[:, :, :, 1:]).sum(dim=1) / 8**0.5
    below = (source[:, :, :-1] * target[:, :, 1:]).sum(dim=1) / 8**0.5
    assert torch.allclose(window[:, 5, :, :-1], right, atol=1e-5)
    assert torch.allclose(window[:, 7, :-1], below, atol=1e-5)
    assert (window[:, 5, :, -1] == 0).all()
    assert (window[:, 0, 0] == 0).all()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels_are_bilinear_samples_of_the_averaged_target(level):
    """Against grid_sample on the pooled target: pixel i of a level is centered on the pixels that it averages."""
    source, target = maps(8, 12, batch=1)
    centers = estimates(8, 12, 2.0, batch=1)
    window = StoredCorrelation(source, target, 3).windows(centers, 4)[:, 81 * level + 40]
    pooled = F.avg_pool2d(target, 2**level) if level else target
    size = torch.tensor([12.0, 8.0]).view(1, 2, 1, 1)
    where = ((centers + 0.5) / size * 2 - 1).permute(0, 2, 3, 1)
    sampled = F.grid_sample(pooled, where, align_corners=False)
    assert torch.allclose(window, (source * sampled).sum(dim=1) / 8**0.5, atol=1e-4)


def test_the_best_match_of_a_shifted_map_is_at_the_shift():
    _, target = maps(12, 12, channels=32, batch=1)
    source = target.roll((-2, -1), dims=(2, 3))  # source(p) is target(p + (1, 2))
    window = StoredCorrelation(source, target, 1).windows(estimates(12, 12, 0.0, batch=1), 4)
    best = window[0, :, 4:8, 4:8].argmax(dim=0)
    assert (best == (4 + 2) * 9 + (4 + 1)).all()


def test_the_bytes_of_all_pairs_are_those_of_the_stored_volumes():
    stored = StoredCorrelation(*maps(13, 18), levels=3)
    assert all_pairs_bytes((13, 18), 3, batch=2) == sum(4 * volume.numel() for volume in stored.volumes)


def test_the_bytes_of_rows_are_those_of_their_volumes_a_little_more_than_half():
    source, target = (each.bfloat16() for each in maps(13, 18, batch=1))
    kept = RowCorrelation(source, target, levels=3, radius=4)
    assert row_bytes((13, 18), 3, 4) == sum(2 * volume.numel() for volume in kept.volumes)
    assert 0.5 < row_bytes((55, 128), 4, 4) / all_pairs_bytes((55, 128), 4) < 0.6
