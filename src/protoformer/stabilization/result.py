"""What stabilizing returns: frozen records in plain units."""

import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from threading import Lock
from typing import overload

import numpy as np
import numpy.typing as npt

from protoformer.errors import InputError
from protoformer.io.files import system_reason
from protoformer.stabilization.planner import Corrections
from protoformer.stabilization.rendering import Field, View
from protoformer.viz.text import SummaryRepr, format_count, format_size, format_training

CameraPath = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class StabilizationResult(SummaryRepr):
    """How each of T frames is to be shown so that the clip is steady.

    corrections: where the steady frame lies in the shaky one: z -> turns z + shifts, pixels from the center. local: one
    a frame, 2 x h x w, pixels, what the network adds at the centers of cells, read from a temporary file that is gone
    with the result; none where it adds nothing. share: of a
    frame's sides that the crop shows; border: it is not enlarged to fill the frame, so what lies beyond is black.
    path_before, path_after: T x 4, x and y (pixels), angle (radians) and logarithm of the scale, added up from frame to
    frame, from zero in every shot. cuts: places, from 0 on, of the frames that begin a new shot. bridged: of those that
    gave nothing to go by, blank or blurred. times, numbers: of the frames, in the whole clip. trained: whether the
    weights were.
    """

    size: tuple[int, int]
    corrections: Corrections
    local: Sequence[Field]
    share: float
    border: bool
    path_before: CameraPath
    path_after: CameraPath
    cuts: tuple[int, ...]
    bridged: tuple[int, ...]
    times: tuple[Fraction, ...]
    numbers: tuple[int, ...]
    trained: bool = True

    def view(self, place: int) -> View:
        """Where the steady frame of a place, from 0 on, is found in the shaky one."""
        turn, shift = self.corrections.turns[place], self.corrections.shifts[place]
        zoom = 1.0 if self.border else self.share
        return View(complex(turn), complex(shift), zoom, self.local[place] if self.local else None)

    @property
    def cropping(self) -> float:
        """Mean share of a frame's sides that the steady frame shows."""
        return float((1.0 if self.border else self.share) * np.abs(self.corrections.turns).mean())

    @property
    def acceleration(self) -> tuple[float, float]:
        """Mean length of the change of velocity, pixels a frame, before and after."""
        return mean_acceleration(self.path_before, self.cuts), mean_acceleration(self.path_after, self.cuts)

    def _facts(self) -> tuple[str, ...]:
        before, after = self.acceleration
        return (
            f"{format_count(len(self.times), 'frame')} of {format_size(*self.size)}",
            f"{self.cropping:.1%} of each side is shown",
            f"velocity changes by {after:.2f} px a frame, {before:.2f} before",
            format_training(self.trained),
        )


def mean_acceleration(path: CameraPath, cuts: tuple[int, ...] = ()) -> float:
    """Mean length of the second differences of a path's x and y, none of which reaches over a cut; 0 of none."""
    bends = []
    for first, last in zip((0, *cuts), (*cuts, len(path)), strict=True):
        bends.append(np.linalg.norm(np.diff(path[first:last, :2], n=2, axis=0), axis=1))
    all_bends = np.concatenate(bends)
    return float(all_bends.mean()) if len(all_bends) else 0.0


StoredField = npt.NDArray[np.float32]

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

    def extend(self, fields: Iterable[StoredField]) -> None:
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

    def read(self, index: int) -> StoredField:
        """The array at an index from 0 on, yours to change."""
        size = 4 * int(np.prod(self.shape))
        with self._lock:
            self._file.seek(index * size)
            data = self._file.read(size)
        return np.frombuffer(bytearray(data), np.float32).reshape(self.shape)


class StoredFields(Sequence[StoredField]):
    """The arrays of a file times a factor; each is read when it is asked for."""

    def __init__(self, file: FieldFile, factor: float = 1.0) -> None:
        self._file, self._factor = file, factor

    def __len__(self) -> int:
        return len(self._file)

    @overload
    def __getitem__(self, index: int) -> StoredField: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[StoredField, ...]: ...
    def __getitem__(self, index: int | slice) -> StoredField | tuple[StoredField, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(len(self))[index])
        field: StoredField = self._factor * self._file.read(range(len(self))[index])
        return field

    def __getstate__(self) -> tuple[list[StoredField], float]:
        return [self._file.read(index) for index in range(len(self))], self._factor

    def __setstate__(self, state: tuple[list[StoredField], float]) -> None:
        fields, self._factor = state
        self._file = FieldFile()
        self._file.extend(fields)
