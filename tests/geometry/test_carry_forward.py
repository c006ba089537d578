"""The flow of the next pair, if everything goes on as it does."""

import pytest
import torch

from protoformer.geometry.warps import carry_forward


def test_no_motion_stays_no_motion() -> None:
    assert torch.equal(carry_forward(torch.zeros(2, 2, 5, 7)), torch.zeros(2, 2, 5, 7))


@pytest.mark.parametrize("motion", [(3.0, 0.0), (-2.0, 1.0), (0.4, -0.3), (7.25, -4.5), (11.0, 7.0)])
def test_a_pan_goes_on_everywhere_even_where_nothing_came_from(motion: tuple[float, float]) -> None:
    flow = torch.tensor(motion).view(1, 2, 1, 1).expand(1, 2, 9, 13).contiguous()
    torch.testing.assert_close(carry_forward(flow), flow)


def test_a_moving_square_takes_its_vectors_along() -> None:
    flow = torch.zeros(1, 2, 20, 20)
    flow[:, :, 4:8, 5:9] = torch.tensor([6.0, 3.0]).view(1, 2, 1, 1)
    carried = carry_forward(flow)
    moved = torch.zeros(20, 20, dtype=torch.bool)
    moved[7:11, 11:15] = True
    assert torch.equal(carried[0, :, moved], torch.tensor([[6.0], [3.0]]).expand(2, 16))
    # Around it, and where it was, is the background.
    assert torch.equal(carried[0, :, ~moved], torch.zeros(2, 384))


def test_where_two_meet_the_faster_one_is_in_front() -> None:
    flow = torch.zeros(1, 2, 1, 5)
    flow[0, 0] = torch.tensor([4.0, 0.0, 0.0, -1.0, 0.0])
    assert carry_forward(flow)[0, 0, 0].tolist()[4] == 4.0
    assert carry_forward(flow)[0, 0, 0].tolist()[2] == -1.0


def test_where_two_of_one_speed_meet_their_mean_stays() -> None:
    flow = torch.zeros(1, 2, 1, 3)
    flow[0, 0] = torch.tensor([1.0, 0.0, -1.0])
    assert carry_forward(flow)[0, 0, 0, 1] == 0.0


def test_a_hole_takes_the_mean_of_its_known_neighbors() -> None:
    flow = torch.zeros(1, 2, 1, 7)
    flow[0, 0] = torch.tensor([-1.0, -1.0, -1.0, 2.0, 2.0, 2.0, 2.0])
    # They part: -1 reaches pixels 0 and 1, 2 reaches pixels 5 and 6, and nothing reaches 2 to 4.
    assert carry_forward(flow)[0, 0, 0].tolist() == pytest.approx([-1, -1, -1, 0.5, 2, 2, 2])


def test_a_motion_that_carries_everything_away_leaves_no_motion() -> None:
    flow = torch.full((1, 2, 6, 6), 50.0)
    assert torch.equal(carry_forward(flow), torch.zeros(1, 2, 6, 6))


def test_the_images_of_a_batch_do_not_mix() -> None:
    flow = torch.zeros(3, 2, 6, 8)
    flow[0] += 50.0
    flow[1, 0], flow[1, 1] = 2.0, -1.0
    flow[2] = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(carry_forward(flow), torch.cat([carry_forward(one[None]) for one in flow]))


def test_an_unknown_vector_counts_as_a_hole() -> None:
    flow = torch.ones(1, 2, 5, 5)
    flow[0, :, 2, 2] = torch.nan
    torch.testing.assert_close(carry_forward(flow), torch.ones(1, 2, 5, 5))
