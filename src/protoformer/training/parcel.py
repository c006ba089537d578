"""What travels from the maker of a batch, often another process, to the step that uses it, and what gets lost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol

from protoformer.errors import InputError
from protoformer.training.prefetch import Batch, pinned

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
