"""Show which pixels the network groups: python examples/explain_prototypes.py FRAME1 FRAME2 explained.

The output folder has an interactive page, index.html.
"""

import argparse

import protoformer as pf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("first")
parser.add_argument("second")
parser.add_argument("output", help="the folder to write")
args = parser.parse_args()

explanation = pf.load("flow").flow(args.first, args.second).explain()
for layer in explanation.first.layers:
    print(f"layer {layer.name}: {len(layer.used)} of {layer.num_prototypes} prototypes have pixels")

for part in explanation.parts().parts[:5]:  # regions with one motion, largest first
    u, v = part.mean
    print(f"part of {part.pixels} pixels moves by ({u:.1f}, {v:.1f}) px")
pf.save_explanation(args.output, explanation)
