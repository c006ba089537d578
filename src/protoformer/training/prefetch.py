"""The next batch is made while the step of this one runs."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")
"""A dataclass of tensors, such as a `FlowSample`."""
_IN_FLIGHT = 2
"""Steps that the program may be ahead of the GPU; each holds a batch in its memory."""


class InFlight:
    """Keeps a program from running away from its GPU; on a CPU there is nothing to keep."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._ends: deque[torch.cuda.Event] = deque()

    def another(self) -> None:
        """One more step was launched: wait until few enough are unfinished."""
        if self.device.type != "cuda":
            return
        self._ends.append(torch.cuda.current_stream(self.device).record_event())
        if len(self._ends) > _IN_FLIGHT:
            self._ends.popleft().synchronize()


def one_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches, on the device.

    On a CPU they come when they are asked for. A GPU makes each (or takes it from the host) on a stream of its own
    while the step before runs, and the stream that asks for it waits for it there, not the program.
    """
    return _beside_the_steps(batches, device) if device.type == "cuda" else batches


def _beside_the_steps(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # textures may still be on their way

    def prepared() -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(side):
            batch = moved(next(batches), device)
            return batch, side.record_event()

    ahead = prepared()
    while True:
        current = torch.cuda.current_stream(device)
        (batch, ready), ahead = ahead, prepared()
        current.wait_event(ready)
        for _, tensor in _tensors(batch):
            # Its memory is the side stream's, which may not use it again before the step ends.
            tensor.record_stream(current)
        yield batch


def moved(batch: Batch, device: torch.device) -> Batch:
    """A dataclass of tensors on a device; a copy from pinned memory does not wait."""
    return _each(batch, lambda tensor: tensor.to(device, non_blocking=True))


def pinned(batch: Batch) -> Batch:
    """A dataclass of tensors in memory that a GPU can copy from by itself."""
    return _each(batch, lambda tensor: tensor.pin_memory())


def _each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    changed: Batch = dataclasses.replace(batch, **{name: change(tensor) for name, tensor in _tensors(batch)})  # type: ignore[type-var]
    return changed


def _tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    values = ((field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return ((name, value) for name, value in values if isinstance(value, Tensor))
