"""Choice between the implementations of the hot operators; every other module asks here.

Two switches exist for comparisons. `use_version("plain")` replaces everything by plain torch, and `disabled("gru")`
replaces one group of Triton kernels. The environment variable PROTOFORMER_DISABLE_KERNELS=gru,norm disables groups for
a whole process.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

VERSIONS = ("fused", "plain")
"""Implementations that `use_version` selects."""
KERNEL_GROUPS = {
    "norm": "layer norm of tokens, instance norm of maps",
    "activation": "bias and ReLU after a convolution",
    "position": "depthwise 3x3 convolution with a residual connection",
    "gru": "gates and state of the ConvGRU",
    "upsampling": "convex upsampling",
    "lookup": "windows of the correlation pyramid",
    "loss": "error sums of the flow loss",
    "mixing": "CAP and LS",
    "projection": "keys and values of CAP, within mixing",
    "centers": "cell means and the M-step, within mixing",
    "mlp": "feed-forward network of LS, after mixing",
}
"""Groups of Triton kernels that can be disabled, and what they compute."""
ENVIRONMENT_VARIABLE = "PROTOFORMER_DISABLE_KERNELS"

MAX_PROTOTYPES, MAX_HEAD_DIM = 256, 64
"""Largest sizes whose tiles fit the registers."""
TRITON_AVAILABLE = importlib.util.find_spec("triton") is not None
"""Triton comes with torch for CUDA; if it is installed without a GPU, for tests, no operator calls it."""
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _check_groups(groups: tuple[str, ...]) -> frozenset[str]:
    unknown = [group for group in groups if group not in KERNEL_GROUPS]
    if unknown:
        raise ValueError(f"there is no kernel group {unknown[0]!r}; choose from {', '.join(KERNEL_GROUPS)}")
    return frozenset(groups)


_version = "fused"
_disabled = _check_groups(tuple(filter(None, os.environ.get(ENVIRONMENT_VARIABLE, "").replace(" ", "").split(","))))


@contextmanager
def use_version(version: str) -> Iterator[None]:
    """Use one of `VERSIONS` within this context, for comparisons; the choice applies to the whole process.

    Raises:
        ValueError: If there is no such version.
    """
    global _version  # noqa: PLW0603 - compiled graphs guard on a global
    if version not in VERSIONS:
        raise ValueError(f"there is no version {version!r}; choose one of {', '.join(VERSIONS)}")
    before, _version = _version, version
    try:
        yield
    finally:
        _version = before


@contextmanager
def disabled(*groups: str) -> Iterator[None]:
    """Replace groups of Triton kernels by plain torch within this context, in the whole process.

    Args:
        *groups: Keys of `KERNEL_GROUPS`, in addition to those that are disabled already.

    Raises:
        ValueError: If there is no such group.
    """
    global _disabled  # noqa: PLW0603 - compiled graphs guard on a global
    before, _disabled = _disabled, _disabled | _check_groups(groups)
    try:
        yield
    finally:
        _disabled = before


def is_enabled(group: str) -> bool:
    """Return whether a group of `KERNEL_GROUPS` may run."""
    return group not in _disabled


def is_plain(group: str | None = None) -> bool:
    """Return whether plain torch runs: by choice, or in an export, whose users lack the custom operators.

    Args:
        group: Group of kernels; the plain version of it also runs if the group is disabled.
    """
    return _version == "plain" or is_exporting() or (group is not None and not is_enabled(group))


def is_exporting() -> bool:
    """Return whether torch is exporting or tracing a graph, whose image size may be dynamic."""
    # In some supported versions torch.compiler.is_exporting is also true under torch.compile.
    exporting: bool = torch.compiler._is_exporting_flag
    return exporting or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def use_kernels(tensor: Tensor, group: str) -> bool:
    """Return whether the Triton kernels of a group run on this tensor: on a GPU, and not while a graph is captured."""
    return _kernels_run_on(tensor.device, group)


def _kernels_run_on(device: torch.device, group: str) -> bool:
    return device.type == "cuda" and TRITON_AVAILABLE and not is_plain(group) and not torch.compiler.is_compiling()


def stores_half_costs(device: torch.device, half: bool) -> bool:
    """Return whether inference stores the all-pairs costs in half precision.

    Args:
        device: Device of the network.
        half: Whether matrix products are in half precision.
    """
    on_cpu = device.type == "cpu" and not (is_plain() or torch.compiler.is_compiling())
    return half and (on_cpu or _kernels_run_on(device, "lookup"))


def is_cpu_inference(tensor: Tensor) -> bool:
    """Return whether this is inference on a CPU: no gradient and no graph capture."""
    captured = is_plain() or torch.compiler.is_compiling()
    return tensor.device.type == "cpu" and not torch.is_grad_enabled() and not captured


def fits_kernels(tokens: Tensor, num_prototypes: int, head_dim: int) -> bool:
    """Return whether the Triton kernels of CAP and LS support these tokens: device, dtype and tile size."""
    return (
        tokens.is_cuda
        and tokens.dtype in KERNEL_DTYPES
        and num_prototypes <= MAX_PROTOTYPES
        and head_dim <= MAX_HEAD_DIM
        and tokens.numel() > 0
        and TRITON_AVAILABLE
    )
