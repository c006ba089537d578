"""What a world makes and a dataset holds."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FlowSample:
    """A batch of pairs with their true motion.

    first, second: N x 3 x H x W in [0, 1]. flow: N x 2 x H x W, pixels, from first to second.
    valid: N x 1 x H x W, bool, where the flow is known. occlusion: N x 1 x H x W, bool, pixels of the first image that
    the second does not show, or leave it.
    """

    first: Tensor
    second: Tensor
    flow: Tensor
    valid: Tensor
    occlusion: Tensor

    @classmethod
    def join(cls, samples: "list[FlowSample]") -> "FlowSample":
        """One batch of several, all of the same size."""
        return cls(
            first=torch.cat([sample.first for sample in samples]),
            second=torch.cat([sample.second for sample in samples]),
            flow=torch.cat([sample.flow for sample in samples]),
            valid=torch.cat([sample.valid for sample in samples]),
            occlusion=torch.cat([sample.occlusion for sample in samples]),
        )
