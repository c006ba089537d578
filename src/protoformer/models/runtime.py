"""Where half precision would change the answer, and where it is wanted."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from protoformer.errors import InputError

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


Precision = Literal["auto", "full", "half"]
"""float32; matrix products in bfloat16; or the latter where the device is made for it."""

ProgressCallback = Callable[[int, int], None]
"""Called with how many updates are done, and of how many."""


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """No autocast on this tensor's device; where there is none to turn off, nothing that a graph would have to note."""
    if tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def to_autocast_dtype(tensor: Tensor) -> Tensor:
    """The tensor in the precision that autocast, where it is on, gives to matrix products.

    Autocast converts what every linear layer reads, each time anew; several that read one tensor share one conversion.
    """
    device = tensor.device.type
    if tensor.is_meta or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which sums of numbers of this precision are kept: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def use_half_precision(device: torch.device, precision: Precision) -> bool:
    """Whether products are to be in bfloat16 on a device."""
    if precision not in ("auto", "full", "half"):
        raise InputError(f"there is no precision {precision!r}; choose auto, full or half.")
    if precision != "auto":
        return precision == "half"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def maps_to_tokens(maps: Tensor) -> Tensor:
    """B x C x H x W to B x HW x C, row by row."""
    return maps.flatten(2).transpose(1, 2)


def tokens_to_maps(tokens: Tensor, size: tuple[int, int]) -> Tensor:
    """B x HW x C to B x C x H x W, the inverse of `tokens_of`."""
    # Not reshaped, which gives a batch of one a stride by which convolutions do not see that channels come last.
    return tokens.view(tokens.shape[0], *size, tokens.shape[2]).permute(0, 3, 1, 2)


def map_size(maps: Tensor) -> tuple[int, int]:
    """The (H, W) of B x C x H x W."""
    return maps.shape[2], maps.shape[3]


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """B x n x C to B x heads x n x C / heads."""
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(heads: Tensor) -> Tensor:
    """B x heads x n x d to B x n x (heads d), the inverse of `split_heads`."""
    return heads.transpose(1, 2).flatten(2)


def split_rows(rows: int, block: int, most: int) -> tuple[int, int]:
    """Into how many parts, at most `most`, rows go, and the rows of a part, whole blocks of them."""
    blocks = math.ceil(rows / block)
    each = math.ceil(blocks / max(1, most))
    return math.ceil(blocks / each), each * block


Tensors = tuple[Tensor, ...]
WARM_UP = 2
"""Calls of a shape that run as they are before one is recorded: a shape that comes seldom is not worth it."""


class CudaGraph:
    """The function, recorded when a shape has come often enough, and then replayed. For one GPU and one thread.

    It must do the same work for the same shapes, and take and return tensors on the GPU alone.
    """

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self.function = function
        self._side: torch.cuda.Stream | None = None  # one for all: memory that a call frees is then the next one's
        self._calls: dict[tuple[torch.Size, ...], int] = {}
        self._recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, Tensors, Tensors]] = {}

    def __call__(self, *inputs: Tensor) -> Tensors:
        """What the function returns, in memory that the next call leaves alone."""
        with torch.cuda.device_of(inputs[0]):
            return self._called(inputs)

    def _called(self, inputs: Tensors) -> Tensors:
        key = tuple(each.shape for each in inputs)
        if key not in self._recorded:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= WARM_UP:
                return self._beside(inputs)
            self._recorded[key] = self._record(inputs)
        graph, held, outputs = self._recorded[key]
        for mine, given in zip(held, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return tuple(each.clone() for each in outputs)

    def _beside(self, inputs: Tensors) -> Tensors:
        """Run on a stream of its own, as recording demands of the calls before it."""
        self._side = torch.cuda.Stream() if self._side is None else self._side
        here = torch.cuda.current_stream()
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            outputs = self.function(*inputs)
        here.wait_stream(self._side)
        for each in outputs:
            each.record_stream(here)
        return outputs

    def _record(self, inputs: Tensors) -> tuple[torch.cuda.CUDAGraph, Tensors, Tensors]:
        held = tuple(each.clone() for each in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self.function(*held)
        return graph, held, outputs


Formula = Callable[..., int]
_FORMULAS: dict[Any, Formula] = {}


def flop_formula(operator: Any) -> Callable[[Formula], Formula]:
    """Decorate a function of an operator's arguments, shapes for tensors, that returns its operations.

    Args:
        operator: An operator of `torch.ops`.
    """

    def keep(formula: Formula) -> Formula:
        _FORMULAS[operator] = formula
        return formula

    return keep


def flop_counter() -> "FlopCounterMode":
    """Return torch's counter, a context manager, which knows all operators that have a `flop_formula`."""
    from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

    for operator, formula in _FORMULAS.items():
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)
    return FlopCounterMode(display=False)
