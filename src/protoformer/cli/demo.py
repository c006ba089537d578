"""`protoformer demo`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from protoformer.cli.footage import (
    CREDITS,
    explained_section,
    stabilized_section,
    tasks_sections,
    tracked_section,
)
from protoformer.cli.terminal import progress_bar
from protoformer.depth.drawing import colorize_depth
from protoformer.depth.metrics import depth_scores
from protoformer.explain.tracing import measure_convergence, plain_em
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.result import FlowResult
from protoformer.io.files import check_output, make_folder, write_atomically
from protoformer.io.image import write_image
from protoformer.loading import list_models, load
from protoformer.models.pretrained import packaged_weights
from protoformer.models.runtime import map_size, maps_to_tokens, normalize_images
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample, track_clip
from protoformer.synthetic.samples import FlowSample
from protoformer.tracking.drawing import draw_targets
from protoformer.tracking.metrics import track_scores
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.tracking.result import TrackedBox
from protoformer.viz.colormaps import Pixels, color_wheel_legend, draw_gray, flow_to_color, to_uint8
from protoformer.viz.depth_colors import default_depth_range
from protoformer.viz.plots import Curve, line_plot
from protoformer.viz.report import Figure, Page, Section

SCENES = {"objects": (10, (288, 384)), "drive": (1, (240, 480))}
"""Index and size (pixels) of the scene of each family."""
SEED = 4
"""Seed of all synthetic scenes of the page but that of tracking."""
MAX_ERROR = 5.0
"""End-point error that is drawn white, pixels."""


@dataclass(frozen=True)
class FlowExample:
    """A validation scene and its predicted flow; `sample` has a batch size of 1."""

    family: str
    sample: FlowSample
    result: FlowResult

    @property
    def first(self) -> Tensor:
        """The first image, 3 x H x W."""
        return self.sample.first[0]

    @property
    def scale(self) -> float:
        """Motion of fully saturated colors, pixels: the 98th percentile of the true motion."""
        return max(1.0, float(self.sample.flow[0].norm(dim=0).flatten().quantile(0.98)))

    def colors(self, flow: Tensor) -> Pixels:
        """Convert flow, 2 x H x W, to colors on the scale of the scene."""
        return flow_to_color(flow.permute(1, 2, 0).numpy(), self.scale)


def demo_flow(model: FlowPredictor, family: str) -> FlowExample:
    """Render a scene of a family (final pass) and predict its flow."""
    scene, size = SCENES[family]
    sample = flow_sample(SyntheticScenes(family, seed=SEED, size=size).renderer([scene]), "final")
    return FlowExample(family, sample, model.flow(sample.first[0], sample.second[0]))


def flow_section(example: FlowExample) -> Section:
    """Show the images, the true flow, the prediction and its error."""
    truth, valid = example.sample.flow[0], example.sample.valid[0, 0]
    error = (example.result.flow - truth).norm(dim=0) * valid
    epe, motion = (float(each[valid].mean()) for each in (error, truth.norm(dim=0)))
    return Section(
        f"Synthetic: flow of {example.family}",
        "A synthetic scene that was not used for training, with sensor noise and blur. The end-point error is "
        f"{epe:.2f} px on average; the mean motion is {motion:.2f} px.",
        (
            Figure(to_uint8(example.first), "first image"),
            Figure(to_uint8(example.sample.second[0]), "second image"),
            Figure(example.colors(truth), "true flow: hue is direction, saturation is speed"),
            Figure(example.colors(example.result.flow), "predicted flow"),
            Figure(draw_gray(example.result.confidence[0]), "confidence: white is certain within a pixel"),
            Figure(draw_gray(error / MAX_ERROR), f"end-point error: white is {MAX_ERROR:g} px"),
            Figure(
                color_wheel_legend(256),
                f"color wheel: the rim is {example.scale:.0f} px, and faster motion has its color",
                small=True,
            ),
        ),
    )


def convergence_section(model: FlowPredictor, example: FlowExample) -> Section:
    """Show the convergence of plain EM on features of the trained encoder."""
    with torch.inference_mode():
        features = model.network.encoder(normalize_images(example.sample.first).to(model.device)).features[0].cpu()
    tokens, size = F.normalize(maps_to_tokens(features.float()), dim=-1), map_size(features)
    convergence = measure_convergence(plain_em(tokens.shape[2], num_prototypes=100), tokens, size)
    numbers = range(13)
    likelihood = Curve("log-likelihood", tuple((float(n), convergence.log_likelihood[n]) for n in numbers))
    distance = Curve(
        "distance", tuple((float(n), convergence.distances[n] / convergence.distances[0]) for n in numbers)
    )
    return Section(
        "Synthetic: convergence",
        "EM on the features of this image, without learned parts (unit features, cosine similarity, no residual): "
        f"the likelihood never falls, and an iteration reduces the distance to the fixed point to "
        f"{convergence.contraction:.2f} of its value on average.",
        (
            Figure(line_plot([likelihood], "EM iteration", "nats per pixel"), "log-likelihood of the pixels"),
            Figure(
                line_plot([distance], "EM iteration", "relative distance", log_y=True), "distance to the fixed point"
            ),
        ),
    )


TRACK_SCENE = 1
"""Index of the scene in which a target is tracked."""
SHOWN = (0, 7, 15, 23)
"""Frames of it that are shown."""


def tracking_sections() -> tuple[Section, ...]:
    """Return the section; nothing without packaged weights."""
    return () if packaged_weights("track") is None else (tracking_section(load("track")),)


def tracking_section(model: TrackingPredictor, shown: tuple[int, ...] = SHOWN) -> Section:
    """Track a target of a synthetic scene from its true box in the first frame."""
    clip = track_clip(SyntheticScenes("chase", size=(240, 320)).renderer([TRACK_SCENE]), frames=shown[-1] + 1)
    frames, truth = clip.frames[0], clip.boxes[0]
    tracker = model.tracker(frames[0], truth[0])
    x, y, width, height = truth[0].tolist()
    targets = [TrackedBox((x, y, width, height), 1.0, False), *(tracker.update(frame)[0] for frame in frames[1:])]
    scores = track_scores(torch.tensor([target.box for target in targets]), truth, clip.visible[0] > 0)
    figures = tuple(
        Figure(draw_targets(np.ascontiguousarray(to_uint8(frames[index])), [targets[index]]), f"frame {index + 1}")
        for index in shown
    )
    return Section(
        "Synthetic: tracking",
        "An object among similar ones, tracked from its box in the first frame of a synthetic scene that was not used "
        f"for training. Over {len(targets)} frames the success is {100 * scores.success:.0f} (a perfect track has 95), "
        f"and the centers of {100 * scores.precision:.0f} % of the boxes are within 20 px of the true ones.",
        figures,
    )


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path("out"),
) -> None:
    """Run all tasks on packaged clips and synthetic scenes, and write one HTML page.

    Example: `protoformer demo -o out`
    """
    check_output(make_folder(output) / "index.html")  # before the computation
    model = load()
    steps: tuple[Callable[[], tuple[Section, ...]], ...] = (
        lambda: tasks_sections(model, output),
        lambda: (tracked_section(model, output),),
        lambda: (stabilized_section(model, output),),
        lambda: (explained_section(model),),
        lambda: _synthetic_sections(model.flow, output),
    )
    sections: tuple[Section, ...] = ()
    with progress_bar("running the tasks", len(steps)) as progress:
        for done, make_sections in enumerate(steps, 1):
            sections += make_sections()
            progress(done, len(steps))
    page = Page(
        title="protoformer",
        lead="Optical flow, moving objects, depth, tracking, stabilization and prototypes: first on real footage, then "
        "on synthetic scenes, whose exact motion and depth are known.",
        notice=CREDITS,
        sections=sections,
    )
    write_atomically(output / "index.html", page.html().encode())
    print(f"wrote {output / 'index.html'}: open it in a browser")


def _synthetic_sections(model: FlowPredictor, output: Path) -> tuple[Section, ...]:
    """Make the sections on synthetic scenes; writes a pair and its motion to a folder."""
    examples = [demo_flow(model, family) for family in SCENES]
    first = examples[0]
    for name, image in (("first.png", first.first), ("second.png", first.sample.second[0])):
        write_image(output / name, to_uint8(image))
    first.result.save(output / "motion.flo")
    first.result.save(output / "motion.png")
    return (
        *map(flow_section, examples),
        *_depth_sections(),
        *tracking_sections(),
        convergence_section(model, first),
        _scenes_section(),
        _models_section(),
    )


def _depth_sections() -> tuple[Section, ...]:
    """Show the depth of a synthetic room; nothing without packaged weights."""
    if packaged_weights("depth") is None:
        return ()
    sample = depth_sample(SyntheticScenes("room", seed=SEED, size=(240, 320)).renderer([0]))
    assert sample.intrinsics is not None
    result = load("depth").depth(sample.image[0], intrinsics=sample.intrinsics[0])
    scores = depth_scores(result.depth[None], sample.depth, sample.valid).metric
    near, far = default_depth_range(sample.depth[sample.valid].numpy())
    relative_error = (result.depth - sample.depth[0]).abs() / sample.depth[0].clamp_min(near)
    text = (
        "Metric depth of a single image of a synthetic room that was not used for training. The mean relative error is "
        f"{scores.abs_rel:.0%}, and {scores.delta1:.0%} of all pixels are within a factor of 1.25."
    )
    figures = (
        Figure(to_uint8(sample.image[0]), "image"),
        Figure(colorize_depth(sample.depth[0], (near, far)), f"true depth: light is {near:.1f} m, dark {far:.1f} m"),
        Figure(colorize_depth(result.depth, (near, far)), "predicted depth, in the same colors"),
        Figure(draw_gray(result.confidence[0]), "confidence: white is certain within 10 %"),
        Figure(draw_gray(relative_error[0] / 0.5), "relative error: white is 50 %"),
    )
    return (Section("Synthetic: depth", text, figures),)


def _scenes_section() -> Section:
    """Show a scene of each family with its ground truth."""
    figures = []
    for name, family in FAMILIES.items():
        height, width = family.size
        renderer = SyntheticScenes(name, seed=SEED, size=(height // 2, width // 2)).renderer([0])
        view = renderer.view(0.0)
        motion = renderer.motion_to(view, renderer.scenes.frame(1 / renderer.scenes.fps))
        nearness = 1 / view.depth[0, 0]
        figures += [
            Figure(to_uint8(renderer.final(view)[0]), f"{name}: {family.description}"),
            Figure(flow_to_color(motion.flow[0].permute(1, 2, 0).numpy()), "true flow, on its own scale"),
            Figure(draw_gray(nearness / nearness.max()), "true depth: white is near"),
        ]
    return Section(
        "Synthetic scenes",
        "Procedural scenes with exact flow, depth and occlusion, for training without any dataset; “protoformer synth” "
        "writes them to disk.",
        tuple(figures),
    )


def _models_section() -> Section:
    rows = tuple(
        (
            entry.name,
            f"{entry.parameters / 1e6:.2f} M",
            f"{entry.gflops:.0f}",
            str(entry.num_updates),
            ", ".join(entry.weights) or "none",
        )
        for entry in list_models()
    )
    head = ("name", "parameters", "GFLOPs at 440x1024", "updates", "trained weights")
    return Section("Models", "The presets and their cost.", table=(head, *rows))
