"""Opening files that come from outside: every failure is one sentence that names the path."""

import csv
import hashlib
import io
import os
import re
import reprlib
import secrets
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from protoformer.errors import InputError, shortened

MAX_PIXELS = 2**27
"""The most pixels (width x height) of an image or a video frame that is decoded, unless a caller sets another limit."""

# Four channels of four bytes is the widest pixel any supported format stores uncompressed.
MAX_IMAGE_BYTES = 16 * MAX_PIXELS


class PixelLimitError(InputError):
    """An image or a video has more pixels than the caller allows.

    Attributes:
        size: (height, width) in pixels as far as they are known, else None.
    """

    def __init__(self, message: str, size: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.size = size


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a folder; False, not an error, for a name that the system refuses."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises for names that are too long


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is something at a path; False, not an error, for a name that the system refuses."""
    return os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises for names that are too long


def check_input(path: str | os.PathLike[str]) -> Path:
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
def open_input(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a checked file for reading; a failure to open or read it becomes `InputError`."""
    source = check_input(path)
    try:
        with source.open("rb") as file:
            yield file
    except OSError as error:
        raise InputError(
            f"{source} cannot be read ({system_reason(error)}); check its permissions and the disk."
        ) from None


def read_image_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a whole image file, refusing one too large to be an image of `MAX_PIXELS`."""
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_IMAGE_BYTES:
            raise InputError(f"{path} is {size} bytes long, too large for an image; give a smaller one.")
        return file.read()


def read_exactly(file: BinaryIO, count: int, path: str | os.PathLike[str]) -> bytes:
    """Read the next `count` bytes, all of them; a file checked a moment ago may have shrunk since."""
    data = file.read(count)
    if len(data) != count:
        raise InputError(f"{path} became shorter while it was read; wait until it is written and try again.")
    return data


def check_dimensions(width: int, height: int, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` where a header declares a size without pixels."""
    if width < 1 or height < 1:
        raise InputError(f"{path} has a damaged header (its size is {width}x{height}); make or download it again.")


def wrong_length(
    path: str | os.PathLike[str], size: int, expected: int, dimensions: tuple[int, int] | None = None
) -> InputError:
    """Say that a file is `size` bytes long where its format, or the (width, height) of its header, needs `expected`."""
    source = "its format" if dimensions is None else "its header ({}x{})".format(*dimensions)
    return InputError(f"{path} is {size} bytes long but {source} calls for {expected}; make or download it again.")


def check_pixel_count(width: int, height: int, path: str | os.PathLike[str], max_pixels: int | None = None) -> None:
    """Raise `PixelLimitError` where a header declares more than `max_pixels` pixels (None: `MAX_PIXELS`)."""
    most = pixel_limit(max_pixels)
    if width * height > most:
        raise PixelLimitError(
            f"{path} is {width}x{height}, over the limit of {most} pixels; scale it down first.", (height, width)
        )


def pixel_limit(max_pixels: int | None) -> int:
    """The most pixels to decode: what a caller sets, but never more than `MAX_PIXELS`."""
    return MAX_PIXELS if max_pixels is None else min(max_pixels, MAX_PIXELS)


def system_reason(error: Exception) -> str:
    """Give the system's own words for an error, without the path it repeats."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a file can be written there, or raise `InputError`.

    Nothing is created, so a program can ask before an expensive computation.
    """
    target = Path(path)
    try:
        _check_folder(_destination(target).parent)
        _check_place(target)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{target} cannot be written ({system_reason(error)}); choose another path.") from None
    return target


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, whole or not at all, as `opened_whole` does."""
    with open_atomic(path) as file:
        file.write(data)


@contextmanager
def open_atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` to write bytes that appear there whole or not at all.

    They go to a temporary file in the same folder, reach the disk, and then take the name. A symbolic link is followed.
    A new file gets the permissions of the process (umask); a replaced one keeps its own. Whatever goes wrong, even an
    interrupt, leaves the old file as it was and no other behind; what the system refuses is an `InputError`.
    """
    target = check_output(path)
    destination = _destination(target)
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


def staged_folder(temporary: Path, path: Path) -> Path:
    """Give the unfinished file for `path` a name of its own, NAME.partial.SUFFIX, or with a number if that is taken.

    What was written before an interruption is then there, and what stood under the final name is as it was.
    """
    name, number = f"{path.stem}.partial{path.suffix}", 1
    while temporary.with_name(name).exists():  # an earlier one, or even what is being read
        number += 1
        name = f"{path.stem}.partial-{number}{path.suffix}"
    return temporary.replace(temporary.with_name(name))


def _destination(target: Path) -> Path:
    """Follow symbolic links, so that the link stays a link and its target is replaced."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def _check_folder(folder: Path) -> None:
    """Raise `InputError` unless files can be created in `folder`."""
    if not folder.exists():
        raise InputError(f"the folder {folder} does not exist; create it or choose another.")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder; choose another place for the output.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"the folder {folder} is not writable; change its permissions or choose another.")


def _check_place(target: Path) -> None:
    """Raise `InputError` where something that must not be replaced stands at `target`."""
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
    """The folder, made with those above it if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made ({error.strerror}); choose another.") from None
    return folder


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """A key that sorts frame_2 before frame_10; names equal as numbers (1, 01) go by their letters."""
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), text


class TableWriter:
    """Writes a csv file with a head. Use it in a `with`.

    The file appears under its name when the `with` ends well. An exception leaves what was there as it was, and nothing
    else. Ctrl-C leaves the rows so far beside it, as NAME.partial.csv for NAME.csv, and goes on its way.
    """

    def __init__(self, path: str | os.PathLike[str], head: Sequence[str]) -> None:
        self.path = check_output(path)
        if self.path.suffix.lower() != ".csv":
            raise InputError(f"{self.path} does not end in .csv, as a table does; give such a name.")
        self.rows = 0
        """How many have been written, the head aside."""
        self.kept: Path | None = None
        """After Ctrl-C: where what was written so far lies."""
        self._head = head
        self._file = ExitStack()

    def __enter__(self) -> Self:
        self._bytes = self._file.enter_context(open_atomic(self.path))
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
                self.kept = staged_folder(Path(self._bytes.name), self.path)
        self._file.__exit__(kind, error, trace)

    def _line(self, cells: Sequence[str | int]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        self._bytes.write(text.getvalue().encode())


class UnfitFileError(OSError):
    """A file is not one that the program wrote; the message is a clause that says why."""


def read_small_file(path: Path, limit: int) -> bytes:
    """Read a whole regular file, without following a link and without waiting for a pipe or a device.

    Args:
        path: The file.
        limit: The most bytes it may have.

    Raises:
        UnfitFileError: If it is not a regular file, or longer than `limit`.
        OSError: If the system refuses to read it.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFileError("it is not a regular file")
    if status.st_size > limit:
        raise UnfitFileError(f"it is {status.st_size} bytes long, which is too much")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read(limit)


LONGEST_SHOWN = 120
"""Characters of a value in a message; the middle of what is longer is left out."""


class _Short(reprlib.Repr):
    """Looks at a few items of each list and mapping, so that it is quick however large a value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 8
        self.maxstring = self.maxother = LONGEST_SHOWN

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write numbers of more than 4300 digits, and takes long for those of fewer.
        return repr(x) if x.bit_length() < 128 else f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object) -> str:
    """Return `repr(value)`, or as much of it as a message can bear."""
    return shortened(_SHORT.repr(value), LONGEST_SHOWN)


MAX_NAME_BYTES = 200
"""Of a name that others are made from by adding a suffix; file systems take 255 in all."""


def short_name(name: str, limit: int = MAX_NAME_BYTES) -> str:
    """Shorten a file name to at most `limit` bytes.

    What is cut off is replaced by a hash of the whole name, so a name gives the same result in every run, and names
    that differ in their last characters stay different.

    Args:
        name: One component of a path, without its suffix.
        limit: The most bytes of the result, over 9.

    Returns:
        The name itself where it is short enough.
    """
    data = os.fsencode(name)
    if len(data) <= limit:
        return name
    digest = hashlib.sha256(data).hexdigest()[:8]
    return f"{data[: limit - len(digest) - 1].decode('utf-8', 'ignore')}-{digest}"


def name_key(name: str) -> str:
    """Return a key that is equal for names that some file system takes for one.

    Windows and macOS usually ignore case, and macOS ignores how accents are composed (NFC or NFD).
    """
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def leads_out(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> bool:
    """Whether the folder that holds `path` lies outside `folder` once links and '..' are followed."""
    # Path.resolve() raises at a loop of links, which realpath leaves as it is.
    return not Path(os.path.realpath(Path(path).parent)).is_relative_to(os.path.realpath(folder))
