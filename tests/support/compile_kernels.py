"""Compile Triton kernels for a GPU that is not there, up to Triton's own representation.

    TRITON_INTERPRET=0 python tests/support/compile_kernels.py

The interpreter runs kernels as Python, so it accepts what the compiler refuses, such as a variable that changes its
type. Here every launch compiles its kernel and does not run it; outputs stay uninitialized.
"""

import itertools
from typing import Any

import torch
import triton.compiler
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from protoformer.models.encoder import Mixer
from protoformer.models.kernels import dispatch
from protoformer.models.prototyping import Prototyping
from protoformer.models.synchronization import LatentSynchronization

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"spatial_prior": True},
    {"normalize": False, "residual": False},
    {"spatial_prior": True, "normalize": False, "residual": False},
)
SIZES = ((32, 2), (48, 2), (128, 4), (192, 6))
"""(channels, heads): all heads together, padded heads, as in the presets."""
compiled: set[str] = set()


class Driver:
    """A Hopper GPU that compiles and does nothing else."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def compile_only(source: Any, target: GPUTarget, options: dict[str, Any], **_: Any) -> object:
    """Make the first representation of a kernel, which checks names, shapes and types."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    parsed = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source.make_ir(target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    compiled.add(source.fn.__name__)
    return object()


def compile_mixer(settings: dict[str, Any], channels: int, heads: int, dtype: torch.dtype) -> None:
    """Compile the kernels of CAP, LS and their gradients."""
    mixer = Mixer(
        Prototyping(channels, heads, 12, num_iterations=2, **settings), LatentSynchronization(channels, heads)
    )
    tokens: Tensor = torch.randn(2, 35, channels).requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        output, prototypes = mixer(tokens, (7, 5))
    loss = output.float().sum() + prototypes.centers.sum()
    if prototypes.positions is not None:
        loss = loss + prototypes.positions.sum()
    loss.backward()


def main() -> None:
    """Compile the kernels of the mixer in all precisions."""
    driver.set_active(Driver())
    run = JITFunction.run

    def warm_up(self: JITFunction[Any], *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *arguments, grid=grid, warmup=True, **options)

    JITFunction.run = warm_up
    triton.compiler.compile = compile_only
    dispatch.fits_kernels = lambda *_: True
    precisions = (torch.float32, torch.float16, torch.bfloat16)
    for settings, (channels, heads), dtype in itertools.product(SETTINGS, SIZES, precisions):
        compile_mixer(settings, channels, heads, dtype)
    print(*sorted(compiled), sep="\n")


if __name__ == "__main__":
    main()
