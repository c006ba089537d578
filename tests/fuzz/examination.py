"""Reading one file, and judging what came of it."""

import gc
import resource
import shutil
import sys
import tempfile
import time
import traceback
import unicodedata
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protoformer.errors import InputError
from tests.fuzz.kind import Kind

LONGEST_MESSAGE = 1000
"""Characters of a refusal, its path not counted."""
_PACKAGE = "protoformer"


@dataclass(frozen=True)
class Limits:
    """What reading one file may take.

    Attributes:
        megabytes: Resident memory by which the process may grow.
        hard_megabytes: Memory beyond which the system refuses to give any more.
        seconds: Processor time.
        hard_seconds: Time on the clock, after which the process is killed.
    """

    megabytes: int = 384
    hard_megabytes: int = 3072
    seconds: float = 5.0
    hard_seconds: float = 30.0


@dataclass(frozen=True)
class Outcome:
    """What came of a file.

    Attributes:
        status: "ok", "refused", or the kind of a finding: exception, message, warning, memory, slow, crash, hang.
        where: For findings, a short name that files with the same cause share.
        detail: For findings, all that is known.
        seconds: Processor time.
        megabytes: Growth of resident memory at its peak.
    """

    status: str
    where: str = ""
    detail: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0

    @property
    def is_finding(self) -> bool:
        """Whether this must not happen."""
        return self.status not in ("ok", "refused")


def limit_memory(limits: Limits) -> None:
    """Refuse this process more memory than it has and `hard_megabytes`; it writes no core dump when it crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    now = _status("VmData")
    if now:
        most = int((now + limits.hard_megabytes) * 2**20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def examine(kind: Kind, data: bytes, limits: Limits) -> Outcome:
    """Write the bytes to a file in a folder of its own, read it, and judge how that went."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    ignored: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, ignored.append
    try:
        path = folder / f"input{kind.suffix}"
        path.write_bytes(data)
        _forget_peak()
        before, start = _status("VmRSS"), time.process_time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            status, where, detail = _read(kind, path)
            gc.collect()  # what is wrong with the objects of a library shows now, and not while another file is read
        seconds, grown = time.process_time() - start, max(0.0, _status("VmHWM") - before)
    finally:
        sys.unraisablehook = hook
        shutil.rmtree(folder, ignore_errors=True)
    if status in ("ok", "refused"):
        if caught:
            first = caught[0]
            status, where = "warning", f"{first.category.__name__} in {Path(first.filename).name}:{first.lineno}"
            detail = "\n".join(str(each.message) for each in caught)
        elif ignored:
            status, where = "exception", f"{ignored[0].exc_type.__name__} in a destructor"
            detail = "\n".join(f"{each.exc_type.__name__}: {each.exc_value} in {each.object!r}" for each in ignored)
        elif grown > limits.megabytes:
            status, where, detail = "memory", status, f"{grown:.0f} MB, over {limits.megabytes} MB; {detail}"
        elif seconds > limits.seconds:
            status, where, detail = "slow", status, f"{seconds:.1f} s, over {limits.seconds:g} s; {detail}"
    return Outcome(status, where, detail, seconds, grown)


def _read(kind: Kind, path: Path) -> tuple[str, str, str]:
    """Read a file: the status, the place of a fault, and the message of a refusal or the traceback of a fault."""
    try:
        kind.read(path)
    except InputError as error:
        message = str(error)
        if _ran_out_of_memory(error):
            return "memory", f"refused by the system at {_place(error)}", traceback.format_exc()
        fault = _fault_of_message(message.replace(str(path), "FILE").replace(str(path.parent), "FOLDER"))
        return ("message", f"{fault} at {_place(error)}", message[:2000]) if fault else ("refused", "", message)
    except Exception as error:
        return "exception", f"{type(error).__name__} at {_place(error)}", traceback.format_exc()
    return "ok", "", ""


def _fault_of_message(message: str) -> str:
    """What is wrong with the message of a refusal; nothing if it is one sentence of bounded length."""
    if len(message) > LONGEST_MESSAGE:
        return "too long"
    if any(unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cs") for letter in message):
        return "control characters"
    return "" if message.endswith(".") else "no sentence"


def _ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error came of memory that the system refused; a `raise ... from None` keeps the context."""
    while error is not None:
        text = str(error).lower()
        # ffmpeg never allocates more than 2 GB at once, however much there is, so its own error says nothing.
        by_ffmpeg = type(error).__module__.startswith("av.")
        if not by_ffmpeg and (isinstance(error, MemoryError) or "insufficient memory" in text):
            return True
        error = error.__context__
    return False


def _place(error: BaseException) -> str:
    """The last line of the package in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if f"/{_PACKAGE}/" in frame.filename] or list(frames)
    return f"{Path(inside[-1].filename).name}:{inside[-1].lineno}"


def _forget_peak() -> None:
    """Have the kernel count the peak of resident memory from now on, where it can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _status(field: str) -> float:
    """A field of the kernel's account of this process, in megabytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), 0.0)
