"""Measure the agreement of prototype regions with true objects and motions, compared with baselines without a network.

    python benchmarks/prototype_regions.py --json out/prototype_regions.json

The scenes are synthetic, with known segmentations. Objects: independently moving objects and the background ("things"
in the JSON file). Motions: surfaces, joined where their mean true motions differ by less than a pixel.

Every method has about as many regions as the network has prototypes, which are more than the true segments. Their
adjusted Rand index (ARI) would therefore be near 0, and two other values are printed. "Best": the ARI after each region
is assigned to the true segment with which it shares most pixels (an upper bound that uses the ground truth). "Moving":
the ARI of the moving parts, which are computed from the regions and the estimated flow in the same way for all methods
and without the true number of segments. The baseline "grid" shows the contribution of position and flow alone.

Neighbors joined: fraction of neighboring cells in the same region, at the cells of the layer (baselines: at those of
the first layer). Boundary recall: fraction of the true object boundaries within 2 pixels of a region boundary. Boundary
pixels: fraction of all pixels at a region boundary; the more there are, the higher the recall of random regions.

Change inside and outside: mean change of the flow, pixels, at the pixels of a removed prototype and at all others, when
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
from region_baselines import BASELINES
from region_metrics import adjusted_rand_index, best_merge, boundary_fraction, boundary_recall

FAMILIES = ("objects", "room", "chase")
MOTION_TOLERANCE = 1.0
"""Difference of mean motions, pixels, below which surfaces are one motion."""
REMOVED = ("inside", "outside", "ratio")
"""Keys of the values measured by removing prototypes."""
COUNTS = ("regions", "parts")
"""Keys of the values that are printed without decimals."""
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
    """Scores of one method on one scene, or their means over scenes.

    Attributes:
        regions: Number of regions.
        joined: Fraction of neighboring cells in the same region.
        things_best: ARI with true objects after the best merge.
        things_moving: ARI of the moving parts with true objects.
        motions_best: ARI with true motions after the best merge.
        motions_moving: ARI of the moving parts with true motions.
        parts: Number of moving parts.
        recall: Boundary recall of true objects.
        edges: Fraction of pixels at a region boundary.
    """

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
    """An image pair with the true segmentations of the first image.

    Attributes:
        first: 3 x H x W.
        second: 3 x H x W.
        things: H x W, label of the object of each pixel; 0: background.
        motions: H x W, label of the motion of each pixel.
    """

    first: Tensor
    second: Tensor
    things: Tensor
    motions: Tensor


def render_scene(family: str, index: int, size: tuple[int, int], seed: int) -> Scene:
    """Render one synthetic scene with images of (height, width)."""
    renderer = SyntheticScenes(family, seed=seed, size=size).renderer([index])
    views = [renderer.view(frame / renderer.scenes.fps) for frame in range(2)]
    flow = renderer.motion(*views).flow[0]
    surfaces = views[0].hits.index[0].view(size)
    images = [renderer.clean(view)[0] for view in views]
    return Scene(*images, renderer.instances(views[0])[0, 0], join_motions(surfaces, flow))


def join_motions(surfaces: Tensor, flow: Tensor) -> Tensor:
    """Join surfaces whose mean motions differ by less than `MOTION_TOLERANCE`.

    Args:
        surfaces: H x W, label of the surface of each pixel.
        flow: 2 x H x W, pixels.

    Returns:
        H x W, label of the motion of each pixel.
    """
    indices = surfaces.unique(return_inverse=True)[1]
    sizes = torch.bincount(indices.flatten())
    sums = torch.zeros(len(sizes), 2).index_add_(0, indices.flatten(), flow.flatten(1).T)
    distances = torch.cdist(sums / sizes[:, None], sums / sizes[:, None])
    joins, owner = [], torch.arange(len(sizes))
    for one, other in (distances < MOTION_TOLERANCE).triu(1).nonzero().tolist():
        kept, removed = sorted((int(owner[one]), int(owner[other])))
        if kept != removed:
            joins.append((kept, removed))
            owner = owners(len(sizes), joins)
    return owner[indices]


def joined_fraction(cells: Tensor) -> float:
    """Compute the fraction of horizontally and vertically neighboring cells of a map, h x w, with the same label."""
    equal = torch.cat(((cells[1:] == cells[:-1]).flatten(), (cells[:, 1:] == cells[:, :-1]).flatten()))
    return float(equal.float().mean())


def score_regions(labels: Tensor, cells: Tensor, scene: Scene, result: FlowResult) -> Agreement:
    """Compare regions with the true segmentations.

    Args:
        labels: H x W, region of each pixel.
        cells: h x w, region of each cell of a layer.
        scene: The scene.
        result: The estimated flow.
    """
    moving = segment_motion(labels, result.flow, result.confidence)
    return Agreement(
        regions=len(labels.unique()),
        joined=joined_fraction(cells),
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
    """Average scores over scenes, without those in which a score is NaN."""
    means = {}
    for field in fields(Agreement):
        values = [value for score in scores if not math.isnan(value := getattr(score, field.name))]
        means[field.name] = statistics.fmean(values) if values else math.nan
    return Agreement(**means)


def measure(
    predictor: FlowPredictor, layer_names: list[str], scenes: list[Scene], num_removals: int
) -> tuple[dict[str, Agreement], dict[str, tuple[float, float, float]]]:
    """Measure all methods on all scenes.

    Args:
        predictor: Estimates the flow and supplies the prototypes.
        layer_names: Layers whose prototypes are measured.
        scenes: The scenes.
        num_removals: Number of prototypes to remove per scene and layer.

    Returns:
        The mean scores of every method, and the mean effects of removals from every layer, as in `REMOVED`.
    """
    scores: dict[str, list[Agreement]] = {}
    effects: dict[str, list[Removal]] = {}
    for scene in scenes:
        result = predictor.flow(scene.first, scene.second)
        explanation = predictor.explain(scene.first, scene.second, result=result)
        layers = [explanation.first.layer(name) for name in layer_names]
        for layer in layers:
            name = f"prototypes, layer {layer.name}"
            scores.setdefault(name, []).append(score_regions(layer.labels(), layer.assignment, scene, result))
            effects.setdefault(name, []).extend(explanation.removals(layer.name, num_removals))
        stride = layers[0].trace.stride
        for name, segment in {**BASELINES, "grid": grid_regions}.items():
            labels = segment(scene.first, layers[-1].num_prototypes)
            cells = labels[stride // 2 :: stride, stride // 2 :: stride]
            scores.setdefault(name, []).append(score_regions(labels, cells, scene, result))
    mean_effects = {name: mean_effect(removals) for name, removals in effects.items() if removals}
    return {name: mean_agreement(agreements) for name, agreements in scores.items()}, mean_effects


def mean_effect(removals: list[Removal]) -> tuple[float, float, float]:
    """Return the mean changes of the flow inside and outside, pixels, and their ratio."""
    inside = statistics.fmean(removal.inside for removal in removals)
    outside = statistics.fmean(removal.outside for removal in removals)
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


def grid_joined_fraction(size: tuple[int, int], num_prototypes: int, stride: int) -> float:
    """Compute `joined_fraction` of the baseline "grid" on the map of a layer, for images of (H, W)."""
    rows, columns = (-(-side // stride) for side in size)
    return joined_fraction(cell_of_pixel((rows, columns), grid_shape(num_prototypes)).view(rows, columns))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="flow", help="preset, name of packaged weights, or .safetensors file")
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="families of synthetic scenes")
    parser.add_argument("--scenes", type=int, default=5, help="number of scenes of each family")
    parser.add_argument("--removals", type=int, default=3, help="number of prototypes to remove per scene and layer")
    parser.add_argument(
        "--layers", nargs="+", default=None, help="layers to measure; default: the last block of each stage"
    )
    parser.add_argument(
        "--size", type=int, nargs=2, default=(192, 256), metavar=("HEIGHT", "WIDTH"), help="size of the images, pixels"
    )
    parser.add_argument("--seed", type=int, default=9, help="seed of the scenes")
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    predictor = load(arguments.model, task="flow")
    depths = enumerate(predictor.network.config.encoder.depths, 1)
    layers = arguments.layers or [f"{stage}.{depth}" for stage, depth in depths]
    size = (arguments.size[0], arguments.size[1])
    table = Table(title="Agreement of regions with true segments (adjusted Rand index), and with boundaries", box=None)
    for column in ("family", "method", *HEADERS.values()):
        table.add_column(column, justify="left" if column in ("family", "method") else "right")
    rows = []
    for family in arguments.families:
        scenes = [render_scene(family, index, size, arguments.seed) for index in range(arguments.scenes)]
        scores, effects = measure(predictor, layers, scenes, arguments.removals)
        for name, score in scores.items():
            effect = effects.get(name, (math.nan,) * len(REMOVED))
            values = {**asdict(score), **dict(zip(REMOVED, effect, strict=True))}
            table.add_row(family, name, *(format_cell(key, value) for key, value in values.items()))
            finite = {key: None if math.isnan(value) else value for key, value in values.items()}
            rows.append({"family": family, "method": name, **finite, **count_segments(scenes)})
    console = Console(width=170)
    console.print(table)
    for family in arguments.families:
        things, motions = next((row["true_things"], row["true_motions"]) for row in rows if row["family"] == family)
        console.print(f"{family}: {things:.1f} true objects and {motions:.1f} true motions per scene")
    for layer in layers:
        joined = grid_joined_fraction(
            size, predictor.network.config.encoder.num_prototypes, STRIDES[int(layer.split(".")[0]) - 1]
        )
        console.print(f"layer {layer}: neighbors joined by the grid: {joined:.3f}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.json, json.dumps(rows, indent=1).encode())


if __name__ == "__main__":
    main()
