"""Initialization of weights, and construction of networks on the meta device or in float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def meta_init() -> Iterator[None]:
    """Build networks on the meta device within this context: with shapes and without values."""
    with torch.device("meta"), _SkipInit():
        yield


class _SkipInit(TorchFunctionMode):
    """Skip the initialization of meta tensors, for which torch would import its compiler (about a second)."""

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
"""Functions that create tensors of torch's default dtype if none is given."""


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Create new tensors in float32 within this context, whatever torch's default dtype is.

    Networks compute in float32, and their random weights must not depend on the default. In contrast to
    `torch.set_default_dtype`, the context applies to the current thread only.
    """
    if torch.get_default_dtype() == torch.float32:
        yield
        return
    with _Float32():
        yield


class _Float32(TorchFunctionMode):
    """Set the dtype to float32 where a new tensor would have the default dtype."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function in _FLOATING and options.get("dtype") is None:
            options = {**options, "dtype": torch.float32}
        output = function(*args, **options)
        is_new = function is torch.tensor and options.get("dtype") is None
        return output.float() if is_new and output.dtype == torch.get_default_dtype() else output


def init_for_relu(module: nn.Module) -> None:
    """Initialize every convolution of a module for a ReLU after it (He et al., 2015)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def init_for_gates(module: nn.Module) -> None:
    """Initialize every convolution of a module for a sigmoid or tanh after it (Glorot and Bengio, 2010)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
