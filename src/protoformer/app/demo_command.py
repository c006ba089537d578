"""`protoformer demo`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from protoformer.app.demo_stabilization import stabilization_sections
from protoformer.app.demo_tracking import tracking_sections
from protoformer.app.progress import progress_bar
from protoformer.files import checked_output, color_wheel_legend, flow_to_color, write_atomically, write_image
from protoformer.files.depth_color import usual_range
from protoformer.files.folders import made_folder
from protoformer.inference import FlowModel, FlowResult, load
from protoformer.inference.catalogue import catalogue
from protoformer.inference.weights import packaged_weights
from protoformer.metrics import depth_scores
from protoformer.model import build_flow, preset
from protoformer.model.convergence import measure_convergence, plain_em
from protoformer.model.encoder import STRIDES
from protoformer.model.flow import normalised
from protoformer.model.tokens import size_of, tokens_of
from protoformer.show import Curve, Figure, Page, Pixels, Section, assignment_picture, grey_picture, line_plot, picture
from protoformer.show.depth_frames import painted_depth
from protoformer.training import FlowLoss, fit_flow
from protoformer.world import FAMILIES, FlowSample, World, join, random_scene
from protoformer.world.tasks import depth_sample

SCENE = 3
WORLD_SEED = 4
MOTION = 8.0
FULL_COLOUR = 14.0
"""Speed, in pixels, at which colours are strongest: a shift of MOTION both ways, and a little more."""
NOTICE = (
    "This version of the package brings no trained weights. So that there is something true to look at, the "
    "demonstration trains its smallest network first, for a few minutes, on scenes it makes up. Expect a blurred but "
    "honest picture."
)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to; made if need be.")] = Path(
        "out"
    ),
    steps: Annotated[int, typer.Option(help="Training steps of the smallest network; more look better.", min=1)] = 300,
) -> None:
    """Everything that works, on built-in images: one html page with pictures.

    Example: `protoformer demo -o out`
    """
    checked_output(made_folder(output) / "index.html")  # before a minute is spent
    print(f"note: training the smallest network, {steps} steps; 300 take a few minutes", file=sys.stderr, flush=True)
    errors: list[float] = []
    model = _trained(steps, errors)
    model.save(output / "tiny.safetensors")
    scene = random_scene((256, 384), SCENE, shapes=5, motion=MOTION).render()
    with torch.inference_mode():
        features = model.network.features(normalised(scene.first)).features[0]
    result = model.flow(scene.first[0], scene.second[0], prototypes=True)
    for name, image in (("first.png", scene.first[0]), ("second.png", scene.second[0])):
        write_image(output / name, picture(image))
    result.save(output / "motion.flo")
    result.save(output / "motion.png")
    overview = (picture(scene.first[0]), _colours(scene.flow[0]), _colours(result.flow), _grouped(scene, result))
    write_image(output / "overview.png", np.concatenate(overview, axis=1))
    page = Page(
        title="protoformer",
        lead="Motion on prototypes: what this version does, shown on images it made itself.",
        notice=NOTICE,
        sections=(
            _flow_section(scene, result, steps),
            _learning(errors),
            _prototypes(scene, result),
            _em(features),
            *_depth(),
            *tracking_sections(),
            *stabilization_sections(),
            _world(),
            _models(),
        ),
    )
    write_atomically(output / "index.html", page.html().encode())
    print(f"wrote {output / 'index.html'}: open it in a browser")


def _trained(steps: int, errors: list[float]) -> FlowModel:
    """The smallest network after a short training; the error of every step goes into `errors`."""
    with progress_bar("training the smallest network", steps) as told, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)

        def after_step(step: int, loss: FlowLoss) -> None:
            errors.append(float(loss.epe))
            told(step + 1, steps)

        network = fit_flow(build_flow(preset("tiny")), _batches(steps), steps, peak_rate=2e-3, after_step=after_step)
    return FlowModel(network, trained=True, device=torch.device("cpu"))


def _batches(steps: int, batch: int = 8) -> Iterator[FlowSample]:
    """Scenes without objects at first, then with some: the camera's motion is the easier lesson."""
    for step in range(steps):
        shapes = 0 if step < steps // 3 else 2
        seeds = range(1000 + step * batch, 1000 + (step + 1) * batch)
        yield join([random_scene((64, 64), seed, shapes, MOTION).render() for seed in seeds])


def _colours(flow: Tensor) -> Pixels:
    """A flow, 2 x H x W, on the page's one scale of colours."""
    return flow_to_color(flow.permute(1, 2, 0).numpy(), FULL_COLOUR)


def _grouped(scene: FlowSample, result: FlowResult) -> Pixels:
    """The first image in the colours of its finest prototypes."""
    return assignment_picture(result.prototypes[0][-1], scene.first[0], STRIDES[0])


def _flow_section(scene: FlowSample, result: FlowResult, steps: int) -> Section:
    error = (result.flow - scene.flow[0]).norm(dim=0)
    none = scene.flow[0].norm(dim=0).mean()
    return Section(
        "Optical flow",
        "A background and five shapes, each moved in its own way; the true motion is known exactly. "
        f"After {steps} training steps the smallest network is wrong by {float(error.mean()):.2f} px on average here, "
        f"on a scene it has not seen; to say that nothing moves would be wrong by {float(none):.2f} px.",
        (
            Figure(picture(scene.first[0]), "first image"),
            Figure(picture(scene.second[0]), "second image"),
            Figure(_colours(scene.flow[0]), "true motion: hue is direction, strength is speed"),
            Figure(_colours(result.flow), "motion that the network found"),
            Figure(grey_picture(result.confidence[0]), "its confidence: white is sure to a pixel"),
            Figure(grey_picture(error / FULL_COLOUR), f"its error: white is {FULL_COLOUR:g} px"),
            Figure(color_wheel_legend(256), f"the colours: the rim is {FULL_COLOUR:g} px"),
        ),
    )


def _depth() -> tuple[Section, ...]:
    """What the depth model of the package says of a room that it has not seen; nothing where there is no such model."""
    if packaged_weights("depth") is None:
        return ()
    sample = depth_sample(World("room", seed=WORLD_SEED, size=(240, 320)).renderer([0]))
    assert sample.intrinsics is not None
    result = load("depth").depth(sample.image[0], intrinsics=sample.intrinsics[0])
    scores = depth_scores(result.depth[None], sample.depth, sample.valid).metric
    near, far = usual_range(sample.depth[sample.valid].numpy())
    off = (result.depth - sample.depth[0]).abs() / sample.depth[0].clamp_min(near)
    text = (
        "How far away everything is, from one image. This is a made-up room whose depth is known exactly; the depth "
        f"found is wrong by {scores.abs_rel:.0%} on average, and right to a quarter at {scores.delta1:.0%} of all "
        "pixels."
    )
    figures = (
        Figure(picture(sample.image[0]), "image"),
        Figure(painted_depth(sample.depth[0], (near, far)), f"true depth: light is {near:.1f} m, dark {far:.1f} m"),
        Figure(painted_depth(result.depth, (near, far)), "depth that the network found, in the same colours"),
        Figure(grey_picture(result.confidence[0]), "its confidence: white is sure to 10 %"),
        Figure(grey_picture(off[0] / 0.5), "its error: white is half of the true depth"),
    )
    return (Section("Depth", text, figures),)


def _learning(errors: list[float]) -> Section:
    window = max(1, len(errors) // 30)
    smooth = [sum(errors[start : start + window]) / window for start in range(0, len(errors) - window + 1, window)]
    points = tuple((float((index + 1) * window), value) for index, value in enumerate(smooth))
    return Section(
        "Learning",
        "The end-point error while it trained. Objects enter after a third of the steps, and the task gets harder.",
        (Figure(line_plot([Curve("end-point error", points)], "step", "pixels"), "end-point error over the training"),),
    )


def _prototypes(scene: FlowSample, result: FlowResult) -> Section:
    figures = [
        Figure(
            assignment_picture(found, scene.first[0], stride),
            f"{found.centres.shape[1]} prototypes at 1/{stride} of the image",
        )
        for stride, stage in zip(STRIDES, result.prototypes, strict=True)
        for found in stage
    ]
    return Section(
        "Prototypes",
        "Every layer groups the pixels around prototypes before it matches them. Here each pixel has the colour of the "
        "prototype it belongs to most.",
        tuple(figures),
    )


def _em(features: Tensor) -> Section:
    """How EM settles on features of the trained encoder, B x C x H x W, with nothing learned in its way."""
    tokens, size = F.normalize(tokens_of(features), dim=-1), size_of(features)
    seen = measure_convergence(plain_em(tokens.shape[2], prototypes=100), tokens, size)
    shown = range(13)
    likelihood = Curve("log-likelihood", tuple((float(n), seen.log_likelihood[n]) for n in shown))
    distance = Curve("distance", tuple((float(n), seen.distances[n] / seen.distances[0]) for n in shown))
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


def _world() -> Section:
    """One scene of each family, and what is known about it."""
    figures = []
    for family, what in FAMILIES.items():
        height, width = what.size
        renderer = World(family, seed=WORLD_SEED, size=(height // 2, width // 2)).renderer([0])
        view = renderer.view(0.0)
        motion = renderer.motion_to(view, renderer.scenes.frame(1 / renderer.scenes.rate))
        nearness = 1 / view.depth[0, 0]
        figures += [
            Figure(picture(renderer.clean(view)[0]), f"{family}: {what.what}"),
            Figure(picture(renderer.final(view)[0]), "as a camera would take it"),
            Figure(flow_to_color(motion.flow[0].permute(1, 2, 0).numpy()), "its motion, on a scale of its own"),
            Figure(grey_picture(nearness / nearness.max()), "its depth: white is near"),
        ]
    return Section(
        "The world",
        "Scenes made from numbers, whose motion, depth and occlusion are known exactly: truth to train on without any "
        "dataset. The command “protoformer world” writes as many as you like.",
        tuple(figures),
    )


def _models() -> Section:
    rows = tuple(
        (entry.name, f"{entry.parameters / 1e6:.2f} M", f"{entry.gflops:.0f}", str(entry.updates), entry.weights)
        for entry in catalogue()
    )
    head = ("name", "parameters", "GFLOPs at 440x1024", "updates", "trained weights")
    return Section("Models", "The presets and what they cost.", table=(head, *rows))
