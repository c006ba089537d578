"""Which files a run reads: for a seed and a number always the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.kind import Kind
from tests.fuzz.mutations import mutate


@dataclass(frozen=True)
class Case:
    """One file: its kind, its name in findings (without the suffix), and its bytes."""

    kind: Kind
    name: str
    data: bytes


class Corpus:
    """Files of several kinds in turn, each derived from the seeds of its kind.

    The file `number` of a kind depends on the run's seed, the kind and this number alone, not on which other kinds are
    chosen.
    """

    def __init__(self, kinds: Sequence[Kind], seed: int) -> None:
        self.seed = seed
        self.seeds = {kind.name: tuple(kind.seeds()) for kind in kinds}
        most = max(kind.share for kind in kinds)
        self._turns = [(kind, turn) for turn in range(most) for kind in kinds if turn < kind.share]

    def kind(self, index: int) -> Kind:
        """The kind of file `index`."""
        return self._turns[index % len(self._turns)][0]

    def case(self, index: int) -> Case:
        """File `index`, from 0 on."""
        rounds, place = divmod(index, len(self._turns))
        kind, turn = self._turns[place]
        number = rounds * kind.share + turn
        rng = Random(f"{self.seed}/{kind.name}/{number}")
        return Case(kind, f"{kind.name}-{self.seed}-{number}", mutate(self.seeds[kind.name], kind.structured, rng))


class Replay:
    """A corpus of one file, which lies on disk."""

    def __init__(self, kind: Kind, path: Path) -> None:
        self._case = Case(kind, path.stem, path.read_bytes())

    def kind(self, index: int) -> Kind:
        """The kind of the file."""
        return self._case.kind

    def case(self, index: int) -> Case:
        """The file."""
        return self._case
