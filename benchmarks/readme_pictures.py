"""Render the pictures of the README and of docs/explain.md from the packaged clips.

    python benchmarks/readme_pictures.py

It writes steady.webp, track.webp and tasks.webp, animations of three seconds, and explain.png to docs/.
"""

import argparse
from fractions import Fraction
from pathlib import Path

import numpy as np

import protoformer as pf
from protoformer.cli.footage import HEAD, animate, draw_before_after, draw_explanation, run_tasks
from protoformer.io.files import write_atomically
from protoformer.io.image import write_image

QUALITY = 72
"""WebP quality of the animations, at which none is larger than 900 kB."""


def main() -> None:
    """Run the tasks and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs"), help="output folder")
    folder = parser.parse_args().output
    model, clip = pf.load(), pf.demo_clip("cockatoo")
    fps = Fraction(pf.open_video(clip).info.fps)
    tasks = run_tasks(model, clip, frame_step=2)
    clips = {
        "steady": (draw_before_after(model.stabilize(clip).frames()), fps, 640),
        "track": ([np.asarray(result.image()) for result in model.track_video(clip, HEAD)], fps, 640),
        "tasks": (tasks.grids(), tasks.fps, 800),
    }
    for name, (frames, rate, width) in clips.items():
        data = animate(frames, rate, width, QUALITY)
        write_atomically(folder / f"{name}.webp", data)
        print(f"{name}.webp: {len(frames)} frames, {len(data) / 1000:.0f} kB")
    first, _, *parts = draw_explanation(model)
    write_image(folder / "explain.png", np.concatenate((first, *parts), axis=1)[::2, ::2])


if __name__ == "__main__":
    main()
