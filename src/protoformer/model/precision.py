"""Where half precision would change the answer."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """No autocast on this tensor's device; on shapes alone there is none to turn off."""
    return nullcontext() if tensor.is_meta else torch.autocast(tensor.device.type, enabled=False)
