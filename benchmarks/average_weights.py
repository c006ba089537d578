"""Average the weights of two networks of one task, as after fine-tuning on data unlike that of the evaluation.

    python benchmarks/average_weights.py track runs/track/weights.safetensors --fraction 0.25 -o average.safetensors

Every weight becomes (1 - fraction) times that of the first network plus fraction times that of the second. Such an
average often keeps the accuracy of the first on its data and most of the gain of the second on the new data (Wortsman
et al., Robust fine-tuning of zero-shot models, CVPR 2022).
"""

import argparse

import torch

from protoformer.loading import load


def main() -> None:
    """Parse the arguments and write the average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", help="a task or a .safetensors file")
    parser.add_argument("second", help="a .safetensors file of the same task and configuration")
    parser.add_argument("--fraction", type=float, default=0.5, help="weight of the second network, 0 to 1")
    parser.add_argument("-o", "--output", required=True, help="file to write")
    options = parser.parse_args()
    first, second = (load(name, device="cpu") for name in (options.first, options.second))
    if first.network.config != second.network.config or type(first) is not type(second):
        raise SystemExit("average_weights: the networks differ in their task or configuration")
    other = second.network.state_dict()
    with torch.no_grad():
        for name, tensor in first.network.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(other[name], options.fraction)
    first.save(options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
