"""Track a box through a video: python examples/track_video.py clip.mp4 51 47 25 62 track.mp4."""

import argparse

import cv2

import protoformer as pf
from protoformer.video.reader import open_video
from protoformer.video.writer import VideoWriter

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video")
parser.add_argument("box", nargs=4, type=float, help="x y w h of the target in the first frame, in pixels")
parser.add_argument("output", help="the video to write")
args = parser.parse_args()

video = open_video(args.video)
predictor, tracker, num_lost = pf.load("track"), None, 0
with VideoWriter(args.output, like=video) as writer:
    for frame in video.frames():
        if tracker is None:
            tracker = predictor.tracker(frame.image, args.box)
        else:
            tracker.update(frame.image)
        target = tracker.targets[0]
        num_lost += target.lost
        x, y, w, h = map(round, target.box)
        color = (128, 128, 128) if target.lost else (255, 64, 64)
        writer.write(cv2.rectangle(frame.image.copy(), (x, y), (x + w, y + h), color, 2), frame.time)
print(f"wrote {writer.frames} frames to {args.output}; the target is lost in {num_lost}")
