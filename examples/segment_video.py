"""Segment what moves on its own: python examples/segment_video.py clip.mp4 masks overlay.mp4."""

import argparse
from pathlib import Path

import protoformer as pf
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video")
parser.add_argument("masks", type=Path, help="folder for one indexed png per frame")
parser.add_argument("output", help="the video to write")
args = parser.parse_args()

video, seen = open_video(args.video), set()
args.masks.mkdir(exist_ok=True)
with VideoWriter(args.output, like=video) as writer:
    for frame in pf.load("segment").segment(video):
        frame.save(args.masks / f"{frame.number:06d}.png")
        writer.write(frame.draw(), frame.time)
        seen.update(frame.ids)
print(f"wrote {writer.frames} frames to {args.output} and their masks to {args.masks}; {len(seen)} moving objects")
