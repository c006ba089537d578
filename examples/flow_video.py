"""Optical flow of a video, drawn next to its frames: python examples/flow_video.py clip.mp4 motion.mp4."""

import argparse

import numpy as np

import protoformer as pf
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video", help="a video file, a folder of images or a quoted pattern such as 'frames/*.png'")
parser.add_argument("output", help="the video to write")
args = parser.parse_args()

video = open_video(args.video)
flows = pf.load("flow").flow_video(video)
max_motion = flows.typical_motion()  # one color scale for the whole video
with VideoWriter(args.output, like=video) as writer:  # keeps frame rate and sound
    for result in flows:  # memory does not grow with the length of the video
        colors = np.asarray(result.image(max_motion))
        writer.write(np.concatenate((result.frame, colors), axis=1), result.time)
print(f"wrote {writer.frames} frames to {args.output}; full color is {max_motion:.1f} px")
