"""What a kind of file is to the fuzzer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import Mutator


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        name: Names it in the table and in the names of findings; no hyphens.
        suffix: What the names of its files end with.
        seeds: Makes valid files, always the same ones. They are small, because everything else is derived from them.
        read: Reads a file as the package does. It returns, or raises `InputError`; all else is a finding. The file lies
            in a folder of its own, in which more may be written.
        structured: Mutators that know the format; those for any format are used in any case.
        share: How many times as many files as of a kind with 1.
    """

    name: str
    suffix: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[Path], object]
    structured: tuple[Mutator, ...] = ()
    share: int = 1
