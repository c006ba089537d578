"""Mean end-point error on samples of four benchmarks, each pair weighed alike, beside what known systems score there.

    python benchmarks/flow_table.py --root data --json out/flow_table.json

`--root` holds Sintel, Middlebury, KITTI-2012 and FlyingChairs in their official layouts, and may hold a `peers.json`.
KITTI's is over all known pixels, occluded ones too; a dataset that is not there is left out.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from protoformer.cli.terminal import progress_bar
from protoformer.datasets.registry import open_dataset, peer_results
from protoformer.flow.evaluation import evaluate_flow, predictor_method
from protoformer.io.files import write_atomically
from protoformer.loading import load

DATASETS = {
    "sintel": ("Sintel", None),
    "middlebury": ("Middlebury", None),
    "kitti-2012": ("KITTI-2012", None),
    "flyingchairs": ("FlyingChairs", "all"),
}
"""Folder and split of each; no split is the one that evaluation reads."""


def measured(root: Path, model: str, updates: int | None) -> dict[str, dict[str, float]]:
    """Per dataset that is there, mean end-point errors (pixels) by method, ours first."""
    method = predictor_method(load(model, task="flow"), updates)
    found: dict[str, dict[str, float]] = {}
    for dataset, (folder, split) in DATASETS.items():
        if not (root / folder).is_dir():
            continue
        pairs = open_dataset(dataset, root / folder, split)
        print(f"{dataset}: {len(pairs)} pairs", file=sys.stderr, flush=True)
        with progress_bar(dataset, len(pairs)) as messages:
            names, place = (dataset, model), root / folder
            samples = evaluate_flow(pairs, method, names=names, root=place, progress=messages).samples
        errors = {model: [sample.scores.epe for sample in samples]}
        for peer, scores in peer_results(root / folder).items():
            known = [scores.get(f"{folder}/{sample.name}") for sample in samples]
            errors[peer] = [score["epe"] for score in known if score is not None]
        found[dataset] = {name: sum(each) / len(each) for name, each in errors.items() if len(each) == len(samples)}
        found[dataset]["pairs"] = len(samples)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder of the datasets")
    parser.add_argument("--model", default="flow", help="a preset, the package's weights, or a file")
    parser.add_argument("--num-updates", type=int, help="of the decoder; by default the model's own")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    folders = [folder for folder, _ in DATASETS.values()]
    if not any((arguments.root / folder).is_dir() for folder in folders):
        parser.error(
            f"--root is {arguments.root}, but it has none of the folders {', '.join(folders)}; give one that does."
        )
    found = measured(arguments.root, arguments.model, arguments.num_updates)
    table = Table("mean EPE, px", *(f"{name} ({each['pairs']:.0f})" for name, each in found.items()))
    for method in dict.fromkeys(name for each in found.values() for name in each if name != "pairs"):
        table.add_row(method, *(f"{each[method]:.2f}" if method in each else "" for each in found.values()))
    Console().print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
