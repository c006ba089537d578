"""Time and memory of a call, and CUDA graphs, for the benchmarks of this folder."""

import ctypes
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

CUDA_CALLS = 5
"""Calls between two synchronizations with a GPU."""


def synchronize(device: torch.device) -> None:
    """Wait until a CUDA device has finished all work; do nothing for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_milliseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Measure the median time of a call after two warm-up calls.

    On a GPU each measurement is the mean of `CUDA_CALLS` calls without synchronization in between, as in normal use.
    """
    calls = CUDA_CALLS if device.type == "cuda" else 1
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
    """Read a figure of this process's memory, MiB: "VmRSS" (now) or "VmHWM" (peak since the last reset)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def peak_mib(run: Callable[[], object], device: torch.device) -> float | None:
    """Measure the peak memory of a call beyond the memory in use before it, MiB; None if it cannot be measured."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # otherwise the call may reuse memory freed by an earlier one
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = resident_mib("VmRSS")
        run()
        return max(0.0, resident_mib("VmHWM") - before)
    except (OSError, AttributeError):  # not on Linux with glibc
        return None


def capture_graph(run: Callable[[], object]) -> Callable[[], None]:
    """Capture a call in a CUDA graph and return a function that replays it.

    The function keeps `run` alive, because the graph uses its tensors.
    """
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
