"""Writing a file so that a reader sees either the old bytes or all of the new ones."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from protoformer.errors import InputError
from protoformer.files.reading import system_reason


def checked_output(path: str | os.PathLike[str]) -> Path:
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
    with opened_whole(path) as file:
        file.write(data)


@contextmanager
def opened_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` to write bytes that appear there whole or not at all.

    They go to a temporary file in the same folder, reach the disk, and then take the name. A symbolic link is followed.
    A new file gets the permissions of the process (umask); a replaced one keeps its own. Whatever goes wrong, even an
    interrupt, leaves the old file as it was and no other behind; what the system refuses is an `InputError`.
    """
    target = checked_output(path)
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


def kept_apart(temporary: Path, path: Path) -> Path:
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
