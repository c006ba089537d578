"""Motion paths are polynomials of time plus waves."""

import math

import pytest
import torch
from torch import Tensor

from protoformer.synthetic.scene import MotionPath, join_paths


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_polynomial_has_its_value_velocity_and_acceleration() -> None:
    place, velocity, bend = numbers(2, 3), numbers(2, 3, seed=1), numbers(2, 3, seed=2)
    path = MotionPath.of(place, velocity, bend)
    time = torch.tensor([0.5, -2.0])
    expected = place + velocity * time[:, None] + bend * time[:, None] ** 2
    torch.testing.assert_close(path.at(time), expected)
    assert torch.equal(path.at(torch.zeros(2)), place)


def test_waves_add_up() -> None:
    path = MotionPath.of(numbers(1, 2))
    once = path.with_waves(torch.tensor([2.0]).double(), torch.tensor([0.25]).double(), torch.tensor([0.5]).double())
    twice = once.with_waves(torch.tensor([3.0, 0.0]).double(), torch.ones(2).double(), torch.zeros(2).double())
    for time in (0.0, 0.3, 7.0):
        first = 2 * math.sin(2 * math.pi * 0.25 * time + 0.5)
        second = 3 * math.sin(2 * math.pi * time)
        at = torch.tensor([time], dtype=torch.float64)
        torch.testing.assert_close(once.at(at), path.at(at) + first)
        torch.testing.assert_close(twice.at(at), path.at(at) + first + second)


def test_each_scene_has_its_own_time_and_several_times_go_in_front() -> None:
    path = MotionPath.of(numbers(2, 5, 3), numbers(2, 5, 3, seed=1)).with_waves(
        numbers(2, 5, 3, 4, seed=2), numbers(2, 5, 3, 4, seed=3), numbers(2, 5, 3, 4, seed=4)
    )
    time = torch.tensor([[0.0, 1.0], [0.25, -3.0], [7.0, 0.1]], dtype=torch.float64)
    several = path.at(time)
    assert several.shape == (3, 2, 5, 3) and several.dtype == torch.float64
    for row in range(3):
        torch.testing.assert_close(several[row], path.at(time[row]))


@pytest.mark.parametrize("time", [0.0, 0.4, -1.3])
def test_joined_paths_run_as_they_did_alone(time: float) -> None:
    still, line = MotionPath.of(numbers(2, 3, 3)), MotionPath.of(numbers(2, 1, 3), numbers(2, 1, 3, seed=1))
    wavy = still.with_waves(numbers(2, 3, 3, 2), numbers(2, 3, 3, 2, seed=1), numbers(2, 3, 3, 2, seed=2))
    at = torch.full((2,), time, dtype=torch.float64)
    together = join_paths([still, line, wavy]).at(at)
    torch.testing.assert_close(together, torch.cat((still.at(at), line.at(at), wavy.at(at)), dim=1))
