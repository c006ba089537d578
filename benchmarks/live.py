"""Latency of tracking a live stream: 10 seconds at 30 frames per second, which ffmpeg serves on the loopback address.

Every frame carries its number as black and white squares, so that the age of a frame is known when its boxes are: from
handing the image to ffmpeg, which encodes, sends and then decodes it, to the result.

    python benchmarks/live.py --seconds 10 --threads 1
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
"""Frames per second, bits of the number of a frame, and side of the square that shows a bit, pixels."""
TARGET = (200, 150, 80, 60)
"""Box of the target at its leftmost position, (x, y, w, h) in pixels."""


def target_box(number: int) -> tuple[float, float, float, float]:
    """Return the box of the target, which moves by a pixel a frame to the right and back, in a frame."""
    x, y, width, height = TARGET
    return x + abs((number + 100) % 200 - 100), y, width, height


def draw_frame(background: np.ndarray, target: np.ndarray, number: int) -> np.ndarray:
    """Draw the target and the number of the frame."""
    frame = background.copy()
    x, y, width, height = (round(each) for each in target_box(number))
    frame[y : y + height, x : x + width] = target
    for bit in range(BITS):
        frame[:SQUARE, bit * SQUARE : (bit + 1) * SQUARE] = 255 * (number >> bit & 1)
    return frame


def read_number(frame: np.ndarray) -> int:
    """Read the number of a frame from its squares."""
    middle = SQUARE // 2
    return sum(int(frame[middle, bit * SQUARE + middle].mean() > 127) << bit for bit in range(BITS))


def send(address: str, size: tuple[int, int], seconds: float, sent: dict[int, float]) -> None:
    """Feed frames of (height, width) to ffmpeg in real time and note when each was handed over."""
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
            sent[number] = time.monotonic()
            encoder.stdin.write(frame.tobytes())
            encoder.stdin.flush()
        encoder.stdin.close()


def main() -> None:
    """Print a table and, with --output, write it as json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the stream that is tracked")
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--output", type=Path, help="json file")
    arguments = parser.parse_args()
    if shutil.which("ffmpeg") is None:
        sys.exit("ffmpeg, which serves the stream, is not installed")
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", pf.UntrainedWarning)
    model = pf.load("track")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"udp://127.0.0.1:{probe.getsockname()[1]}"
    sent: dict[int, float] = {}
    lead = 2.0  # seconds for the connection
    sender = threading.Thread(target=send, args=(address, arguments.size, arguments.seconds + lead, sent))
    sender.start()
    video = pf.open_video(address, timeout=3)
    frames = video.frames(end=arguments.seconds)
    first = next(frames)
    tracker = model.tracker(first.image, target_box(read_number(first.image)))
    ages: list[float] = []
    seconds: list[float] = []
    errors: list[float] = []
    for frame in frames:
        start, number = time.monotonic(), read_number(frame.image)
        (target,) = tracker.update(frame.image)
        seconds.append(time.monotonic() - start)
        ages.append(time.monotonic() - sent[number])
        errors.append(abs(target.box[0] - target_box(number)[0]))
    video.stop()
    sender.join()
    last = ages[-max(1, len(ages) // 10) :]
    figures = {
        "frames": len(ages),
        "dropped": video.dropped,
        "median_error_px": round(float(np.median(errors)), 2),
        "tracking_ms": round(1e3 * float(np.median(seconds)), 1),
        "latency_ms": round(1e3 * float(np.median(ages)), 1),
        "latency_end_ms": round(1e3 * float(np.mean(last)), 1),
        "latency_max_ms": round(1e3 * max(ages), 1),
        "cores": len(os.sched_getaffinity(0)),
    }
    for name, value in figures.items():
        print(f"{name:>16}  {value}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
