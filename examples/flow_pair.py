"""Optical flow between two images: python examples/flow_pair.py [--frames FRAME1 FRAME2].

Without frames, it renders a synthetic pair and prints the end-point error.
"""

import argparse

import protoformer as pf
from protoformer.synthetic import random_scene

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--frames", nargs=2, help="two images of the same size")
parser.add_argument("--output", default="motion", help="path of the results, without suffix")
args = parser.parse_args()

predictor = pf.load("flow")  # on a GPU if there is one
if args.frames:
    result = predictor.flow(*args.frames)
else:
    sample = random_scene(size=(128, 192), seed=0).render()
    result = predictor.flow(sample.first[0], sample.second[0])
    error = (result.flow - sample.flow[0]).norm(dim=0)[sample.valid[0, 0]]
    print(f"end-point error: {error.mean():.2f} px")

print(f"mean motion: {result.flow.norm(dim=0).mean():.2f} px, mean confidence: {result.confidence.mean():.2f}")
result.save(f"{args.output}.flo")  # 2 x H x W, pixels, (right, down)
result.save(f"{args.output}.png")  # color wheel: hue is direction, saturation is speed
