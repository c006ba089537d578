"""Agreement of prototype groups with true objects and motions, compared with regions computed without a network.

    python benchmarks/prototype_regions.py --json out/prototype_regions.json

Synthetic scenes with known segmentations are used. Objects: independently moving objects and the background ("things"
in the JSON file). Motions: surfaces, joined where their mean true motions differ by less than a pixel. Every method has
about as many regions as the network has prototypes, more than there are true segments, so the adjusted Rand index
(ARI) of the regions as they are is near 0, and two others are given: "best", with each region assigned to the true
segment that it shares most pixels with (an upper bound that uses the ground truth); and "moving", of the moving parts
computed from the regions and the estimated flow, in the same way for all methods and without the true number of
segments. A grid of squares shows what the position and the flow alone contribute. Neighbors joined: share of
neighboring cells with one region, at the cells of the layer (baselines: at those of the first layer). Boundary recall:
fraction of the true object boundaries within 2 pixels of a region boundary; boundary pixels: fraction of all pixels at
a region boundary, which recall has to be compared with.

Change inside and outside: mean change of the flow, pixels, of the pixels of a removed prototype and of all others, when
the largest prototypes are removed one at a time.
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

from protoformer.explain.parts import segment_motion
from protoformer.explain.tracing import Removal
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.result import FlowResult
from protoformer.geometry.regions import owners
from protoformer.geometry.warps import cell_of_pixel, grid_shape
from protoformer.io.files import write_atomically
from protoformer.loading import load
from protoformer.models.encoder import STRIDES
from protoformer.synthetic.generator import SyntheticScenes
from region_baselines import REGIONS
from region_metrics import adjusted_rand_index, best_merge, boundary_fraction, boundary_recall

FAMILIES = ("objects", "room", "chase")
MOTION_TOLERANCE = 1.0
"""Difference of mean motions, pixels, below which surfaces are one motion."""
REMOVED = ("inside", "outside", "ratio")
"""Columns measured by removing prototypes."""
COUNTS = ("regions", "parts")
"""Columns of whole numbers."""
HEADERS = {
    "regions": "regions",
    "joined": "neighbors joined",
    "things_best": "ARI objects, best",
    "things_moving": "ARI objects, moving",
    "motions_best": "ARI motions, best",
    "motions_moving": "ARI motions, moving",
    "parts": "moving parts",
    "recall": "boundary recall",
    "edges": "boundary pixels",
    "inside": "change inside, px",
    "outside": "change outside, px",
    "ratio": "inside / outside",
}
"""Headers of the columns of the table, by the key of the JSON file."""


@dataclass(frozen=True)
class Agreement:
    """Scores of one method on one scene, or their means over scenes; regions, parts: numbers of them."""

    regions: float
    joined: float
    things_best: float
    things_moving: float
    motions_best: float
    motions_moving: float
    parts: float
    recall: float
    edges: float


@dataclass(frozen=True)
class Scene:
    """Two images, 3 x H x W, and the true segmentations of the first, H x W each."""

    first: Tensor
    second: Tensor
    things: Tensor
    motions: Tensor


def render_scene(family: str, number: int, size: tuple[int, int], seed: int) -> Scene:
    """Render one synthetic scene."""
    renderer = SyntheticScenes(family, seed=seed, size=size).renderer([number])
    views = [renderer.view(frame / renderer.scenes.fps) for frame in range(2)]
    flow = renderer.motion(*views).flow[0]
    surfaces = views[0].hits.index[0].view(size)
    images = [renderer.clean(view)[0] for view in views]
    return Scene(*images, renderer.instances(views[0])[0, 0], join_motions(surfaces, flow))


def join_motions(surfaces: Tensor, flow: Tensor) -> Tensor:
    """Join surfaces (H x W) whose mean motions (flow: 2 x H x W) are similar: H x W."""
    indices = surfaces.unique(return_inverse=True)[1]
    sizes = torch.bincount(indices.flatten())
    sums = torch.zeros(len(sizes), 2).index_add_(0, indices.flatten(), flow.flatten(1).T)
    gaps = torch.cdist(sums / sizes[:, None], sums / sizes[:, None])
    joins, owner = [], torch.arange(len(sizes))
    for one, other in (gaps < MOTION_TOLERANCE).triu(1).nonzero().tolist():
        kept, removed = sorted((int(owner[one]), int(owner[other])))
        if kept != removed:
            joins.append((kept, removed))
            owner = owners(len(sizes), joins)
    return owner[indices]


def joined_cells(cells: Tensor) -> float:
    """Return the share of horizontally and vertically neighboring cells of a map, h x w, with one label."""
    equal = torch.cat(((cells[1:] == cells[:-1]).flatten(), (cells[:, 1:] == cells[:, :-1]).flatten()))
    return float(equal.float().mean())


def score_regions(labels: Tensor, cells: Tensor, scene: Scene, result: FlowResult) -> Agreement:
    """Compare regions with the true segmentations.

    Args:
        labels: H x W, region of each pixel.
        cells: h x w, region of each cell of a layer.
        scene: The scene.
        result: Its estimated flow.
    """
    moving = segment_motion(labels, result.flow, result.confidence)
    return Agreement(
        regions=len(labels.unique()),
        joined=joined_cells(cells),
        things_best=adjusted_rand_index(best_merge(labels, scene.things), scene.things),
        things_moving=adjusted_rand_index(moving, scene.things),
        motions_best=adjusted_rand_index(best_merge(labels, scene.motions), scene.motions),
        motions_moving=adjusted_rand_index(moving, scene.motions),
        parts=len(moving.unique()),
        recall=boundary_recall(labels, scene.things),
        edges=boundary_fraction(labels),
    )


def grid_regions(image: Tensor, count: int) -> Tensor:
    """Divide an image, 3 x H x W, into a grid of `count` cells: H x W, int64."""
    size = (image.shape[1], image.shape[2])
    return cell_of_pixel(size, grid_shape(count)).view(size)


def mean_agreement(scores: list[Agreement]) -> Agreement:
    """Average over scenes, without those for which a score is undefined."""
    means = {}
    for field in fields(Agreement):
        values = [value for each in scores if not math.isnan(value := getattr(each, field.name))]
        means[field.name] = statistics.fmean(values) if values else math.nan
    return Agreement(**means)


def measure(
    model: FlowPredictor, layers: list[str], scenes: list[Scene], num_removals: int
) -> tuple[dict[str, Agreement], dict[str, tuple[float, float, float]]]:
    """Return the mean scores of every method, and the mean effects of removals from every layer, as in `REMOVED`."""
    scores: dict[str, list[Agreement]] = {}
    effects: dict[str, list[Removal]] = {}
    for scene in scenes:
        result = model.flow(scene.first, scene.second)
        explanation = model.explain(scene.first, scene.second, result=result)
        shown = [explanation.first.layer(layer) for layer in layers]
        for layer in shown:
            name = f"prototypes, layer {layer.name}"
            scores.setdefault(name, []).append(score_regions(layer.labels(), layer.assignment, scene, result))
            effects.setdefault(name, []).extend(explanation.removals(layer.name, num_removals))
        stride = shown[0].trace.stride
        for name, regions in {**REGIONS, "grid": grid_regions}.items():
            labels = regions(scene.first, shown[-1].num_prototypes)
            cells = labels[stride // 2 :: stride, stride // 2 :: stride]
            scores.setdefault(name, []).append(score_regions(labels, cells, scene, result))
    means = {name: mean_effect(each) for name, each in effects.items() if each}
    return {name: mean_agreement(each) for name, each in scores.items()}, means


def mean_effect(effects: list[Removal]) -> tuple[float, float, float]:
    """Return the mean changes inside and outside, and their ratio."""
    inside, outside = (statistics.fmean(getattr(each, name) for each in effects) for name in ("inside", "outside"))
    return inside, outside, inside / max(outside, 1e-9)


def format_cell(name: str, value: float) -> str:
    """Format a value of the table."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if name in COUNTS else f"{value:.3f}"


def count_segments(scenes: list[Scene]) -> dict[str, float]:
    """Return the mean numbers of true segments in a scene."""
    return {
        "true_things": statistics.fmean(len(scene.things.unique()) for scene in scenes),
        "true_motions": statistics.fmean(len(scene.motions.unique()) for scene in scenes),
    }


def grid_joined(size: tuple[int, int], num_prototypes: int, stride: int) -> float:
    """Return `joined_cells` of a grid of squares on the map of a layer, for images of (H, W)."""
    rows, columns = (-(-side // stride) for side in size)
    return joined_cells(cell_of_pixel((rows, columns), grid_shape(num_prototypes)).view(rows, columns))


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="flow", help="a task, a preset or a .safetensors file")
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="families of synthetic scenes")
    parser.add_argument("--scenes", type=int, default=5, help="scenes of each family")
    parser.add_argument("--removals", type=int, default=3, help="prototypes removed per scene and layer")
    parser.add_argument("--layers", nargs="+", default=None, help="default: the last block of each stage")
    parser.add_argument("--size", type=int, nargs=2, default=(192, 256), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--seed", type=int, default=9, help="seed of the scenes")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    model = load(arguments.model, task="flow")
    depths = enumerate(model.network.config.encoder.depths, 1)
    layers = arguments.layers or [f"{stage}.{depth}" for stage, depth in depths]
    size = (arguments.size[0], arguments.size[1])
    table = Table(title="Agreement of regions with true segments (adjusted Rand index), and with boundaries", box=None)
    for column in ("family", "method", *HEADERS.values()):
        table.add_column(column, justify="left" if column in ("family", "method") else "right")
    rows = []
    for family in arguments.families:
        scenes = [render_scene(family, number, size, arguments.seed) for number in range(arguments.scenes)]
        scores, effects = measure(model, layers, scenes, arguments.removals)
        for name, each in scores.items():
            effect = effects.get(name, (math.nan,) * len(REMOVED))
            numbers = {**asdict(each), **dict(zip(REMOVED, effect, strict=True))}
            table.add_row(family, name, *(format_cell(key, value) for key, value in numbers.items()))
            finite = {key: None if math.isnan(value) else value for key, value in numbers.items()}
            rows.append({"family": family, "method": name, **finite, **count_segments(scenes)})
    console = Console(width=170)
    console.print(table)
    for family in arguments.families:
        things, motions = next((row["true_things"], row["true_motions"]) for row in rows if row["family"] == family)
        console.print(f"{family}: {things:.1f} true things and {motions:.1f} true motions per scene")
    for layer in layers:
        joined = grid_joined(size, model.network.config.encoder.num_prototypes, STRIDES[int(layer.split(".")[0]) - 1])
        console.print(f"layer {layer}: a grid of squares joins {joined:.3f} of the neighboring cells")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(rows, indent=1).encode())


if __name__ == "__main__":
    main()
