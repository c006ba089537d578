"""A point cloud of every tenth frame of a video: python examples/video_point_clouds.py clip.mp4 clouds --fov 70.

Each cloud is in the coordinates of its camera (x right, y down, z forward, meters): poses are not estimated.
"""

import argparse
from pathlib import Path

import protoformer as pf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video")
parser.add_argument("output", type=Path, help="folder for the .ply files")
parser.add_argument("--fov", type=float, help="field of view across the width in degrees; default: 60 degrees")
parser.add_argument("--every", type=int, default=10)
args = parser.parse_args()

args.output.mkdir(exist_ok=True)
for frame in pf.load("depth").depth_video(args.video, fov=args.fov):  # depth is smoothed along the motion
    if frame.number % args.every == 0:
        cloud = frame.points(frame.frame, jump=0.1)  # without points at depth discontinuities
        cloud.save(args.output / f"{frame.number:06d}.ply")
        print(f"frame {frame.number}: {len(cloud)} points, {cloud.points[:, 2].min():.2f} m to the nearest")
