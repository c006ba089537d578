"""Metric depth of an image, and its point cloud: python examples/depth_point_cloud.py room.jpg room --fov 70."""

import argparse

import protoformer as pf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("image")
parser.add_argument("output", help="path of the results, without suffix")
parser.add_argument("--fov", type=float, help="field of view across the width in degrees; default: EXIF, or 60 degrees")
args = parser.parse_args()

result = pf.load("depth").depth(args.image, fov=args.fov, range="indoor")
cloud = result.points(args.image, jump=0.1)  # without points at depth discontinuities
cloud.save(f"{args.output}.ply")
result.image().save(f"{args.output}.png")
result.save(f"{args.output}.npy")  # float32, H x W, meters
print(
    f"depth from {result.depth.min():.2f} to {result.depth.max():.2f} m, camera {result.camera}, "
    f"{len(cloud.points)} points"
)
