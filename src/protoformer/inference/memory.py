"""What a computation will need, before it takes it."""

from pathlib import Path

import torch

BYTES_PER_PIXEL = 4000
"""Memory that flow takes in use for each pixel of a large image: `paper` was seen to take up to 3,400, `fast` 1,300."""


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device now, or None where that cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if device.type != "cpu" or not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None
