"""Rotations in space."""

import torch
from torch import Tensor


def rotation(vector: Tensor) -> Tensor:
    """The turn about a vector by its length in radians, right-handed: ... x 3 to ... x 3 x 3."""
    angle = vector.norm(dim=-1, keepdim=True)[..., None]
    x, y, z = (vector / angle[..., 0].clamp_min(1e-30)).unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), dim=-1).unflatten(-1, (3, 3))
    identity = torch.eye(3, dtype=vector.dtype, device=vector.device)
    turned: Tensor = identity + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)
    return turned
