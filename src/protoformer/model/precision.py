"""Where half precision would change the answer, and where it is wanted."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """No autocast on this tensor's device; where there is none to turn off, nothing that a graph would have to note."""
    if tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def for_products(tensor: Tensor) -> Tensor:
    """The tensor in the precision that autocast, where it is on, gives to matrix products.

    Autocast converts what every linear layer reads, each time anew; several that read one tensor share one conversion.
    """
    device = tensor.device.type
    if tensor.is_meta or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """The precision in which sums of numbers of this precision are kept: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
