"""Compare the flow with OpenCV's DIS, on scenes with known motion: python examples/compare_opencv.py --scenes 8."""

import argparse

import cv2
import numpy as np
import torch

import protoformer as pf
from protoformer.synthetic import random_scene

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--scenes", type=int, default=8)
args = parser.parse_args()

predictor, dis = pf.load("flow"), cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
errors = []
for seed in range(args.scenes):
    sample = random_scene(size=(192, 256), seed=seed).render()
    first, second = ((255 * image[0]).byte().permute(1, 2, 0).numpy() for image in (sample.first, sample.second))
    gray = (cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (first, second))
    flows = predictor.flow(first, second).flow, torch.from_numpy(dis.calc(*gray, None)).permute(2, 0, 1)
    errors.append([float((flow - sample.flow[0]).norm(dim=0)[sample.valid[0, 0]].mean()) for flow in flows])
ours, classical = np.mean(errors, axis=0)
print(f"mean end-point error of {args.scenes} scenes: protoformer {ours:.2f} px, OpenCV DIS {classical:.2f} px")
