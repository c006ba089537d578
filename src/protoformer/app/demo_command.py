"""`protoformer demo`."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from protoformer.app.demo_flow import SCENES, convergence_section, flow_section, prototypes_section, shown_flow
from protoformer.app.demo_stabilization import stabilization_sections
from protoformer.app.demo_tracking import tracking_sections
from protoformer.app.progress import progress_bar
from protoformer.files import checked_output, flow_to_color, write_atomically, write_image
from protoformer.files.depth_color import usual_range
from protoformer.files.folders import made_folder
from protoformer.inference import load
from protoformer.inference.catalogue import catalogue
from protoformer.inference.weights import packaged_weights
from protoformer.metrics import depth_scores
from protoformer.show import Figure, Page, Section, grey_picture, picture
from protoformer.show.depth_frames import painted_depth
from protoformer.world import FAMILIES, World
from protoformer.world.tasks import depth_sample

WORLD_SEED = 4


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to; made if need be.")] = Path(
        "out"
    ),
) -> None:
    """Everything that works, on built-in images: one html page with pictures.

    Example: `protoformer demo -o out`
    """
    checked_output(made_folder(output) / "index.html")  # before time is spent
    model = load("flow")
    with progress_bar("looking at scenes", len(SCENES)) as told:
        shown = []
        for family in SCENES:
            shown.append(shown_flow(model, family))
            told(len(shown), len(SCENES))
    first = shown[0]
    for name, image in (("first.png", first.first), ("second.png", first.sample.second[0])):
        write_image(output / name, picture(image))
    first.result.save(output / "motion.flo")
    first.result.save(output / "motion.png")
    overview = (picture(first.first), first.colours(first.sample.flow[0]), first.colours(first.result.flow))
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
        (
            entry.name,
            f"{entry.parameters / 1e6:.2f} M",
            f"{entry.gflops:.0f}",
            str(entry.updates),
            ", ".join(entry.weights) or "none",
        )
        for entry in catalogue()
    )
    head = ("name", "parameters", "GFLOPs at 440x1024", "updates", "trained weights")
    return Section("Models", "The presets and what they cost.", table=(head, *rows))
