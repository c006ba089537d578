"""Checked reading and atomic writing of files; errors are one sentence that names the path."""

import csv
import dataclasses
import hashlib
import io
import math
import os
import re
import reprlib
import secrets
import signal
import stat
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from protoformer.errors import InputError, shorten

PathLike = str | os.PathLike[str]

MAX_PIXELS = 2**27
"""Maximum number of pixels (width x height) of an image or video frame that is decoded."""

# Four channels of four bytes are the largest uncompressed pixel of all supported formats.
MAX_IMAGE_BYTES = 16 * MAX_PIXELS


class PixelLimitError(InputError):
    """An image or a video has more pixels than the caller allows.

    Attributes:
        size: (height, width) in pixels, or None if unknown.
    """

    def __init__(self, message: str, size: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.size = size


def is_folder(path: PathLike) -> bool:
    """Return whether a path is a folder; False if the system rejects the name."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises for names that are too long


def is_file(path: PathLike) -> bool:
    """Return whether a path is a regular file; False if the system rejects the name."""
    return os.path.isfile(path)  # noqa: PTH113 - `Path.is_file` raises for names that are too long


def path_exists(path: PathLike) -> bool:
    """Return whether a path exists; False if the system rejects the name."""
    return os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises for names that are too long


def check_input(path: PathLike) -> Path:
    """Return the path of an existing, non-empty regular file, or raise `InputError`."""
    source = Path(path)
    try:
        status = source.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{source} does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read ({system_reason(error)}); check the path.") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{source} is a folder; give a file inside it.")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{source} is not a regular file; save its content to a file and give that.")
    if status.st_size == 0:
        raise InputError(f"{source} is an empty file; make or download it again.")
    return source


@contextmanager
def open_input(path: PathLike) -> Iterator[BinaryIO]:
    """Open a file for reading after `check_input`; errors while opening or reading it become `InputError`."""
    source = check_input(path)
    try:
        with source.open("rb") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"{source} cannot be read ({system_reason(error)}); check its permissions and the disk."
        ) from None


def read_image_bytes(path: PathLike) -> bytes:
    """Read a whole image file, or raise `InputError` if it is too large for an image of `MAX_PIXELS`."""
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_IMAGE_BYTES:
            raise InputError(f"{path} is {size} bytes long, too large for an image; give a smaller one.")
        return file.read()


def read_exactly(file: BinaryIO, count: int, path: PathLike) -> bytes:
    """Read exactly `count` bytes, or raise `InputError` if the file has become shorter since it was checked."""
    data = file.read(count)
    if len(data) != count:
        raise InputError(f"{path} became shorter while it was read; wait until it is written and try again.")
    return data


def check_dimensions(width: int, height: int, path: PathLike) -> None:
    """Raise `InputError` if a header declares a width or height below 1."""
    if width < 1 or height < 1:
        raise InputError(f"{path} has a damaged header (its size is {width}x{height}); make or download it again.")


def length_error(path: PathLike, size: int, expected: int, dimensions: tuple[int, int] | None = None) -> InputError:
    """Return the error for a file whose length is not that of its format, or of the (width, height) in its header."""
    source = "its format" if dimensions is None else "its header ({}x{})".format(*dimensions)
    return InputError(f"{path} is {size} bytes long but {source} requires {expected}; make or download it again.")


def check_pixel_count(width: int, height: int, path: PathLike, max_pixels: int | None = None) -> None:
    """Raise `PixelLimitError` if a header declares more than `max_pixels` pixels (None: `MAX_PIXELS`)."""
    limit = pixel_limit(max_pixels)
    if width * height > limit:
        raise PixelLimitError(
            f"{path} is {width}x{height}, over the limit of {limit} pixels; scale it down first.", (height, width)
        )


def pixel_limit(max_pixels: int | None) -> int:
    """Return the pixel limit of a caller, capped at `MAX_PIXELS`."""
    return MAX_PIXELS if max_pixels is None else min(max_pixels, MAX_PIXELS)


def system_reason(error: Exception) -> str:
    """Return the message of the system for an error, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_output(path: PathLike) -> Path:
    """Return `path` if a file can be written there, or raise `InputError`.

    Nothing is created, so the path can be checked before an expensive computation.
    """
    target = Path(path)
    try:
        _check_folder(_resolve_link(target).parent)
        _check_replaceable(target)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{target} cannot be written ({system_reason(error)}); choose another path.") from None
    return target


def write_atomically(path: PathLike, data: bytes) -> None:
    """Write `data` to `path` atomically; see `open_atomic`."""
    with open_atomic(path) as file:
        file.write(data)


def json_value(value: Any) -> Any:
    """Convert dataclasses, dicts, lists and numbers to JSON values; NaN and infinity, which JSON lacks, become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return json_value(dataclasses.asdict(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: json_value(each) for key, each in value.items()}
    if isinstance(value, Path):
        return str(value)
    return [json_value(each) for each in value] if isinstance(value, (list, tuple)) else value


@contextmanager
def open_atomic(path: PathLike) -> Iterator[BinaryIO]:
    """Open `path` for an atomic binary write.

    The data is written to a temporary file in the same folder, synced to disk and then renamed. A symbolic link is
    followed. A new file gets the permissions of the process (umask); a replaced file keeps its own. After an error or
    an interrupt the old file is unchanged and the temporary file is removed.
    """
    target = check_output(path)
    destination = _resolve_link(target)
    temporary = destination.with_name(f".{secrets.token_hex(8)}.part")
    try:
        # Mode "x" creates the file with 0666 less the umask; the tempfile module would make it 0600.
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if destination.exists():
            temporary.chmod(stat.S_IMODE(destination.stat().st_mode))
        os.replace(temporary, destination)  # noqa: PTH105 - the same call, and the one a test can make fail
    except OSError as error:
        raise InputError(
            f"{target} could not be written ({system_reason(error)}), so nothing was changed; "
            "check the disk and its permissions, or choose another folder."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def keep_partial_file(temporary: Path, path: Path) -> Path:
    """Rename the unfinished temporary file of `path` to NAME.partial.SUFFIX, or NAME.partial-2.SUFFIX and so on.

    This keeps what was written before an interruption, and leaves an existing file at `path` unchanged.
    """
    name, number = f"{path.stem}.partial{path.suffix}", 1
    while temporary.with_name(name).exists():  # left by an earlier run, or an input of this one
        number += 1
        name = f"{path.stem}.partial-{number}{path.suffix}"
    return temporary.replace(temporary.with_name(name))


def _resolve_link(target: Path) -> Path:
    """Follow symbolic links, so that the link stays a link and its target is replaced."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def _check_folder(folder: Path) -> None:
    """Raise `InputError` unless files can be created in `folder`."""
    if not folder.exists():
        raise InputError(f"the folder {folder} does not exist; create it or choose another.")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder; choose another folder for the output.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"the folder {folder} is not writable; change its permissions or choose another.")


def _check_replaceable(target: Path) -> None:
    """Raise `InputError` if `target` exists and is not a writable regular file."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise InputError(f"{target} is a folder; give the name of a file to write.")
    if not stat.S_ISREG(mode):
        raise InputError(f"{target} is a device or pipe, which cannot be replaced; give the name of a file to write.")
    if not os.access(target, os.W_OK):
        raise InputError(f"{target} is write-protected; change its permissions or choose another name.")


def make_folder(folder: Path) -> Path:
    """Create a folder with its parents if necessary, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror}); choose another.") from None
    return folder


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that puts frame_2 before frame_10; names with equal numbers (1, 01) are sorted as text."""
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts)), text


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Format rows of cells as csv with one line each."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class TableWriter:
    """Context manager that writes a csv file with a header atomically.

    The file appears when the context exits without an exception; otherwise an existing file is unchanged. After Ctrl-C
    the rows so far are kept as NAME.partial.csv, and the KeyboardInterrupt propagates.

    Args:
        path: File to write; it must end in .csv.
        head: Names of the columns.

    Attributes:
        path: File to write.
        rows: Number of rows written, without the header.
        partial_path: After Ctrl-C, the file that holds the rows so far.
    """

    def __init__(self, path: PathLike, head: Sequence[str]) -> None:
        self.path = check_output(path)
        if self.path.suffix.lower() != ".csv":
            raise InputError(f"{self.path} does not end in .csv; choose a name with this suffix.")
        self.rows = 0
        self.partial_path: Path | None = None
        self._head = head
        self._file = ExitStack()

    def __enter__(self) -> Self:
        self._bytes = self._file.enter_context(open_atomic(self.path))
        self._line(self._head)
        return self

    def write(self, *cells: str | int) -> None:
        """Write a row."""
        self._line(cells)
        self.rows += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and self.rows:
            with suppress(OSError):
                self._bytes.flush()
                self.partial_path = keep_partial_file(Path(self._bytes.name), self.path)
        self._file.__exit__(kind, error, trace)

    def _line(self, cells: Sequence[str | int]) -> None:
        self._bytes.write(csv_text([cells]).encode())


class UnfitFileError(OSError):
    """A file was not written by this program; the message is a clause with the reason."""


def read_small_file(path: Path, limit: int) -> bytes:
    """Read a whole regular file without following links or blocking on a pipe or device.

    Args:
        path: The file.
        limit: Maximum length in bytes.

    Raises:
        UnfitFileError: If it is not a regular file, or longer than `limit`.
        OSError: If it cannot be read.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFileError("it is not a regular file")
    if status.st_size > limit:
        raise UnfitFileError(f"it is {status.st_size} bytes long, which is too much")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read(limit)


MAX_REPR_LENGTH = 120
"""Maximum number of characters of a value in a message; longer values are shortened in the middle."""


class _ShortRepr(reprlib.Repr):
    """Formats only a few items of each collection, so that it is fast for values of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 8
        self.maxstring = self.maxother = MAX_REPR_LENGTH

    def repr_int(self, x: int, level: int) -> str:
        # Python does not format integers of more than 4300 digits, and is slow below that.
        return repr(x) if x.bit_length() < 128 else f"a whole number of {x.bit_length()} bits"


_SHORT_REPR = _ShortRepr()


def short_repr(value: object) -> str:
    """Return `repr(value)`, shortened to `MAX_REPR_LENGTH` characters."""
    return shorten(_SHORT_REPR.repr(value), MAX_REPR_LENGTH)


MAX_NAME_BYTES = 200
"""Maximum length of a file name before suffixes are added; file systems allow 255 bytes in total."""


def short_name(name: str, limit: int = MAX_NAME_BYTES) -> str:
    """Shorten a file name, one component of a path without its suffix, to at most `limit` bytes, over 9.

    The end of a long name is replaced by a hash of the whole name, so the result is deterministic, and names that
    differ only in their last characters stay different.
    """
    data = os.fsencode(name)
    if len(data) <= limit:
        return name
    digest = hashlib.sha256(data).hexdigest()[:8]
    return f"{data[: limit - len(digest) - 1].decode('utf-8', 'ignore')}-{digest}"


def name_key(name: str) -> str:
    """Return a key that is equal for names that some file systems treat as the same.

    Windows and macOS usually ignore case, and macOS ignores how accents are composed (NFC or NFD).
    """
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def is_outside(folder: PathLike, path: PathLike) -> bool:
    """Return whether the parent of `path` lies outside `folder` after resolving links and '..'."""
    # Path.resolve() raises on a loop of links, realpath does not.
    return not Path(os.path.realpath(Path(path).parent)).is_relative_to(os.path.realpath(folder))


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end of the context, so that a frame and its count belong together.

    Only the main thread receives signals; elsewhere the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = [each for each in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(each))]
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in received:
            signal.raise_signal(each)
