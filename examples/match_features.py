"""Match points between two images by features of the encoder: python examples/match_features.py FRAME1 FRAME2.

The features are 1/8 of the size of the image; each point of a grid goes to the cell with the most similar feature.
"""

import argparse

import torch
import torch.nn.functional as F

import protoformer as pf
from protoformer.io.image_input import as_image
from protoformer.models.runtime import normalize_images

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("frames", nargs=2)

predictor = pf.load("flow")
first, second = (as_image(path) for path in parser.parse_args().frames)  # 1 x 3 x H x W in [0, 1]
encoder = predictor.network.encoder_of("flow")
with torch.inference_mode():
    images = (normalize_images(image).to(predictor.device) for image in (first, second))
    fmap1, fmap2 = (F.normalize(encoder(image).features[-1][0], dim=0).cpu() for image in images)  # C x h x w
flow = predictor.flow(first, second).flow
for y, x in torch.cartesian_prod(torch.arange(1, fmap1.shape[1], 4), torch.arange(1, fmap1.shape[2], 4)).tolist():
    similarity = torch.einsum("c,chw->hw", fmap1[:, y, x], fmap2)
    row, column = divmod(int(similarity.argmax()), fmap2.shape[2])
    u, v = flow[:, 8 * y + 4, 8 * x + 4].tolist()
    match = f"feature ({8 * (column - x):+d}, {8 * (row - y):+d}) px, flow ({u:+.1f}, {v:+.1f}) px"
    print(f"({8 * x + 4}, {8 * y + 4}): {match}, similarity {similarity.max():.2f}")
