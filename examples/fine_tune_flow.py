"""Fine-tune flow on your own pairs, as a plain loop: python examples/fine_tune_flow.py pairs tuned.safetensors.

`protoformer train flow-own --data pairs` adds augmentation, batches, GPUs, validation and checkpoints.
"""

import argparse

import torch

import protoformer as pf
from protoformer.datasets.registry import open_dataset
from protoformer.flow.losses import flow_loss
from protoformer.models.runtime import normalize_images

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data", help="a folder with first/, second/ and flow/, or a manifest")
parser.add_argument("output", help="the .safetensors file to write")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()
samples, network = open_dataset("own", args.data), pf.load("flow", "cpu").network.train()
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
for step in range(args.steps):
    sample = samples[step % len(samples)]
    prediction = network(normalize_images(sample.first), normalize_images(sample.second), return_all=True)
    loss = flow_loss(prediction, sample.flow, sample.valid)
    network.zero_grad(), loss.total.backward()
    optimizer.step()
    print(f"step {step}: end-point error {loss.epe:.2f} px")
network.save_weights(args.output, trained=True)
