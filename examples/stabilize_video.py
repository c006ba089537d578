"""Stabilize a video: python examples/stabilize_video.py shaky.mp4 steady.mp4 --strength 1."""

import argparse

import protoformer as pf
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video")
parser.add_argument("output", help="the video to write")
parser.add_argument("--strength", type=float, default=1.0, help="0 changes nothing, 1 smooths as much as possible")
args = parser.parse_args()

video = open_video(args.video)
predictor = pf.load("stabilize")
result = predictor.stabilize(video, strength=args.strength)  # first pass: estimate and smooth the camera path
with VideoWriter(args.output, like=video) as writer:
    for time, _, steady in predictor.frames(video, result):  # second pass: render
        writer.write(steady, time)

before, after = result.acceleration
print(f"wrote {writer.frames} frames to {args.output}; {result.cropping:.1%} of each side is visible")
print(f"mean acceleration of the camera: {before:.2f} px per frame before, {after:.2f} after")
