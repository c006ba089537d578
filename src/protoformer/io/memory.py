"""Amounts of memory, free memory of a device, and release of unused memory."""

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from protoformer.errors import InputError

Item = TypeVar("Item")

TRIM_EVERY = 50
"""Number of frames after which unused memory is returned to the system."""

BYTES_PER_PIXEL = {"memory": 4000, "recurrent": 1600}
"""Memory per pixel of a large image that flow inference needs, by decoder, measured with a safety margin."""


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes, or None if it cannot be determined."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # reserved by torch, but free
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    if device.type != "cpu":
        return None
    limits = [free for free in (_system_free_bytes(), _cgroup_free_bytes()) if free is not None]
    return min(limits, default=None)


def release_unused() -> None:
    """Return unused memory of the process to the system, if the C library supports it.

    Allocations that live for several frames fragment the heap of glibc by a few kilobytes per frame, which add up over
    an hour of video.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def trim_memory(frames: Iterable[Item]) -> Iterator[Item]:
    """Yield frames, releasing unused memory after every `TRIM_EVERY` of them."""
    for number, frame in enumerate(frames, start=1):
        yield frame
        if number % TRIM_EVERY == 0:
            release_unused()


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        malloc_trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return None
    return malloc_trim


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_bytes(text: str, unit_required: bool = False) -> int:
    """Parse an amount of memory, such as 4GB (10^9 bytes each), 1.5GiB (2^30 bytes each), 512M or 100.

    Args:
        text: The amount.
        unit_required: Whether the text must end in B.

    Returns:
        The amount in bytes, over 0.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?|)(b?)\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or float(match[1]) <= 0 or (unit_required and not match[3]):
        raise InputError(f"{text!r} is not a size; write a number and B, KB, MB, GB, KiB, MiB or GiB, such as 15MB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def describe_memory(amount: int) -> str:
    """Format an amount of memory, given in bytes, as MiB or GiB."""
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def _system_free_bytes() -> int | None:
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_free_bytes() -> int | None:
    """Return what the memory limit of a container leaves, counting reclaimable file cache as free."""
    limit, used, details = (Path("/sys/fs/cgroup") / f"memory.{name}" for name in ("max", "current", "stat"))
    if not all(path.exists() for path in (limit, used, details)) or not limit.read_text().strip().isdigit():
        return None
    lines = details.read_text().splitlines()
    cached = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    return max(0, int(limit.read_text()) - int(used.read_text()) + cached)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error was raised by a failed allocation."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
