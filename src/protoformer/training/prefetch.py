"""Prefetching of batches to the device, and bookkeeping of samples that cannot be read."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from protoformer.errors import InputError

Batch = TypeVar("Batch")
"""A dataclass of tensors, such as a `FlowSample`."""
_MAX_IN_FLIGHT = 2
"""Number of steps that the host may run ahead of the GPU; each holds a batch in GPU memory."""


class InFlight:
    """Limits how many steps the host queues ahead of the GPU; does nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._ends: deque[torch.cuda.Event] = deque()

    def add_step(self) -> None:
        """Register a launched step and wait until few enough steps are unfinished."""
        if self.device.type != "cuda":
            return
        self._ends.append(torch.cuda.current_stream(self.device).record_event())
        if len(self._ends) > _MAX_IN_FLIGHT:
            self._ends.popleft().synchronize()


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Prefetch batches to a device.

    On a CPU the batches are returned as they are. For a GPU each batch is rendered or copied on a side stream during
    the previous step, and the step's stream, not the host, waits for it.
    """
    return _prefetch_on_side_stream(batches, device) if device.type == "cuda" else batches


def _prefetch_on_side_stream(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # copies of textures may be unfinished

    def prepare() -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(side):
            batch = to_device(next(batches), device)
            return batch, side.record_event()

    upcoming = prepare()
    while True:
        current = torch.cuda.current_stream(device)
        (batch, ready), upcoming = upcoming, prepare()
        current.wait_event(ready)
        for _, tensor in _iter_tensors(batch):
            # The memory belongs to the side stream, which must not reuse it before the step ends.
            tensor.record_stream(current)
        yield batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a dataclass of tensors to a device; copies from pinned memory are asynchronous."""
    return _map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def pin_memory(batch: Batch) -> Batch:
    """Copy a dataclass of tensors to pinned memory."""
    return _map_tensors(batch, lambda tensor: tensor.pin_memory())


def _map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    mapped: Batch = dataclasses.replace(batch, **{name: function(tensor) for name, tensor in _iter_tensors(batch)})  # type: ignore[type-var]
    return mapped


def _iter_tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    values = ((field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return ((name, value) for name, value in values if isinstance(value, Tensor))


_MAX_LISTED = 3
"""Number of broken samples that an error message lists."""


class BrokenSamples:
    """The samples of a run that could not be read and were replaced.

    Attributes:
        budget: Maximum number of broken samples.
        on_message: Called with a sentence for each new one, or None.
        reasons: Reason by name of the sample.
    """

    def __init__(self, budget: int = 0, on_message: Callable[[str], None] | None = None) -> None:
        self.budget, self.on_message = budget, on_message
        self.reasons: dict[str, str] = {}

    def __len__(self) -> int:
        """Return the number of broken samples."""
        return len(self.reasons)

    def add(self, reasons: Mapping[str, str]) -> None:
        """Add samples, each with the reason why it cannot be read, and report the new ones."""
        for name, reason in reasons.items():
            if name not in self.reasons:
                self.reasons[name] = reason
                if self.on_message is not None:
                    self.on_message(f"{name} is left out: {reason}.")

    def check(self) -> None:
        """Raise `InputError` if there are more than the budget allows."""
        if len(self) > self.budget:
            raise self.error()

    def error(self) -> InputError:
        """Build the error for too many broken samples."""
        listed = "; ".join(f"{name} ({reason})" for name, reason in list(self.reasons.items())[:_MAX_LISTED])
        return InputError(
            f"{len(self)} samples cannot be read, and data.max_broken_samples allows {self.budget}: {listed}; "
            "repair them or allow more."
        )


@dataclass(frozen=True)
class BatchMessage(Generic[Batch]):
    """One rank's part of a batch, as a data worker returns it.

    Attributes:
        batch: The samples, or None where too many could not be read.
        broken: Reasons why samples could not be read and were replaced, by name.
    """

    batch: Batch | None
    broken: Mapping[str, str] = field(default_factory=dict)

    def pin_memory(self) -> "BatchMessage[Batch]":
        """Copy to pinned memory; a DataLoader calls this method by its name."""
        return self if self.batch is None else BatchMessage(pin_memory(self.batch), self.broken)


class BatchMaker(Protocol[Batch]):
    """Makes one rank's part of a batch from the batch's number alone."""

    def make_batch(self, number: int) -> BatchMessage[Batch]: ...
