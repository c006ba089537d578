"""What a computation will need, before it takes it."""

from pathlib import Path

import torch

BYTES_PER_PIXEL = 4000
"""Memory that flow takes in use for each pixel of a large image: `paper` was seen to take up to 3,400, `fast` 1,300."""


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device now, or None where that cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    known = [free for free in (_machine_free(), _container_free()) if free is not None]
    return min(known, default=None)


def _machine_free() -> int | None:
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _container_free() -> int | None:
    """What a container's own limit leaves, which the machine's figures do not show."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if not (limit.exists() and used.exists()) or not limit.read_text().strip().isdigit():
        return None
    return int(limit.read_text()) - int(used.read_text())
