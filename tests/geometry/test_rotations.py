"""Rotations by a vector."""

import math

import torch
from torch import Tensor

from protoformer.geometry.warps import rotation


def some_vectors(length: float = 1.0) -> Tensor:
    return length * torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_no_vector_is_no_turn() -> None:
    assert torch.equal(rotation(torch.zeros(2, 3, dtype=torch.float64)), torch.eye(3).double().expand(2, 3, 3))


def test_it_is_the_exponential_of_the_cross_product() -> None:
    for length in (1e-9, 1e-3, 1.0, 10.0):
        vectors = some_vectors(length)
        cross = torch.linalg.cross(vectors[:, None].expand(-1, 3, 3), torch.eye(3).double().expand(50, 3, 3))
        torch.testing.assert_close(rotation(vectors), torch.matrix_exp(cross.mT), atol=1e-12, rtol=0)


def test_it_keeps_lengths_and_handedness() -> None:
    turned = rotation(some_vectors(3.0))
    torch.testing.assert_close(turned @ turned.mT, torch.eye(3).double().expand(50, 3, 3), atol=1e-13, rtol=0)
    torch.testing.assert_close(torch.linalg.det(turned), torch.ones(50).double())


def test_it_turns_right_handed_about_each_axis() -> None:
    axes = torch.eye(3, dtype=torch.float64)
    for axis in range(3):
        turned = rotation(math.pi / 2 * axes[axis])
        torch.testing.assert_close(turned @ axes[(axis + 1) % 3], axes[(axis + 2) % 3])
        torch.testing.assert_close(turned @ axes[axis], axes[axis])


def test_the_opposite_vector_turns_back() -> None:
    vectors = some_vectors()
    torch.testing.assert_close(rotation(-vectors), rotation(vectors).mT)
