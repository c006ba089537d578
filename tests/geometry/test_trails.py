"""Trails from chained motions, against motions whose chains are known exactly."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from protoformer.geometry.motion_fields import (
    CELL,
    Trajectories,
    cell_centers,
    chain_flows,
    invert_flow,
    resample_trajectories,
)

SIZE = (64, 96)
CENTERS = cell_centers(SIZE)


def flows(matrices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Motions between neighboring frames whose camera matrices, 3 x 3, lead from the first frame to each."""
    ahead, back = [], []
    homogeneous = torch.cat((CENTERS, torch.ones(1, *CENTERS.shape[1:]))).flatten(1).double()
    for one, other in pairwise(matrices):
        for result, step in ((ahead, other @ one.inverse()), (back, one @ other.inverse())):
            result.append(((step @ homogeneous)[:2] - homogeneous[:2]).float().unflatten(1, CENTERS.shape[1:]))
    return torch.stack(ahead)[None], torch.stack(back)[None]


def sure(motions: Tensor) -> Tensor:
    return torch.ones_like(motions[:, :, :1])


def turned(angle: float, scale: float, x: float, y: float) -> Tensor:
    turn = scale * torch.tensor([[1.0, -angle], [angle, 1.0]], dtype=torch.float64)
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[:2, :2], matrix[:2, 2] = turn, torch.tensor([x, y], dtype=torch.float64)
    return matrix


def test_cells_fill_the_frame() -> None:
    assert CENTERS.shape == (2, 8, 12)
    assert CENTERS[:, 0, 0].tolist() == [3.5, 3.5] and CENTERS[:, -1, -1].tolist() == [91.5, 59.5]


@pytest.mark.parametrize("now", [0, 2, 4])
def test_a_steady_pan_is_a_straight_trail(now: int) -> None:
    motion = torch.tensor([2.0, -1.0]).view(1, 1, 2, 1, 1).expand(1, 4, 2, 8, 12)
    result = chain_flows(motion, -motion, sure(motion), sure(motion), now)
    steps = torch.arange(5) - now
    known = result.confidence > 0
    expected = (steps.view(1, 5, 1, 1, 1) * motion[:, :1]).where(known, torch.tensor(0.0))
    assert (
        torch.allclose(result.displacements, expected)
        and result.confidence[:, now].min() == 1
        and known.float().mean() > 0.7
    )


def test_chained_affine_motions_are_their_products() -> None:
    matrices = [turned(0.01 * n, 1 + 0.004 * n, 0.5 * n, -0.7 * n) for n in range(6)]
    forward, backward = flows(matrices)
    now = 2
    result = chain_flows(forward, backward, sure(forward), sure(backward), now)
    homogeneous = torch.cat((CENTERS, torch.ones(1, 8, 12))).flatten(1).double()
    for number in range(6):
        there = (matrices[number] @ matrices[now].inverse() @ homogeneous)[:2].float().unflatten(1, (8, 12)) - CENTERS
        # Beyond the outermost centers motions are held as they are there.
        assert (result.displacements[0, number] - there)[:, 1:-1, 1:-1].abs().max() < 0.02


def test_what_leaves_the_frame_is_not_followed_even_if_it_would_come_back() -> None:
    away = torch.zeros(1, 2, 2, 8, 12)
    away[:, 0, 0], away[:, 1, 0] = 20.0, -20.0
    result = chain_flows(away, -away, sure(away), sure(away), 0)
    left = CENTERS[0] + 20 > 95.5
    assert torch.equal(result.confidence[0, 1, 0] == 0, left) and torch.equal(result.confidence[0, 2, 0] == 0, left)
    assert result.displacements[0, :, :, left].abs().max() == 0 and left.any()
    assert result.displacements[0, 2, :, ~left].abs().max() < 1e-4


def test_confidence_is_a_product_and_ends_with_the_clip() -> None:
    still = torch.zeros(2, 4, 2, 8, 12)
    known = sure(still) * 0.5
    known[1, 3] = 0  # the second clip has one frame less
    result = chain_flows(still, still, known, known, 1)
    assert result.confidence[0, :, 0, 3, 3].tolist() == [0.5, 1, 0.5, 0.25, 0.125]
    assert result.confidence[1, :, 0, 3, 3].tolist() == [0.5, 1, 0.5, 0.25, 0]


def test_windows_of_a_batch_do_not_see_one_another() -> None:
    generator = torch.Generator().manual_seed(0)
    forward, backward = torch.randn(2, 3, 4, 2, 8, 12, generator=generator).unbind(0)
    confidences = torch.rand(2, 3, 4, 1, 8, 12, generator=generator).unbind(0)
    whole = chain_flows(forward, backward, *confidences, 2)
    alone = chain_flows(forward[1:2], backward[1:2], *(confidence[1:2] for confidence in confidences), 2)
    assert torch.allclose(whole.displacements[1:2], alone.displacements, atol=1e-5)
    assert torch.allclose(whole.confidence[1:2], alone.confidence, atol=1e-6)


def test_seen_from_where_a_warp_takes_them_trails_stand_beside_their_new_places() -> None:
    slope = (CENTERS[0] / 10).expand(1, 3, 2, 8, 12).clone()
    slope[:, 1] = 0  # now
    trails = Trajectories(slope, torch.ones(1, 3, 1, 8, 12))
    warp = torch.full((1, 2, 8, 12), float(CELL))
    moved = resample_trajectories(trails, warp)
    inner = slice(1, -1)
    assert torch.allclose(moved.displacements[:, 1, :, inner, inner], warp[:, :, inner, inner])
    expected = (CENTERS[0] + CELL) / 10 + CELL
    assert torch.allclose(moved.displacements[0, 0, 0, inner, inner], expected[inner, inner], atol=1e-4)
    assert (
        moved.confidence[0, 0, 0, :, -1].max() == 0 and moved.confidence[0, 0, 0, -1].max() == 0
    )  # from beyond the frame


def test_places_that_are_not_known_do_not_draw_others_towards_them() -> None:
    confidence = torch.ones(1, 2, 1, 8, 12)
    confidence[..., 5] = 0
    trails = Trajectories(torch.where(confidence > 0, 6.0, 0.0).expand(1, 2, 2, 8, 12), confidence)
    moved = resample_trajectories(trails, torch.full((1, 2, 8, 12), 4.0))
    known = moved.confidence.expand_as(moved.displacements) > 0
    assert torch.allclose(moved.displacements[known], torch.tensor(10.0))
    assert moved.confidence[0, 0, 0, 0, 3:6].tolist() == [1, 0.5, 0.5]


def test_an_inverse_leads_back_to_where_a_flow_starts() -> None:
    across, down = cell_centers((64, 96))
    scale, shift = 1.02, torch.tensor((5.0, -3.0))  # x -> scale x + shift, whose inverse is known
    centers = torch.stack((across, down))[None]
    forward = (scale - 1) * centers + shift[:, None, None]
    inverse, confidence = invert_flow(forward, torch.full((1, 1, 8, 12), 0.5))
    true = (centers - shift[:, None, None]) / scale - centers
    inside = confidence[:, 0] > 0
    assert (inverse - true).norm(dim=1)[inside].max() < 0.1  # flows are constant beyond the outermost centers
    assert torch.allclose(confidence[confidence > 0], torch.tensor(0.5)) and (confidence == 0).any()
    landed = centers + true
    within = (landed >= -0.5).all(dim=1) & (landed[:, 0] <= 95.5) & (landed[:, 1] <= 63.5)
    assert torch.equal(inside, within)
