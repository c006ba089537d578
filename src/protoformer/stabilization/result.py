"""Stabilization results, and storage of local warps in a temporary file."""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from protoformer.errors import InputError
from protoformer.io.files import PathLike, check_output, system_reason, write_atomically
from protoformer.io.formats import encode_npz
from protoformer.models.runtime import ProgressCallback
from protoformer.stabilization.planner import Corrections
from protoformer.stabilization.rendering import Field, View, render_stabilized
from protoformer.video.clip import ClipFrames
from protoformer.video.pipeline import save_results
from protoformer.video.types import ImageArray, to_uint8_array
from protoformer.viz.report import SummaryRepr, format_count, format_size, format_training

CameraPath = npt.NDArray[np.float64]


class StabilizedFrame(NamedTuple):
    """One frame before and after stabilization; `numpy.asarray` of it is the stabilized one.

    Attributes:
        time: Timestamp, seconds, exact.
        frame: The input frame, uint8 H x W x 3.
        stabilized: The stabilized frame, uint8 H x W x 3.
    """

    time: Fraction
    frame: ImageArray
    stabilized: ImageArray

    def image(self) -> Image.Image:
        """Return the stabilized frame as an image."""
        return Image.fromarray(self.stabilized)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the stabilized frame, uint8 H x W x 3."""
        return np.array(self.stabilized, dtype=dtype, copy=copy)


def draw_stabilized(side_by_side: bool) -> Callable[[StabilizedFrame], ImageArray]:
    """Return a function that draws a stabilized frame, with the input frame to its left if requested."""
    return lambda frame: np.concatenate(frame[1:], axis=1) if side_by_side else frame.stabilized


@dataclass(frozen=True, eq=False, repr=False)
class StabilizationResult(SummaryRepr):
    """Stabilization of a clip of T frames.

    Attributes:
        size: (height, width) of the frames, pixels.
        corrections: Positions of stabilized frames in the input frames: z -> turns z + shifts, pixels from the center.
        local: One local warp per frame, 2 x h x w, pixels, at the centers of cells, read from a temporary file that is
            deleted with the result; empty if there are none.
        crop_fraction: Fraction of the sides that the crop shows.
        border: Whether the crop is not enlarged to fill the frame, so that pixels outside the input are black.
        path_before: T x 4, camera path of the input: x and y (pixels), angle (radians) and log scale, accumulated from
            zero at the start of each shot.
        path_after: T x 4, camera path of the output.
        cuts: Indices of frames that start a new shot.
        bridged: Indices of frames with interpolated motion, blank or blurred.
        times: T, timestamps, seconds.
        numbers: T, frame numbers in the whole clip.
        trained: Whether the network has trained weights.
        clip: The frames, from which the stabilized ones are rendered; None if they are not available.
    """

    size: tuple[int, int]
    corrections: Corrections
    local: Sequence[Field]
    crop_fraction: float
    border: bool
    path_before: CameraPath
    path_after: CameraPath
    cuts: tuple[int, ...]
    bridged: tuple[int, ...]
    times: tuple[Fraction, ...]
    numbers: tuple[int, ...]
    trained: bool = True
    clip: ClipFrames | None = None

    def frames(self, clip: ClipFrames | None = None) -> Iterator[StabilizedFrame]:
        """Render the stabilized frames.

        Args:
            clip: The frames that were stabilized; None: those of the result, which are read again.

        Yields:
            Each frame before and after.

        Raises:
            InputError: If the frames cannot be read again, or are fewer than before.
        """
        source = self.clip if clip is None else clip
        if source is None or not source.rereadable:
            raise InputError(
                "the frames of this result can be read only once; give a file or a list of frames, or use "
                "stabilize_video, which renders while it reads."
            )
        frames, count = iter(source), len(self.times)
        for index in range(count):
            frame = next(frames, None)
            if frame is None:
                raise InputError(
                    f"the clip has {index} frames, but had {count} when it was analyzed; do not change it in between."
                )
            image = to_uint8_array(frame.image)
            yield StabilizedFrame(frame.time, image, render_stabilized(image, self.view(index), self.border))

    def save(
        self,
        path: PathLike,
        *,
        side_by_side: bool = False,
        format: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Write the stabilized frames as a video or as a folder of png files, or the corrections as numbers.

        Args:
            path: A video, such as stable.mp4, with the times and the audio of the source; a folder, a name without a
                suffix; or a .npz with the arrays turns, shifts, path_before, path_after, times and numbers.
            side_by_side: Draw the input frame to the left of the stabilized one.
            format: Format of the files in a folder; "png" is the only one.
            progress: Called with the number of frames so far and the total.
        """
        if Path(path).suffix.lower() == ".npz":
            times = [float(time) for time in self.times]
            arrays = {"turns": self.corrections.turns, "shifts": self.corrections.shifts}
            paths = {"path_before": self.path_before, "path_after": self.path_after}
            data = encode_npz(**arrays, **paths, times=times, numbers=self.numbers)
            write_atomically(check_output(path), data)
            return
        if self.clip is None:
            raise InputError("this result has no reference to its frames; pass them to `frames` and write these.")
        save_results(path, self.clip, self.frames(), draw_stabilized(side_by_side), format, progress=progress)

    def view(self, index: int) -> View:
        """Return the position of a stabilized frame in its input frame."""
        turn, shift = self.corrections.turns[index], self.corrections.shifts[index]
        zoom = 1.0 if self.border else self.crop_fraction
        return View(complex(turn), complex(shift), zoom, self.local[index] if self.local else None)

    @property
    def cropping(self) -> float:
        """Mean fraction of the sides of the input that a stabilized frame shows."""
        return float((1.0 if self.border else self.crop_fraction) * np.abs(self.corrections.turns).mean())

    @property
    def acceleration(self) -> tuple[float, float]:
        """Mean acceleration of the camera path before and after, pixels per frame squared."""
        return mean_acceleration(self.path_before, self.cuts), mean_acceleration(self.path_after, self.cuts)

    def _repr_parts(self) -> tuple[str, ...]:
        before, after = self.acceleration
        return (
            f"{format_count(len(self.times), 'frame')} of {format_size(*self.size)}",
            f"{self.cropping:.1%} of each side is shown",
            f"velocity changes by {after:.2f} px a frame, {before:.2f} before",
            format_training(self.trained),
        )


def mean_acceleration(path: CameraPath, cuts: tuple[int, ...] = ()) -> float:
    """Compute the mean length of the second differences of a path's x and y within shots; 0 if there are none."""
    lengths = []
    for first, last in zip((0, *cuts), (*cuts, len(path)), strict=True):
        lengths.append(np.linalg.norm(np.diff(path[first:last, :2], n=2, axis=0), axis=1))
    all_lengths = np.concatenate(lengths)
    return float(all_lengths.mean()) if len(all_lengths) else 0.0


StoredField = npt.NDArray[np.float32]

MAX_MEMORY = 2**20
"""Bytes that stay in memory; larger data goes to a file, so that memory does not grow with the clip."""


class FieldFile:
    """Append-only list of float32 arrays of one shape in a temporary file.

    Arrays in memory would fragment the heap between the temporaries of each frame. The file has no name if the system
    supports that, and is deleted with the object or the process.

    Attributes:
        shape: Shape of each array; empty before the first one.
    """

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self._count = 0
        self._lock = Lock()
        self._file = tempfile.SpooledTemporaryFile(max_size=MAX_MEMORY)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._count

    def extend(self, fields: Iterable[StoredField]) -> None:
        """Append arrays, all of the shape of the first.

        Raises:
            InputError: If the disk is full or not writable.
            ValueError: If the shape of an array differs.
        """
        for field in fields:
            if self._count and field.shape != self.shape:
                raise ValueError(f"the array has the shape {field.shape}, but earlier ones have {self.shape}")
            self.shape = field.shape
            try:
                with self._lock:
                    self._file.seek(self._count * field.nbytes)
                    self._file.write(np.ascontiguousarray(field, np.float32).tobytes())
            except OSError as error:
                raise InputError(
                    f"no room for temporary files in {tempfile.gettempdir()} ({system_reason(error)}); "
                    "free some space, or set TMPDIR to another folder."
                ) from None
            self._count += 1

    def read(self, index: int) -> StoredField:
        """Read the array at an index; the caller may modify it."""
        size = 4 * int(np.prod(self.shape))
        with self._lock:
            self._file.seek(index * size)
            data = self._file.read(size)
        return np.frombuffer(bytearray(data), np.float32).reshape(self.shape)


class StoredFields(Sequence[StoredField]):
    """Arrays of a file, multiplied by a factor and read on demand."""

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
            return tuple(self[number] for number in range(len(self))[index])
        field: StoredField = self._factor * self._file.read(range(len(self))[index])
        return field

    def __getstate__(self) -> tuple[list[StoredField], float]:
        return [self._file.read(index) for index in range(len(self))], self._factor

    def __setstate__(self, state: tuple[list[StoredField], float]) -> None:
        fields, self._factor = state
        self._file = FieldFile()
        self._file.extend(fields)
