"""How well the groups of prototypes agree with what is truly one thing, beside regions that need no network.

    python benchmarks/prototype_regions.py --json out/prototype_regions.json

Scenes of the world, whose parts are known. Things: what moves by itself, each a part, and all the rest. Motions:
surfaces of the scene, joined where their mean true motions differ by less than a pixel. Every method has about as many
regions as the network has prototypes, which is more than there are parts, so three figures stand beside one another:
the adjusted Rand index of the regions as they are; "best", of regions given each to the part it shares most pixels
with, which nobody can do without the truth; and "moving", of the parts that the page shows, regions cut and joined by
the flow that the network found, for every method alike, and without the true number of parts. Parts: how many of these
there are. A grid of squares, which knows nothing, says what the flow alone is worth. Recall: true boundaries of things
within 2 pixels of a boundary of regions; edges: the share of all pixels that lie at one, without which recall means
nothing.

Change: how much the flow of a prototype's pixels changes, pixels, without that one, of the largest; faithful: how many
times more than that of all others; both are medians over what was taken out.
"""

import argparse
import json
import math
import statistics
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from faithfulness import Removal, removals
from protoformer.explain.parts import segment_motion
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.result import FlowResult
from protoformer.geometry.regions import owners
from protoformer.geometry.warps import cell_of_pixel, grid_shape
from protoformer.io.files import write_atomically
from protoformer.loading import load
from protoformer.synthetic.generator import SyntheticScenes
from region_baselines import REGIONS
from region_metrics import adjusted_rand_index, best_merge, boundary_fraction, boundary_recall

FAMILIES = ("objects", "room", "chase")
ALIKE = 1.0
"""Pixels: surfaces whose mean motions differ by less are one motion."""
REMOVED = ("change", "faithful")
"""What is measured by taking prototypes out."""
COUNTS = ("regions", "parts")
"""Figures that are whole numbers."""


@dataclass(frozen=True)
class Agreement:
    """Of one method on one scene, or the mean over scenes; regions, parts: how many it has."""

    regions: float
    things: float
    things_best: float
    things_moving: float
    motions: float
    motions_best: float
    motions_moving: float
    parts: float
    recall: float
    edges: float


@dataclass(frozen=True)
class Scene:
    """Two images, 3 x H x W, and the true parts of the first, H x W each."""

    first: Tensor
    second: Tensor
    things: Tensor
    motions: Tensor


def scene_of(family: str, number: int, size: tuple[int, int], seed: int) -> Scene:
    """One of the world."""
    renderer = SyntheticScenes(family, seed=seed, size=size).renderer([number])
    views = [renderer.view(frame / renderer.scenes.fps) for frame in range(2)]
    flow = renderer.motion(*views).flow[0]
    surfaces = views[0].hits.index[0].view(size)
    images = [renderer.clean(view)[0] for view in views]
    return Scene(*images, renderer.instances(views[0])[0, 0], motions_of(surfaces, flow))


def motions_of(surfaces: Tensor, flow: Tensor) -> Tensor:
    """Surfaces (H x W) joined where their mean motions (of 2 x H x W) are alike: H x W."""
    places = surfaces.unique(return_inverse=True)[1]
    sizes = torch.bincount(places.flatten())
    sums = torch.zeros(len(sizes), 2).index_add_(0, places.flatten(), flow.flatten(1).T)
    gaps = torch.cdist(sums / sizes[:, None], sums / sizes[:, None])
    joins, owner = [], torch.arange(len(sizes))
    for one, other in (gaps < ALIKE).triu(1).nonzero().tolist():
        kept, gone = sorted((int(owner[one]), int(owner[other])))
        if kept != gone:
            joins.append((kept, gone))
            owner = owners(len(sizes), joins)
    return owner[places]


def agreement(labels: Tensor, scene: Scene, result: FlowResult) -> Agreement:
    """Of regions, H x W, with the true parts; result: the flow as the network found it."""
    moving = segment_motion(labels, result.flow, result.confidence)
    return Agreement(
        regions=len(labels.unique()),
        things=adjusted_rand_index(labels, scene.things),
        things_best=adjusted_rand_index(best_merge(labels, scene.things), scene.things),
        things_moving=adjusted_rand_index(moving, scene.things),
        motions=adjusted_rand_index(labels, scene.motions),
        motions_best=adjusted_rand_index(best_merge(labels, scene.motions), scene.motions),
        motions_moving=adjusted_rand_index(moving, scene.motions),
        parts=len(moving.unique()),
        recall=boundary_recall(labels, scene.things),
        edges=boundary_fraction(labels),
    )


def grid_regions(image: Tensor, count: int) -> Tensor:
    """An image, 3 x H x W, cut into a grid of `count` cells: H x W, int64."""
    size = (image.shape[1], image.shape[2])
    return cell_of_pixel(size, grid_shape(count)).view(size)


def mean_of(found: list[Agreement]) -> Agreement:
    """Over scenes, those left out in which a figure does not exist."""
    means = {}
    for field in fields(Agreement):
        known = [value for each in found if not math.isnan(value := getattr(each, field.name))]
        means[field.name] = statistics.fmean(known) if known else math.nan
    return Agreement(**means)


def measured(
    model: FlowPredictor, layers: list[str], scenes: list[Scene], taken_out: int
) -> tuple[dict[str, Agreement], dict[str, tuple[float, float]]]:
    """The agreement of every method, and of every layer the medians of change and ratio over removals."""
    found: dict[str, list[Agreement]] = {}
    gone: dict[str, list[Removal]] = {}
    for scene in scenes:
        result = model.flow(scene.first, scene.second)
        explained = model.explain(scene.first).first
        count = explained.layer(layers[-1]).count
        for layer in layers:
            labels = explained.layer(layer).labels()
            found.setdefault(f"prototypes, layer {layer}", []).append(agreement(labels, scene, result))
            effects = removals(model, scene.first, scene.second, layer=layer, count=taken_out)
            gone.setdefault(f"prototypes, layer {layer}", []).extend(effects)
        for name, regions in {**REGIONS, "grid": grid_regions}.items():
            found.setdefault(name, []).append(agreement(regions(scene.first, count), scene, result))
    faithful = {
        name: (statistics.median(one.inside for one in each), statistics.median(one.ratio for one in each))
        for name, each in gone.items()
        if each
    }
    return {name: mean_of(each) for name, each in found.items()}, faithful


def cell_of(name: str, value: float) -> str:
    """A figure as the table shows it."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if name in COUNTS else f"{value:.3f}"


def truth_of(scenes: list[Scene]) -> dict[str, float]:
    """How many true parts there are in a scene, on average."""
    return {
        "true_things": statistics.fmean(len(scene.things.unique()) for scene in scenes),
        "true_motions": statistics.fmean(len(scene.motions.unique()) for scene in scenes),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="flow", help="a task, a preset or a .safetensors file")
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="of the world's scenes")
    parser.add_argument("--scenes", type=int, default=5, help="of each family")
    parser.add_argument("--removals", type=int, default=3, help="prototypes that are taken out, a scene and layer")
    parser.add_argument("--layers", nargs="+", default=None, help="stage and block; by default the last of each stage")
    parser.add_argument("--size", type=int, nargs=2, default=(192, 256), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--seed", type=int, default=9, help="of the world")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    model = load(arguments.model, task="flow")
    depths = enumerate(model.network.config.encoder.depths, 1)
    layers = arguments.layers or [f"{stage}.{depth}" for stage, depth in depths]
    size = (arguments.size[0], arguments.size[1])
    table = Table(title="Agreement of regions with true parts (adjusted Rand index), and with boundaries", box=None)
    for column in ("family", "method", *(field.name.replace("_", " ") for field in fields(Agreement)), *REMOVED):
        table.add_column(column, justify="left" if column in ("family", "method") else "right")
    told = []
    for family in arguments.families:
        scenes = [scene_of(family, number, size, arguments.seed) for number in range(arguments.scenes)]
        found, faithful = measured(model, layers, scenes, arguments.removals)
        for name, each in found.items():
            effect = faithful.get(name, (math.nan, math.nan))
            numbers = {**asdict(each), **dict(zip(REMOVED, effect, strict=True))}
            table.add_row(family, name, *(cell_of(key, value) for key, value in numbers.items()))
            known = {key: None if math.isnan(value) else value for key, value in numbers.items()}
            told.append({"family": family, "method": name, **known, **truth_of(scenes)})
    console = Console(width=170)
    console.print(table)
    for family in arguments.families:
        things, motions = next((row["true_things"], row["true_motions"]) for row in told if row["family"] == family)
        console.print(f"{family}: truly {things:.1f} things and {motions:.1f} motions a scene")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(told, indent=1).encode())


if __name__ == "__main__":
    main()
