"""Readers with every fault that the fuzzer must find, for its own test: `python -m tests.fuzz.planted FOLDER`."""

import json
import os
import sys
import time
import warnings
from pathlib import Path

from protoformer.errors import InputError
from tests.fuzz.corpus import Corpus, Replay
from tests.fuzz.examination import Limits
from tests.fuzz.kind import Kind
from tests.fuzz.run import Run

LIMITS = Limits(megabytes=64, hard_megabytes=512, seconds=0.1, hard_seconds=3.0)


def _refuse(path: Path) -> None:
    raise InputError(f"{path} is no file of this kind; give another.")


def _crash(path: Path) -> None:
    os.abort()


def _spin(path: Path) -> None:
    start = time.process_time()
    while time.process_time() - start < 2 * LIMITS.seconds:
        pass


def _exhaust(path: Path) -> None:
    try:
        bytearray(2**30)
    except MemoryError:
        raise InputError(f"{path} is damaged; give another.") from None


def _raise(path: Path) -> None:
    raise KeyError("a key")


def _chatter(path: Path) -> None:
    raise InputError(f"{path} is damaged: {'x' * 2000}.")


def _break_lines(path: Path) -> None:
    raise InputError(f"{path} is damaged\nand of two lines.")


def _fill(path: Path) -> int:
    return len(bytearray(b"x") * 2**27)


READERS = {
    "fine": (Path.read_bytes, ""),
    "refused": (_refuse, ""),
    "raises": (_raise, "exception"),
    "warns": (lambda path: warnings.warn("a warning", stacklevel=1), "warning"),
    "chatters": (_chatter, "message"),
    "breaks": (_break_lines, "message"),
    "crashes": (_crash, "crash"),
    "exits": (lambda path: os._exit(3), "crash"),
    "sleeps": (lambda path: time.sleep(60), "hang"),
    "spins": (_spin, "slow"),
    "fills": (_fill, "memory"),
    "exhausts": (_exhaust, "memory"),
}
"""By name: a reader, and the kind of finding that it must lead to."""


def main(folder: Path) -> None:
    """Read a file with each reader, one of them again from what was saved, and print what was found."""
    kinds = {name: Kind(name, ".bin", lambda: [bytes(range(64))], read) for name, (read, _) in READERS.items()}
    result = Run(Corpus(list(kinds.values()), 0), LIMITS, folder=folder, say=lambda _: None).read(range(len(kinds)))
    found = {name: [outcome.status, outcome.where] for name, outcome in result.outcomes.items()}
    again = Run(Replay(kinds["crashes"], folder / "crashes-0-0.bin"), LIMITS, workers=1).read([0])
    replayed = [outcome.status for outcome in again.outcomes.values()]
    rows = {name: [row.files, row.ok, row.refused, row.findings] for name, row in result.rows.items()}
    print(json.dumps({"found": found, "rows": rows, "replayed": replayed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
