"""Track a box in a live source: python examples/track_live.py 0 51 47 25 62 track.mp4 --seconds 10.

The source is the number of a camera, an address such as rtsp://camera/stream, or "-" for a pipe.
"""

import argparse

import numpy as np

import protoformer as pf
from protoformer.video.writer import VideoWriter

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("source")
parser.add_argument("box", nargs=4, type=float, help="x y w h of the target in the first frame, in pixels")
parser.add_argument("output", help="the video to write")
parser.add_argument("--seconds", type=float, default=10)
args = parser.parse_args()

video = pf.open_video(args.source)  # frames that arrive while the tracker is busy are skipped
with VideoWriter(args.output, fps=video.info.fps) as writer:
    for frame in pf.load("track").track_video(video, args.box):
        target = frame.targets[0]
        print(f"{float(frame.time):.2f} s: {'lost' if target.lost else [round(value) for value in target.box]}")
        writer.write(np.asarray(frame.image()), frame.time)
        if frame.time > args.seconds:
            break
