"""Time and memory of a call, for the programs beside this one."""

import ctypes
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch


def synchronize(device: torch.device) -> None:
    """Wait for the device, whose work is not done when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_milliseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """After two calls to warm up. A GPU gets several calls at a time, as in use: it need not wait for each."""
    calls = 5 if device.type == "cuda" else 1
    run()
    run()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize(device)
        times.append(1000 * (time.perf_counter() - start) / calls)
    return statistics.median(times)


def resident_mib(field: str) -> float:
    """A figure of this process's memory: VmRSS is now, VmHWM the most since the last reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def peak_mib(run: Callable[[], object], device: torch.device) -> float | None:
    """The most memory that a call takes beyond what was held before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else the call is served from memory that an earlier one gave back
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident size so far
        before = resident_mib("VmRSS")
        run()
        return max(0.0, resident_mib("VmHWM") - before)
    except (OSError, AttributeError):  # not on Linux with glibc
        return None


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """The same call, recorded once in a CUDA graph and replayed; it keeps `run` alive, whose tensors the graph uses."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(_owner: Callable[[], object] = run) -> None:
        graph.replay()

    return replay
