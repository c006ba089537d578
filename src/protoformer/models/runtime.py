"""Device and precision of networks, image range, tensor layouts, meta device, CUDA graphs and operation counting.

`NetworkPredictor` is the base class of the predictors of all tasks.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from protoformer.errors import InputError
from protoformer.io.files import short_repr

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

    from protoformer.models.protoformer import ProtoFormer


Precision = Literal["auto", "full", "half"]
"""Precision of matrix products: "full" float32, "half" bfloat16, "auto" bfloat16 on devices that support it."""

ProgressCallback = Callable[[int, int], None]
"""Called with the number of completed updates and their total."""


def normalize_images(images: Tensor) -> Tensor:
    """Scale images from [0, 1] to [-1, 1], the range of the networks."""
    return 2 * images - 1


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context that disables autocast on the tensor's device.

    It is a null context if autocast is off, so that traced graphs contain nothing for it.
    """
    if tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)


def to_autocast_dtype(tensor: Tensor) -> Tensor:
    """Cast a tensor to the dtype of autocast, if that is on.

    Autocast converts the input of every linear layer separately; casting first shares one conversion between several
    layers with the same input.
    """
    device = tensor.device.type
    if tensor.is_meta or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums of values of a dtype are accumulated: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def use_half_precision(device: torch.device, precision: Precision) -> bool:
    """Return whether matrix products are in bfloat16 on a device.

    Raises:
        InputError: If there is no such precision.
    """
    if precision not in ("auto", "full", "half"):
        raise InputError(f"there is no precision {precision!r}; choose auto, full or half.")
    if precision == "half" and device.type == "mps":
        raise InputError("networks run in float32 on mps; choose the precision full or auto.")
    if precision != "auto":
        return precision == "half"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def checked_device(device: str | torch.device) -> torch.device:
    """Return a device after a test computation; raise `InputError` if it does not exist or cannot compute."""
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # a device can have a name and still not compute
    except (RuntimeError, AssertionError, ImportError, TypeError):
        raise InputError(
            f"the device {short_repr(device)} is not there; choose cpu, or cuda or mps on a machine with such a GPU."
        ) from None
    return chosen


class NetworkPredictor:
    """A network on a device, which the predictor of each task extends.

    Attributes:
        network: The network, in eval mode.
        trained: Whether the network has trained weights; every result repeats it.
        device: Device that the network runs on.
        precision: Precision of calls that give none; None: "full" for the flow of image pairs, else "auto".
    """

    def __init__(
        self,
        network: "ProtoFormer",
        trained: bool,
        device: torch.device | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Move a network to a device; by default a CUDA GPU if there is one, else the CPU."""
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if precision is not None:
            use_half_precision(self.device, precision)  # so that an unknown precision is an error here
        self.network = network.eval().to(self.device)
        self.trained, self.precision = trained, precision

    def to(self, device: str | torch.device) -> Self:
        """Move the predictor to another device, such as "cuda", in place; returns the predictor."""
        chosen = checked_device(device)
        if self.precision is not None:
            use_half_precision(chosen, self.precision)
        self.device = chosen
        self.network.to(chosen)
        return self

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write the weights to a .safetensors file for `load`, atomically; `half` stores float16."""
        self.network.save_weights(path, trained=self.trained, half=half)

    def _choose_precision(self, precision: Precision | None, default: Precision = "auto") -> Precision:
        """Return the precision of a call: the given one, else that of the predictor, else a default."""
        return precision or self.precision or default


def maps_to_tokens(maps: Tensor) -> Tensor:
    """Reshape B x C x H x W to B x HW x C, pixels in row-major order."""
    return maps.flatten(2).transpose(1, 2)


def tokens_to_maps(tokens: Tensor, size: tuple[int, int]) -> Tensor:
    """Reshape B x HW x C to B x C x H x W, the inverse of `maps_to_tokens`."""
    # A view, as reshape gives a batch of one strides that convolutions do not recognize as channels last.
    return tokens.view(tokens.shape[0], *size, tokens.shape[2]).permute(0, 3, 1, 2)


def map_size(maps: Tensor) -> tuple[int, int]:
    """Return (H, W) of maps, B x C x H x W."""
    return maps.shape[2], maps.shape[3]


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Reshape B x n x C to B x heads x n x (C / heads)."""
    return tokens.view(*tokens.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(heads: Tensor) -> Tensor:
    """Reshape B x heads x n x d to B x n x (heads d), the inverse of `split_heads`."""
    return heads.transpose(1, 2).flatten(2)


def split_rows(rows: int, block: int, most: int) -> tuple[int, int]:
    """Split rows into at most `most` parts of whole blocks.

    Args:
        rows: Number of rows.
        block: Rows of a block.
        most: Largest number of parts.

    Returns:
        The number of parts and the rows of a part.
    """
    blocks = math.ceil(rows / block)
    blocks_per_part = math.ceil(blocks / max(1, most))
    return math.ceil(blocks / blocks_per_part), blocks_per_part * block


Tensors = tuple[Tensor, ...]
WARM_UP = 2
"""Calls with new input shapes that run without a graph before one is recorded; recording rare shapes does not pay."""


class CudaGraph:
    """Wrap a function so that calls with frequent input shapes replay a CUDA graph. For one GPU and one thread.

    Args:
        function: Takes and returns only tensors on the GPU, and does the same work for the same shapes.
    """

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self.function = function
        self._side: torch.cuda.Stream | None = None  # shared by all calls, so that they reuse freed memory
        self._calls: dict[tuple[torch.Size, ...], int] = {}
        self._recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, Tensors, Tensors]] = {}

    def __call__(self, *inputs: Tensor) -> Tensors:
        """Call the function; the returned tensors are not overwritten by later calls."""
        with torch.cuda.device_of(inputs[0]):
            return self._call(inputs)

    def _call(self, inputs: Tensors) -> Tensors:
        key = tuple(tensor.shape for tensor in inputs)
        if key not in self._recorded:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= WARM_UP:
                return self._warm_up(inputs)
            self._recorded[key] = self._record(inputs)
        graph, static_inputs, outputs = self._recorded[key]
        for static_input, tensor in zip(static_inputs, inputs, strict=True):
            static_input.copy_(tensor)
        graph.replay()
        return tuple(output.clone() for output in outputs)

    def _warm_up(self, inputs: Tensors) -> Tensors:
        """Run on a side stream, as CUDA graphs require of the calls before the recording."""
        self._side = torch.cuda.Stream() if self._side is None else self._side
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            outputs = self.function(*inputs)
        current.wait_stream(self._side)
        for output in outputs:
            output.record_stream(current)
        return outputs

    def _record(self, inputs: Tensors) -> tuple[torch.cuda.CUDAGraph, Tensors, Tensors]:
        static_inputs = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self.function(*static_inputs)
        return graph, static_inputs, outputs


Formula = Callable[..., int]
_FORMULAS: dict[Any, Formula] = {}


def flop_formula(operator: Any) -> Callable[[Formula], Formula]:
    """Register the decorated function as the operation count of an operator.

    The function takes the operator's arguments, with shapes in place of tensors, and returns the number of
    floating-point operations.

    Args:
        operator: An operator of `torch.ops`.
    """

    def register(formula: Formula) -> Formula:
        _FORMULAS[operator] = formula
        return formula

    return register


def flop_counter() -> "FlopCounterMode":
    """Return torch's operation counter, a context manager, with all registered formulas."""
    from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

    for operator, formula in _FORMULAS.items():
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)
    return FlopCounterMode(display=False)


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
