"""Measure the latency of tracking in a live stream at 30 frames per second, sent by ffmpeg on the loopback interface.

    python benchmarks/live.py --seconds 10 --threads 1

Every frame shows its number as black and white squares. The latency of a frame is the time from passing the image to
ffmpeg, which encodes and sends it, until its boxes are predicted.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import protoformer as pf

RATE, BITS, SQUARE = 30, 12, 16
"""Frames per second, number of bits of a frame number, and side of the square that shows a bit, pixels."""
TARGET = (200, 150, 80, 60)
"""Box of the target at its leftmost position, (x, y, w, h) in pixels."""


def target_box(number: int) -> tuple[float, float, float, float]:
    """Return the box of the target in a frame; it moves to the right and back by one pixel per frame."""
    x, y, width, height = TARGET
    return x + abs((number + 100) % 200 - 100), y, width, height


def draw_frame(background: np.ndarray, target: np.ndarray, number: int) -> np.ndarray:
    """Draw the target and the frame number on the background, uint8 H x W x 3."""
    frame = background.copy()
    x, y, width, height = (round(value) for value in target_box(number))
    frame[y : y + height, x : x + width] = target
    for bit in range(BITS):
        frame[:SQUARE, bit * SQUARE : (bit + 1) * SQUARE] = 255 * (number >> bit & 1)
    return frame


def read_number(frame: np.ndarray) -> int:
    """Read the frame number from the squares of a frame."""
    middle = SQUARE // 2
    return sum(int(frame[middle, bit * SQUARE + middle].mean() > 127) << bit for bit in range(BITS))


def send_stream(address: str, size: tuple[int, int], seconds: float, send_times: dict[int, float]) -> None:
    """Send frames to a UDP address through ffmpeg in real time.

    Args:
        address: Address of the stream.
        size: (height, width) of the frames.
        seconds: Length of the stream.
        send_times: Filled with the time at which each frame is passed to ffmpeg, by frame number.
    """
    rng = np.random.default_rng(0)
    height, width = size
    background = np.kron(rng.integers(60, 200, (height // 16, width // 16, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    target = np.kron(rng.integers(0, 256, (6, 8, 3)), np.ones((10, 10, 1))).astype(np.uint8)
    command = (
        f"ffmpeg -loglevel error -f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate {RATE} -i - "
        f"-c:v libx264 -preset ultrafast -tune zerolatency -g {RATE} -threads 1 -f mpegts {address}?pkt_size=1316"
    )
    with subprocess.Popen(command.split(), stdin=subprocess.PIPE) as encoder:
        assert encoder.stdin is not None
        start = time.monotonic()
        for number in range(round(seconds * RATE)):
            time.sleep(max(0.0, start + number / RATE - time.monotonic()))
            frame = draw_frame(background, target, number)
            send_times[number] = time.monotonic()
            encoder.stdin.write(frame.tobytes())
            encoder.stdin.flush()
        encoder.stdin.close()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the tracked part of the stream")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(480, 640), metavar=("HEIGHT", "WIDTH"), help="size of the frames"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--output", type=Path, help="output file for the figures, JSON")
    arguments = parser.parse_args()
    if shutil.which("ffmpeg") is None:
        sys.exit("the stream is sent by ffmpeg, which is not installed; install it.")
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", pf.UntrainedWarning)
    predictor = pf.load("track")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"udp://127.0.0.1:{probe.getsockname()[1]}"
    send_times: dict[int, float] = {}
    lead = 2.0  # seconds to connect to the stream
    sender = threading.Thread(target=send_stream, args=(address, arguments.size, arguments.seconds + lead, send_times))
    sender.start()
    video = pf.open_video(address, timeout=3)
    frames = video.frames(end=arguments.seconds)
    first = next(frames)
    tracker = predictor.tracker(first.image, target_box(read_number(first.image)))
    latencies: list[float] = []
    tracking_times: list[float] = []
    errors: list[float] = []
    for frame in frames:
        start, number = time.monotonic(), read_number(frame.image)
        (target,) = tracker.update(frame.image)
        tracking_times.append(time.monotonic() - start)
        latencies.append(time.monotonic() - send_times[number])
        errors.append(abs(target.box[0] - target_box(number)[0]))
    video.stop()
    sender.join()
    last = latencies[-max(1, len(latencies) // 10) :]
    figures = {
        "frames": len(latencies),
        "dropped": video.dropped,
        "median_error_px": round(float(np.median(errors)), 2),
        "tracking_ms": round(1e3 * float(np.median(tracking_times)), 1),
        "latency_ms": round(1e3 * float(np.median(latencies)), 1),
        "latency_end_ms": round(1e3 * float(np.mean(last)), 1),
        "latency_max_ms": round(1e3 * max(latencies), 1),
        "cores": len(os.sched_getaffinity(0)),
    }
    for name, value in figures.items():
        print(f"{name:>16}  {value}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
