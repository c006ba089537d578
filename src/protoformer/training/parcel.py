"""What travels from the maker of a batch, often another process, to the step that uses it."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from protoformer.training.prefetch import pinned

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class BrokenSample:
    """A sample that could not be read, by the name of its dataset and its own, and why not, without a full stop."""

    name: str
    reason: str


@dataclass(frozen=True)
class Parcel(Generic[Batch]):
    """One rank's part of a batch and the samples that had to be replaced for it; None where too many had to."""

    batch: Batch | None
    broken: tuple[BrokenSample, ...] = ()

    def pin_memory(self) -> "Parcel[Batch]":
        """The same in memory that a GPU can copy from by itself; a DataLoader asks for it by this name."""
        return self if self.batch is None else Parcel(pinned(self.batch), self.broken)


class Maker(Protocol[Batch]):
    """Makes one rank's part of batch `number`, from the number alone."""

    def parcel(self, number: int) -> Parcel[Batch]: ...
