"""Arrays of one shape, one for each frame of a clip, kept out of memory."""

import tempfile
import weakref
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import overload

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.files.reading import system_reason

Field = npt.NDArray[np.float32]

IN_MEMORY = 2**20
"""Bytes that are kept in memory; more go to a file, so that the length of a clip does not matter."""


class FieldFile:
    """An append-only list of float32 arrays of one shape, in a temporary file.

    Kept as arrays they would lie scattered among the temporaries of each frame, whose memory could then not be used
    again. The file has no name where the system allows that, and is gone when the object or the process is.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self._count = 0
        self._lock = Lock()
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._count

    def extend(self, fields: Iterable[Field]) -> None:
        """Add arrays, all of the shape of the first.

        Raises:
            InputError: The disk is full, or cannot be written.
        """
        for field in fields:
            if self._count and field.shape != self.shape:
                raise ValueError(f"an array has the shape {field.shape} where those before have {self.shape}")
            self.shape = field.shape
            try:
                with self._lock:
                    self._file.seek(self._count * field.nbytes)
                    self._file.write(np.ascontiguousarray(field, np.float32).tobytes())
            except OSError as error:
                raise InputError(
                    f"no room for temporary files in {tempfile.gettempdir()} ({system_reason(error)}); "
                    "free some, or name another folder in TMPDIR."
                ) from None
            self._count += 1

    def read(self, index: int) -> Field:
        """The array at an index from 0 on, yours to change."""
        size = 4 * int(np.prod(self.shape))
        with self._lock:
            self._file.seek(index * size)
            data = self._file.read(size)
        return np.frombuffer(bytearray(data), np.float32).reshape(self.shape)


class StoredFields(Sequence[Field]):
    """The arrays of a file times a factor; each is read when it is asked for."""

    def __init__(self, file: FieldFile, factor: float = 1.0) -> None:
        self._file, self._factor = file, factor

    def __len__(self) -> int:
        return len(self._file)

    @overload
    def __getitem__(self, index: int) -> Field: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Field, ...]: ...
    def __getitem__(self, index: int | slice) -> Field | tuple[Field, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(len(self))[index])
        field: Field = self._factor * self._file.read(range(len(self))[index])
        return field

    def __getstate__(self) -> tuple[list[Field], float]:
        return [self._file.read(index) for index in range(len(self))], self._factor

    def __setstate__(self, state: tuple[list[Field], float]) -> None:
        fields, self._factor = state
        self._file = FieldFile()
        self._file.extend(fields)
