"""The next batch is made while the step of this one runs."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from protoformer.errors import InputError

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


def prefetch(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
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
            batch = to_device(next(batches), device)
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


def to_device(batch: Batch, device: torch.device) -> Batch:
    """A dataclass of tensors on a device; a copy from pinned memory does not wait."""
    return _each(batch, lambda tensor: tensor.to(device, non_blocking=True))


def pin_memory(batch: Batch) -> Batch:
    """A dataclass of tensors in memory that a GPU can copy from by itself."""
    return _each(batch, lambda tensor: tensor.pin_memory())


def _each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    changed: Batch = dataclasses.replace(batch, **{name: change(tensor) for name, tensor in _tensors(batch)})  # type: ignore[type-var]
    return changed


def _tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    values = ((field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return ((name, value) for name, value in values if isinstance(value, Tensor))


_NAMED = 3
"""Broken samples that are named when there are too many of them."""


@dataclass(frozen=True)
class BrokenSample:
    """A sample that could not be read, by the name of its dataset and its own, and why not, without a full stop."""

    name: str
    reason: str


class BrokenSamples:
    """The samples of a run that could not be read and were replaced, each once.

    budget: how many there may be. told: takes a sentence for each. reasons: by the names of the samples.
    """

    def __init__(self, budget: int = 0, told: Callable[[str], None] | None = None) -> None:
        self.budget, self.told = budget, told
        self.reasons: dict[str, str] = {}

    def __len__(self) -> int:
        """How many."""
        return len(self.reasons)

    def add(self, samples: Iterable[BrokenSample]) -> None:
        """Count these, and tell of those that are new."""
        for each in samples:
            if each.name not in self.reasons:
                self.reasons[each.name] = each.reason
                if self.told is not None:
                    self.told(f"{each.name} is left out: {each.reason}.")

    def judge(self) -> None:
        """`InputError` if there are more than there may be."""
        if len(self) > self.budget:
            raise self.too_many()

    def too_many(self) -> InputError:
        """What to say of them."""
        some = "; ".join(f"{name} ({reason})" for name, reason in list(self.reasons.items())[:_NAMED])
        return InputError(
            f"{len(self)} samples cannot be read, and data.broken allows {self.budget}: {some}; mend them or "
            "allow more."
        )


@dataclass(frozen=True)
class BatchMessage(Generic[Batch]):
    """One rank's part of a batch and the samples that had to be replaced for it; None where too many had to."""

    batch: Batch | None
    broken: tuple[BrokenSample, ...] = ()

    def pin_memory(self) -> "BatchMessage[Batch]":
        """The same in memory that a GPU can copy from by itself; a DataLoader asks for it by this name."""
        return self if self.batch is None else BatchMessage(pin_memory(self.batch), self.broken)


class BatchMaker(Protocol[Batch]):
    """Makes one rank's part of batch `number`, from the number alone."""

    def parcel(self, number: int) -> BatchMessage[Batch]: ...
