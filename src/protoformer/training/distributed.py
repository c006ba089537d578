"""One process or many: where this one stands, and what they agree on."""

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

from protoformer.errors import InputError

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def launch(device: str) -> "Fabric":
    """Fabric on one device, or on all that `torchrun` gave a process to; device: cpu or cuda.

    gloo joins processes on CPUs and nccl those on GPUs, by DDP.
    """
    make = _fabric()
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"the device {device!r} is not there; choose cpu, or cuda on a machine with a GPU.")
    everywhere, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    fabric = make(
        accelerator=device,
        devices=here,
        num_nodes=everywhere // here,
        strategy="ddp" if everywhere > 1 else "auto",
        # Autocast is ours: Fabric's would round the truth that goes into the loss, and not only the images.
        precision="32-true",
    )
    fabric.launch()
    if everywhere > 1:
        atexit.unregister(_leave)
        atexit.register(_leave)
    return fabric


def _leave() -> None:
    """Part from the other processes while everything that talks to them still stands."""
    _talk.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _fabric() -> "type[Fabric]":
    for name in ("lightning.fabric", "lightning_fabric"):  # the second comes with pytorch-lightning
        with suppress(ImportError):
            found: type[Fabric] = importlib.import_module(name).Fabric
            return found
    raise InputError("training needs the package lightning, which is not installed; pip install 'protoformer[train]'.")


def is_first_process() -> bool:
    """Whether this process is the only one, or the first of `torchrun`'s: the one that speaks."""
    return os.environ.get("RANK", "0") == "0"


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def mean_over_ranks(tensor: Tensor) -> Tensor:
    """The mean of a tensor over all processes, in place; nobody waits for a GPU, as they would in Fabric's."""
    if world_size() > 1:
        dist.all_reduce(tensor)
        tensor /= world_size()
    return tensor


def most_over_ranks(tensor: Tensor) -> Tensor:
    """The largest of all processes' values, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


@lru_cache(maxsize=1)
def _talk() -> "dist.ProcessGroup":
    """A way to talk that no GPU has a part in, and that bears a first process which judges for hours."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    return group


def agree(values: Sequence[float]) -> list[float]:
    """The largest that any process has of each value: the same list for all. It waits for processes, not for GPUs."""
    if world_size() == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=_talk())
    found: list[float] = tensor.tolist()
    return found


def gather(text: str) -> list[str]:
    """What each process says, in their order, for all."""
    if world_size() == 1:
        return [text]
    data = text.encode()
    longest = int(agree([len(data)])[0])
    mine = torch.zeros(8 + longest, dtype=torch.uint8)  # the length, then the text
    mine[:8] = torch.frombuffer(bytearray(len(data).to_bytes(8, "little")), dtype=torch.uint8)
    if data:
        mine[8 : 8 + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    everybody = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(everybody, mine, group=_talk())
    said = (bytes(each.tolist()) for each in everybody)
    return [each[8 : 8 + int.from_bytes(each[:8], "little")].decode() for each in said]


@contextmanager
def barrier() -> Iterator[None]:
    """What one process refuses within it ends all: it says why, and those that have nothing to say exit with code 2.

    All come out of it together, so the others wait where the first alone works.
    """
    refusal = None
    try:
        yield
    except InputError as error:
        refusal = error
    (refused,) = agree([refusal is not None])
    if refusal is not None:
        raise refusal
    if refused:
        raise SystemExit(2)


@contextmanager
def single_process() -> Iterator[None]:
    """Within it one process judges alone: metrics add nothing up over processes, which would wait for the others."""
    from torchmetrics import metric

    before = metric.jit_distributed_available
    metric.jit_distributed_available = lambda: False  # which a metric takes as it is made
    try:
        yield
    finally:
        metric.jit_distributed_available = before


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The states of torch, uint8."""
    states = {"random.torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def random_record() -> dict[str, Any]:
    """Python's and numpy's states, for json."""
    version, numbers, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    state = {**numpy["state"], "key": numpy["state"]["key"].tolist()}
    return {"python": [version, list(numbers), gauss], "numpy": {**numpy, "state": state}}


def restore_random(tensors: dict[str, Tensor], record: dict[str, Any], device: torch.device) -> None:
    """Take over what the two others gave. A GPU's state is passed over where there is none, and the other way round."""
    torch.set_rng_state(tensors["random.torch"])
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)
    version, numbers, gauss = record["python"]
    random.setstate((version, tuple(numbers), gauss))
    state = {**record["numpy"]["state"], "key": np.array(record["numpy"]["state"]["key"], dtype=np.uint32)}
    np.random.set_state({**record["numpy"], "state": state})


REQUESTS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Within it, SIGTERM and Ctrl-C set `asked` to the name of the signal; a second Ctrl-C stops at once.

    Within another one, what is asked of it is asked of the other, too. Outside the main thread, where Python hands out
    no signals, nothing changes.
    """

    def __init__(self) -> None:
        self.asked = ""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._take) for each in REQUESTS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
            around = getattr(handler, "__self__", None)
            if isinstance(around, StopRequest):
                around.asked = self.asked or around.asked

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
