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


_FLOATING = frozenset({torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.linspace, torch.logspace})
"""Functions whose new tensors have torch's default type unless another one is named."""


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Within it, new tensors are float32 even if the caller set another default type for torch.

    Networks compute in float32, and their random weights are to be the same whatever the default is. It holds for this
    thread alone, which `torch.set_default_dtype` does not.
    """
    if torch.get_default_dtype() == torch.float32:
        yield
        return
    with _Float32():
        yield


class _Float32(TorchFunctionMode):
    """Names float32 where a new tensor would have the default type."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function in _FLOATING and options.get("dtype") is None:
            options = {**options, "dtype": torch.float32}
        found = function(*args, **options)
        is_new = function is torch.tensor and options.get("dtype") is None
        return found.float() if is_new and found.dtype == torch.get_default_dtype() else found


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
