"""What a computation will need, before it takes it."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

Item = TypeVar("Item")

TRIM_EVERY = 50
"""Frames of a clip after which unused memory goes back to the system."""

BYTES_PER_PIXEL = {"memory": 4000, "recurrent": 1600}
"""Memory that flow takes in use for each pixel of a large image, by its decoder: what was seen, and some to spare."""


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device now, or None where that cannot be told."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch has it, and can use it
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    if device.type != "cpu":
        return None
    known = [free for free in (_machine_free(), _container_free()) if free is not None]
    return min(known, default=None)


def release_unused() -> None:
    """Give memory that the process holds but does not use back to the system, where the C library can.

    Between what is kept for some frames, glibc collects free pieces that fit no later request: a few kilobytes a
    frame, which add up over an hour.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


def trim_memory(frames: Iterable[Item]) -> Iterator[Item]:
    """Yield frames, and release unused memory every `TRIM_EVERY` of them."""
    for number, frame in enumerate(frames, start=1):
        yield frame
        if number % TRIM_EVERY == 0:
            release_unused()


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return None
    return found


def describe_memory(amount: int) -> str:
    """An amount of memory, bytes, as people say it."""
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def _machine_free() -> int | None:
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _container_free() -> int | None:
    """What a container's own limit leaves, which the machine's figures do not show; cached files can be dropped."""
    limit, used, details = (Path("/sys/fs/cgroup") / f"memory.{name}" for name in ("max", "current", "stat"))
    if not all(path.exists() for path in (limit, used, details)) or not limit.read_text().strip().isdigit():
        return None
    lines = details.read_text().splitlines()
    cached = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    return max(0, int(limit.read_text()) - int(used.read_text()) + cached)


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is what an allocation that failed raises."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
