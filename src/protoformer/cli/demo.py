"""`protoformer demo`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from protoformer.cli.terminal import progress_bar
from protoformer.depth.drawing import colorize_depth
from protoformer.depth.metrics import depth_scores
from protoformer.explain.drawing import draw_parts
from protoformer.explain.tracing import measure_convergence, plain_em
from protoformer.flow.predictor import FlowPredictor
from protoformer.flow.result import FlowResult
from protoformer.io.files import check_output, make_folder, write_atomically
from protoformer.io.image import write_image
from protoformer.loading import list_models, load
from protoformer.models.encoder import STRIDES
from protoformer.models.heads.flow import normalize_images
from protoformer.models.pretrained import packaged_weights
from protoformer.models.runtime import map_size, maps_to_tokens
from protoformer.stabilization.drawing import plot_path
from protoformer.stabilization.predictor import StabilizationPredictor
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample, track_clip
from protoformer.synthetic.samples import FlowSample
from protoformer.tracking.drawing import draw_targets
from protoformer.tracking.metrics import track_scores
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.tracking.result import TrackedBox
from protoformer.viz.colormaps import color_wheel_legend, default_depth_range, flow_to_color
from protoformer.viz.html import Figure, Page, Section
from protoformer.viz.images import Pixels, draw_assignment, draw_gray, to_uint8
from protoformer.viz.plots import Curve, line_plot

SCENES = {"objects": (10, (288, 384)), "drive": (1, (240, 480)), "handheld": (0, (288, 384))}
"""Of each family that is shown: which scene, and its size in pixels."""
SEED = 4
WHITE = 5.0
"""Pixels of error that are white."""


@dataclass(frozen=True)
class ShownFlow:
    """A scene that the network has not seen, and what it found. sample: a batch of one."""

    family: str
    sample: FlowSample
    result: FlowResult

    @property
    def first(self) -> Tensor:
        """The first image, 3 x H x W."""
        return self.sample.first[0]

    @property
    def strongest(self) -> float:
        """The speed, pixels, at which colors are strongest: nearly all of the scene is slower."""
        return max(1.0, float(self.sample.flow[0].norm(dim=0).flatten().quantile(0.98)))

    def colors(self, flow: Tensor) -> Pixels:
        """A flow, 2 x H x W, on the scene's one scale of colors."""
        return flow_to_color(flow.permute(1, 2, 0).numpy(), self.strongest)

    @cached_property
    def parts(self) -> list[Pixels]:
        """Both images in the colors of the parts that move as one."""
        return draw_parts(self.result.explain())


def demo_flow(model: FlowPredictor, family: str) -> ShownFlow:
    """One scene of a family, in its final pass, and the model's flow."""
    scene, size = SCENES[family]
    sample = flow_sample(SyntheticScenes(family, seed=SEED, size=size).renderer([scene]), "final")
    return ShownFlow(family, sample, model.flow(sample.first[0], sample.second[0], return_prototypes=True))


def flow_section(shown: ShownFlow) -> Section:
    """Images, truth, what was found, and how far it is off."""
    truth, valid = shown.sample.flow[0], shown.sample.valid[0, 0]
    error = (shown.result.flow - truth).norm(dim=0) * valid
    off, none = (float(each[valid].mean()) for each in (error, truth.norm(dim=0)))
    return Section(
        f"Optical flow: {shown.family}",
        "A scene that the network has not seen, whose true motion is known exactly, as a camera would take it. The "
        f"motion found is wrong by {off:.2f} px on average; to say that nothing moves would be wrong by {none:.2f} px.",
        (
            Figure(to_uint8(shown.first), "first image"),
            Figure(to_uint8(shown.sample.second[0]), "second image"),
            Figure(shown.colors(truth), "true motion: hue is direction, strength is speed"),
            Figure(shown.colors(shown.result.flow), "motion that the network found"),
            Figure(draw_gray(shown.result.confidence[0]), "its confidence: white is sure to a pixel"),
            Figure(draw_gray(error / WHITE), f"its error: white is {WHITE:g} px"),
            Figure(
                color_wheel_legend(256),
                f"the colors: the rim is {shown.strongest:.0f} px; brown or grayish areas with hard edges lie beyond "
                "this scale: what moves farther has its hue darkened by a quarter",
                small=True,
            ),
        ),
    )


def prototypes_section(shown: ShownFlow) -> Section:
    """What moves as one, and the groups of every layer that it is made of."""
    captions = ("what moves as one in the first image", "the same parts where the motion carries them")
    figures = [Figure(part, caption) for part, caption in zip(shown.parts, captions, strict=True)]
    figures += [
        Figure(
            draw_assignment(found, shown.first, stride, input_size=shown.result.input_size),
            f"{found.centers.shape[1]} prototypes at 1/{stride} of the image as the network sees it",
        )
        for stride, stage in zip(STRIDES, shown.result.prototypes, strict=True)
        for found in stage
    ]
    return Section(
        "Prototypes",
        "Every layer groups the pixels around prototypes before it matches them. Prototypes follow texture as well as "
        "things, so that their maps look grainy: here each pixel has the color of the prototype it belongs to most. "
        "Joined where one motion suits them, their pieces are the parts that move as one, shown first.",
        tuple(figures),
    )


def convergence_section(model: FlowPredictor, shown: ShownFlow) -> Section:
    """How EM settles on features of the trained encoder, with nothing learned in its way."""
    with torch.inference_mode():
        features = model.network.encoder(normalize_images(shown.sample.first).to(model.device)).features[0].cpu()
    tokens, size = F.normalize(maps_to_tokens(features.float()), dim=-1), map_size(features)
    seen = measure_convergence(plain_em(tokens.shape[2], prototypes=100), tokens, size)
    numbers = range(13)
    likelihood = Curve("log-likelihood", tuple((float(n), seen.log_likelihood[n]) for n in numbers))
    distance = Curve("distance", tuple((float(n), seen.distances[n] / seen.distances[0]) for n in numbers))
    return Section(
        "Convergence",
        "EM on the features of this image, in the setting that theory speaks of (unit features, cosine, no residual): "
        f"the likelihood never falls, and a step leaves {seen.contraction:.2f} of the distance to the fixed point, on "
        "average.",
        (
            Figure(line_plot([likelihood], "EM iteration", "nats a pixel"), "log-likelihood of the pixels"),
            Figure(line_plot([distance], "EM iteration", "share left", log_y=True), "distance to the fixed point"),
        ),
    )


FRAMES = 16
SCENE = 1


def stabilization_sections() -> tuple[Section, ...]:
    """The section, or nothing where the package brings no weights."""
    return () if packaged_weights("stabilize") is None else (stabilization_section(load("stabilize")),)


def stabilization_section(model: StabilizationPredictor, count: int = FRAMES) -> Section:
    """A made-up walk with a camera in the hand, and its path before and after."""
    renderer = SyntheticScenes("handheld", size=(120, 160), shake=1.0).renderer([SCENE])
    with torch.no_grad():
        views = (renderer.view(number / renderer.scenes.fps) for number in range(count))
        frames = [np.ascontiguousarray(to_uint8(renderer.clean(view)[0])) for view in views]
    result = model.stabilize(frames, fps=renderer.scenes.fps)
    shown = list(model.frames(frames, result, renderer.scenes.fps))
    before, after = result.acceleration
    return Section(
        "Stabilization",
        "A walk with a camera in the hand, in a made-up scene. From frame to frame its velocity changed by "
        f"{before:.2f} px on average, and by {after:.2f} px once it was made steady; {result.cropping:.0%} of each "
        "side is shown.",
        (
            *plot_path(result),
            Figure(shown[count // 2][1], "a frame as it was"),
            Figure(shown[count // 2][2], "the same frame, steady"),
        ),
    )


SHOWN = (0, 7, 15, 23)


def tracking_sections() -> tuple[Section, ...]:
    """The section, or nothing where the package brings no weights: boxes of an untrained network mean nothing."""
    return () if packaged_weights("track") is None else (tracking_section(load("track")),)


def tracking_section(model: TrackingPredictor, shown: tuple[int, ...] = SHOWN) -> Section:
    """A target of a made-up chase, followed from its true box in the first frame to the last that is shown."""
    clip = track_clip(SyntheticScenes("chase", size=(240, 320)).renderer([SCENE]), frames=shown[-1] + 1)
    frames, truth = clip.frames[0], clip.boxes[0]
    tracker = model.tracker(frames[0], truth[0])
    x, y, width, height = truth[0].tolist()
    found = [TrackedBox((x, y, width, height), 1.0, False), *(tracker.update(frame)[0] for frame in frames[1:])]
    scores = track_scores(torch.tensor([target.box for target in found]), truth, clip.visible[0] > 0)
    figures = tuple(
        Figure(draw_targets(np.ascontiguousarray(to_uint8(frames[place])), [found[place]]), f"frame {place + 1}")
        for place in shown
    )
    return Section(
        "Tracking",
        "A thing among others like it, followed from a box around it in the first frame, in a scene that the network "
        f"has not seen. Over {len(found)} frames its boxes have a success of {100 * scores.success:.0f} of 95 that a "
        f"perfect track has, and {100 * scores.precision:.0f} % of their centers are within 20 px of the true ones.",
        figures,
    )


WORLD_SEED = 4


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to; made if need be.")] = Path(
        "out"
    ),
) -> None:
    """Run all tasks on built-in scenes and write one html page.

    Example: `protoformer demo -o out`
    """
    check_output(make_folder(output) / "index.html")  # before time is spent
    model = load("flow")
    with progress_bar("looking at scenes", len(SCENES)) as told:
        shown = []
        for family in SCENES:
            shown.append(demo_flow(model, family))
            told(len(shown), len(SCENES))
    first = shown[0]
    for name, image in (("first.png", first.first), ("second.png", first.sample.second[0])):
        write_image(output / name, to_uint8(image))
    first.result.save(output / "motion.flo")
    first.result.save(output / "motion.png")
    overview = (to_uint8(first.first), first.colors(first.sample.flow[0]), first.colors(first.result.flow))
    write_image(output / "overview.png", np.concatenate((*overview, first.parts[0]), axis=1))
    page = Page(
        title="protoformer",
        lead="Motion on prototypes: what this version does, shown on images it made itself.",
        sections=(
            *map(flow_section, shown),
            prototypes_section(first),
            convergence_section(model, first),
            *_depth(),
            *tracking_sections(),
            *stabilization_sections(),
            _world(),
            _models(),
        ),
    )
    write_atomically(output / "index.html", page.html().encode())
    print(f"wrote {output / 'index.html'}: open it in a browser")


def _depth() -> tuple[Section, ...]:
    """What the depth model of the package says of a room that it has not seen; nothing where there is no such model."""
    if packaged_weights("depth") is None:
        return ()
    sample = depth_sample(SyntheticScenes("room", seed=WORLD_SEED, size=(240, 320)).renderer([0]))
    assert sample.intrinsics is not None
    result = load("depth").depth(sample.image[0], intrinsics=sample.intrinsics[0])
    scores = depth_scores(result.depth[None], sample.depth, sample.valid).metric
    near, far = default_depth_range(sample.depth[sample.valid].numpy())
    off = (result.depth - sample.depth[0]).abs() / sample.depth[0].clamp_min(near)
    text = (
        "How far away everything is, from one image. This is a made-up room whose depth is known exactly; the depth "
        f"found is wrong by {scores.abs_rel:.0%} on average, and right to a quarter at {scores.delta1:.0%} of all "
        "pixels."
    )
    figures = (
        Figure(to_uint8(sample.image[0]), "image"),
        Figure(colorize_depth(sample.depth[0], (near, far)), f"true depth: light is {near:.1f} m, dark {far:.1f} m"),
        Figure(colorize_depth(result.depth, (near, far)), "depth that the network found, in the same colors"),
        Figure(draw_gray(result.confidence[0]), "its confidence: white is sure to 10 %"),
        Figure(draw_gray(off[0] / 0.5), "its error: white is half of the true depth"),
    )
    return (Section("Depth", text, figures),)


def _world() -> Section:
    """One scene of each family, and what is known about it."""
    figures = []
    for family, what in FAMILIES.items():
        height, width = what.size
        renderer = SyntheticScenes(family, seed=WORLD_SEED, size=(height // 2, width // 2)).renderer([0])
        view = renderer.view(0.0)
        motion = renderer.motion_to(view, renderer.scenes.frame(1 / renderer.scenes.fps))
        nearness = 1 / view.depth[0, 0]
        figures += [
            Figure(to_uint8(renderer.clean(view)[0]), f"{family}: {what.description}"),
            Figure(to_uint8(renderer.final(view)[0]), "as a camera would take it"),
            Figure(flow_to_color(motion.flow[0].permute(1, 2, 0).numpy()), "its motion, on a scale of its own"),
            Figure(draw_gray(nearness / nearness.max()), "its depth: white is near"),
        ]
    return Section(
        "The world",
        "Scenes made from numbers, whose motion, depth and occlusion are known exactly: truth to train on without any "
        "dataset. The command “protoformer synth” writes as many as you like.",
        tuple(figures),
    )


def _models() -> Section:
    rows = tuple(
        (
            entry.name,
            f"{entry.parameters / 1e6:.2f} M",
            f"{entry.gflops:.0f}",
            str(entry.updates),
            ", ".join(entry.weights) or "none",
        )
        for entry in list_models()
    )
    head = ("name", "parameters", "GFLOPs at 440x1024", "updates", "trained weights")
    return Section("Models", "The presets and what they cost.", table=(head, *rows))
