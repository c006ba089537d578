"""Print the mean end-point error on samples of four benchmarks, next to the errors of other methods.

    python benchmarks/flow_table.py --root data --json out/flow_table.json

`--root` holds Sintel, Middlebury, KITTI-2012 and FlyingChairs in their official layouts, and may hold a `peers.json`
with the results of other methods. Missing datasets are skipped. All pairs have equal weight. KITTI's error is over all
valid pixels, including occluded ones.
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
"""Folder and split of each dataset; None: the default split for evaluation."""


def evaluate_datasets(root: Path, model: str, num_updates: int | None) -> dict[str, dict[str, float]]:
    """Evaluate a model on every dataset in a folder.

    Args:
        root: Folder of the datasets.
        model: Preset, name of packaged weights, or file.
        num_updates: Number of updates of the flow head; None: the model's default.

    Returns:
        For each dataset, the mean end-point error (pixels) of the model and of every method with results for all of
        its pairs, and the number of pairs under "pairs".
    """
    method = predictor_method(load(model, task="flow"), num_updates)
    results: dict[str, dict[str, float]] = {}
    for dataset, (folder, split) in DATASETS.items():
        if not (root / folder).is_dir():
            continue
        pairs = open_dataset(dataset, root / folder, split)
        print(f"{dataset}: {len(pairs)} pairs", file=sys.stderr, flush=True)
        with progress_bar(dataset, len(pairs)) as progress:
            evaluation = evaluate_flow(pairs, method, names=(dataset, model), root=root / folder, progress=progress)
        samples = evaluation.samples
        errors = {model: [sample.scores.epe for sample in samples]}
        for peer, scores in peer_results(root / folder).items():
            peer_scores = [scores.get(f"{folder}/{sample.name}") for sample in samples]
            errors[peer] = [score["epe"] for score in peer_scores if score is not None]
        results[dataset] = {
            name: sum(values) / len(values) for name, values in errors.items() if len(values) == len(samples)
        }
        results[dataset]["pairs"] = len(samples)
    return results


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--model", default="flow", help="preset, name of packaged weights, or file")
    parser.add_argument("--num-updates", type=int, help="updates of the flow head; default: the model's")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    folders = [folder for folder, _ in DATASETS.values()]
    if not any((arguments.root / folder).is_dir() for folder in folders):
        parser.error(
            f"--root is {arguments.root}, but it has none of the folders {', '.join(folders)}; give one that does."
        )
    results = evaluate_datasets(arguments.root, arguments.model, arguments.num_updates)
    table = Table("mean EPE, px", *(f"{dataset} ({errors['pairs']:.0f})" for dataset, errors in results.items()))
    for method in dict.fromkeys(name for errors in results.values() for name in errors if name != "pairs"):
        table.add_row(method, *(f"{errors[method]:.2f}" if method in errors else "" for errors in results.values()))
    Console().print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(results, indent=1).encode())


if __name__ == "__main__":
    main()
