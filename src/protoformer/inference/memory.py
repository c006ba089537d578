"""What a computation will need, before it takes it."""

from pathlib import Path

import torch

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


def memory_words(amount: int) -> str:
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
