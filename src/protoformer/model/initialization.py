"""Networks before anything is learned: with starting weights that keep signals at their strength, or with none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Within it, networks are built without any numbers in them, on the device "meta"."""
    with torch.device("meta"), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Draws no numbers for tensors that have no place for them; torch would import its compiler first, for a second."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function is Tensor.normal_ or getattr(function, "__module__", None) == nn.init.__name__:
            tensor = args[0] if args else options["tensor"]
            if tensor.is_meta:
                return tensor
        return function(*args, **options)


def for_relu(module: nn.Module) -> None:
    """Give every convolution in a module the spread that a ReLU after it preserves (He et al., 2015)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def for_gates(module: nn.Module) -> None:
    """Give every convolution in a module the spread that a sigmoid or tanh preserves (Glorot and Bengio, 2010)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
