"""Measure the peak memory of two training steps on a CPU, next to the estimate of `protoformer train`.

    python benchmarks/training_memory.py --json out/training_memory.json

Each row is measured in a separate process.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from protoformer.training.preflight import step_bytes
from protoformer.training.recipe import read_recipe

ROWS = (
    ("flow", "fast", 1, (192, 256)),
    ("flow", "fast", 4, (192, 256)),
    ("flow", "fast", 1, (352, 640)),
    ("depth", "fast", 1, (192, 256)),
    ("depth", "fast", 8, (192, 256)),
    ("track", "fast", 2, (192, 256)),
    ("track", "fast", 8, (192, 256)),
    ("stabilize", "fast", 1, (192, 320)),
    ("stabilize", "fast", 4, (192, 320)),
    ("flow", "tiny", 1, (192, 256)),
    ("flow", "paper", 1, (128, 192)),
    ("flow", "paper", 1, (192, 256)),
    ("depth", "paper", 1, (192, 256)),
    ("track", "paper", 2, (192, 256)),
)
"""Task, preset, batch size and crop (or rendered frame, for tracking) of each row."""
NO_VALIDATION = ("run.validation_scenes=0", "run.validate_every=0", "run.draw_every=0", "data.num_workers=0")
"""Settings that switch off validation, drawings and data workers."""


def measure_peak_bytes(recipe: str, settings: list[str]) -> int:
    """Measure the peak memory of a process that trains for two steps, bytes."""
    with TemporaryDirectory() as folder:
        options = [word for setting in settings for word in ("--set", setting)]
        command = [*(sys.executable, "-m", "protoformer", "train", recipe), *("-o", folder, "--device", "cpu")]
        process = subprocess.Popen([*command, "--steps", "2", *options], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{recipe} with {' '.join(settings)} failed")
    return usage.ru_maxrss * 1024


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["flow", "depth", "track", "stabilize"], help="tasks to measure")
    parser.add_argument("--presets", nargs="+", default=["tiny", "fast", "paper"], help="presets to measure")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    rows = []
    print(f"{'task':10} {'preset':6} {'batch':>5} {'crop':>8} {'measured':>9} {'estimated':>9} MiB")
    for task, preset, batch_size, (height, width) in ROWS:
        if task not in arguments.tasks or preset not in arguments.presets:
            continue
        settings = [f"model.preset={preset}", f"data.batch_size={batch_size}", f"data.crop_size=[{height}, {width}]"]
        recipe = f"{task}-synthetic"
        measured = measure_peak_bytes(recipe, [*settings, *NO_VALIDATION]) / 2**20
        estimated = step_bytes(read_recipe(recipe).changed(settings)) / 2**20
        row = {"task": task, "preset": preset, "batch": batch_size, "crop": [height, width]}
        rows.append({**row, "measured_mib": round(measured), "estimated_mib": round(estimated)})
        print(
            f"{task:10} {preset:6} {batch_size:5} {f'{height}x{width}':>8} {measured:9.0f} {estimated:9.0f}", flush=True
        )
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
