"""One process or many: where this one stands, and what they agree on."""

import atexit
import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from protoformer.errors import InputError

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def launched(device: str) -> "Fabric":
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


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def mean_over_ranks(tensor: Tensor) -> Tensor:
    """The mean of a tensor over all processes, in place; nobody waits for a GPU, as they would in Fabric's."""
    if ranks() > 1:
        dist.all_reduce(tensor)
        tensor /= ranks()
    return tensor


def most_over_ranks(tensor: Tensor) -> Tensor:
    """The largest of all processes' values, in place."""
    if ranks() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


@lru_cache(maxsize=1)
def _talk() -> "dist.ProcessGroup":
    """A way to talk that no GPU has a part in, and that bears a first process which judges for hours."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    return group


def agreed(values: Sequence[float]) -> list[float]:
    """The largest that any process has of each value: the same list for all. It waits for processes, not for GPUs."""
    if ranks() == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=_talk())
    found: list[float] = tensor.tolist()
    return found


def gathered(text: str) -> list[str]:
    """What each process says, in their order, for all."""
    if ranks() == 1:
        return [text]
    data = text.encode()
    longest = int(agreed([len(data)])[0])
    mine = torch.zeros(8 + longest, dtype=torch.uint8)  # the length, then the text
    mine[:8] = torch.frombuffer(bytearray(len(data).to_bytes(8, "little")), dtype=torch.uint8)
    if data:
        mine[8 : 8 + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    everybody = [torch.empty_like(mine) for _ in range(ranks())]
    dist.all_gather(everybody, mine, group=_talk())
    said = (bytes(each.tolist()) for each in everybody)
    return [each[8 : 8 + int.from_bytes(each[:8], "little")].decode() for each in said]


@contextmanager
def together() -> Iterator[None]:
    """What one process refuses within it ends all: it says why, and those that have nothing to say exit with code 2.

    All come out of it together, so the others wait where the first alone works.
    """
    refusal = None
    try:
        yield
    except InputError as error:
        refusal = error
    (refused,) = agreed([refusal is not None])
    if refusal is not None:
        raise refusal
    if refused:
        raise SystemExit(2)


@contextmanager
def by_itself() -> Iterator[None]:
    """Within it one process judges alone: metrics add nothing up over processes, which would wait for the others."""
    from torchmetrics import metric

    before = metric.jit_distributed_available
    metric.jit_distributed_available = lambda: False  # which a metric takes as it is made
    try:
        yield
    finally:
        metric.jit_distributed_available = before
