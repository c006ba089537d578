"""Distributed training: process launch, collectives, random states and stop signals."""

import atexit
import importlib
import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from protoformer.errors import InputError, install_command

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def launch(device: str) -> "Fabric":
    """Start Fabric on one device, or on all devices of the processes that `torchrun` started.

    Several processes use DDP, with gloo on CPUs and NCCL on GPUs.

    Args:
        device: cpu or cuda.

    Raises:
        InputError: If the device is not available or lightning is not installed.
    """
    fabric_class = import_fabric()
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"the device {device!r} is not there; choose cpu, or cuda on a machine with a GPU.")
    num_processes, num_local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    fabric = fabric_class(
        accelerator=device,
        devices=num_local,
        num_nodes=num_processes // num_local,
        strategy="ddp" if num_processes > 1 else "auto",
        # The objective applies autocast itself: Fabric's would also round the ground truth that the loss reads.
        precision="32-true",
    )
    fabric.launch()
    if num_processes > 1:
        atexit.unregister(_destroy_process_groups)
        atexit.register(_destroy_process_groups)
    return fabric


def _destroy_process_groups() -> None:
    """Leave the process groups before the interpreter tears down what they need."""
    _cpu_group.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def import_fabric() -> "type[Fabric]":
    """Import Lightning Fabric.

    Raises:
        InputError: If it is not installed.
    """
    for name in ("lightning.fabric", "lightning_fabric"):  # the second comes with pytorch-lightning
        with suppress(ImportError):
            fabric_class: type[Fabric] = importlib.import_module(name).Fabric
            return fabric_class
    raise InputError(f"training needs the package lightning, which is not installed: {install_command('train')}.")


def is_first_process() -> bool:
    """Return whether this is the only process or rank 0 of `torchrun`, which alone writes output."""
    return os.environ.get("RANK", "0") == "0"


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def mean_over_ranks(tensor: Tensor) -> Tensor:
    """Average a tensor over all processes, in place and, unlike Fabric's version, without synchronizing the GPU."""
    if world_size() > 1:
        dist.all_reduce(tensor)
        tensor /= world_size()
    return tensor


def max_over_ranks(tensor: Tensor) -> Tensor:
    """Take the elementwise maximum of a tensor over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


@lru_cache(maxsize=1)
def _cpu_group() -> "dist.ProcessGroup":
    """Return a gloo group for host values; its timeout is long because rank 0 may validate for hours."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    return group


def all_reduce_max(values: Sequence[float]) -> list[float]:
    """Return the elementwise maximum of host values over all processes; waits for processes, not for GPUs."""
    if world_size() == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=_cpu_group())
    maxima: list[float] = tensor.tolist()
    return maxima


def all_gather_text(text: str) -> list[str]:
    """Return the texts of all processes, in the order of their ranks."""
    if world_size() == 1:
        return [text]
    texts = [""] * world_size()
    dist.all_gather_object(texts, text, group=_cpu_group())
    return texts


@contextmanager
def barrier() -> Iterator[None]:
    """Run the enclosed block in all processes and wait for all of them at its end.

    An `InputError` in any process ends all processes: the one that raised it raises it again, the others exit with
    code 2.
    """
    own_error = None
    try:
        yield
    except InputError as error:
        own_error = error
    (any_error,) = all_reduce_max([own_error is not None])
    if own_error is not None:
        raise own_error
    if any_error:
        raise SystemExit(2)


@contextmanager
def single_process() -> Iterator[None]:
    """Disable the synchronization of torchmetrics, so that one process can evaluate while the others wait."""
    from torchmetrics import metric

    original = metric.jit_distributed_available
    metric.jit_distributed_available = lambda: False  # a metric reads it when it is constructed
    try:
        yield
    finally:
        metric.jit_distributed_available = original


def rng_tensors(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's random generators, uint8."""
    states = {"random.torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def rng_record() -> dict[str, Any]:
    """Return the states of Python's and NumPy's random generators, for JSON."""
    version, numbers, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    state = {**numpy["state"], "key": numpy["state"]["key"].tolist()}
    return {"python": [version, list(numbers), gauss], "numpy": {**numpy, "state": state}}


def restore_rng(tensors: dict[str, Tensor], record: dict[str, Any], device: torch.device) -> None:
    """Restore the states of `rng_tensors` and `rng_record`; a CUDA state without a CUDA device is ignored."""
    torch.set_rng_state(tensors["random.torch"])
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)
    version, numbers, gauss = record["python"]
    random.setstate((version, tuple(numbers), gauss))
    state = {**record["numpy"]["state"], "key": np.array(record["numpy"]["state"]["key"], dtype=np.uint32)}
    np.random.set_state({**record["numpy"], "state": state})


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Context manager that catches SIGTERM and Ctrl-C and stores the signal's name in `signal_name`.

    A second Ctrl-C raises KeyboardInterrupt. A nested request passes its signal on to the enclosing one. Outside the
    main thread, where Python delivers no signals, it does nothing.

    Attributes:
        signal_name: Name of the last signal, or empty.
    """

    def __init__(self) -> None:
        self.signal_name = ""
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._previous = {each: signal.signal(each, self._handle) for each in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
            enclosing = getattr(handler, "__self__", None)
            if isinstance(enclosing, StopRequest):
                enclosing.signal_name = self.signal_name or enclosing.signal_name

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_name and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
