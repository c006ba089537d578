"""Tables of numbers as csv, a row at a time, in a file that appears whole or not at all."""

import csv
import io
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from protoformer.errors import InputError
from protoformer.files.atomic import checked_output, kept_apart, opened_whole


class TableWriter:
    """Writes a csv file with a head. Use it in a `with`.

    The file appears under its name when the `with` ends well. An exception leaves what was there as it was, and nothing
    else. Ctrl-C leaves the rows so far beside it, as NAME.partial.csv for NAME.csv, and goes on its way.
    """

    def __init__(self, path: str | os.PathLike[str], head: Sequence[str]) -> None:
        self.path = checked_output(path)
        if self.path.suffix.lower() != ".csv":
            raise InputError(f"{self.path} does not end in .csv, as a table does; give such a name.")
        self.rows = 0
        """How many have been written, the head aside."""
        self.kept: Path | None = None
        """After Ctrl-C: where what was written so far lies."""
        self._head = head
        self._file = ExitStack()

    def __enter__(self) -> Self:
        self._bytes = self._file.enter_context(opened_whole(self.path))
        self._line(self._head)
        return self

    def write(self, *cells: str | int) -> None:
        """Add a row."""
        self._line(cells)
        self.rows += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and self.rows:
            with suppress(OSError):
                self._bytes.flush()
                self.kept = kept_apart(Path(self._bytes.name), self.path)
        self._file.__exit__(kind, error, trace)

    def _line(self, cells: Sequence[str | int]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        self._bytes.write(text.getvalue().encode())
