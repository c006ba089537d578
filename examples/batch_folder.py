"""Flow and depth of all videos below a folder: python examples/batch_folder.py videos results.

Run it again to continue: finished videos are skipped.
"""

import argparse
from pathlib import Path

import protoformer as pf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("videos", type=Path)
parser.add_argument("output", type=Path, help="the folder to write")
args = parser.parse_args()

if __name__ == "__main__":  # batches start processes, which import this file
    for task in ("flow", "depth"):
        result = pf.batch_videos(task, str(args.videos / "**/*.mp4"), args.output / task, side_by_side=True)
        print(f"{task}: {result.count('done')} done, {result.count('skipped')} finished before; see {result.summary}")
        for video, reason in result.failures.items():
            print(f"{video} failed: {reason}")
