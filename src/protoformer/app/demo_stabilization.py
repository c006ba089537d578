"""The demonstration's section on stabilization."""

import numpy as np
import torch

from protoformer.inference import StabilizeModel, load
from protoformer.inference.weights import packaged_weights
from protoformer.show import Figure, Section, picture
from protoformer.show.stabilize_page import path_figures
from protoformer.world import World

FRAMES = 16
SCENE = 1


def stabilization_sections() -> tuple[Section, ...]:
    """The section, or nothing where the package brings no weights."""
    return () if packaged_weights("stabilize") is None else (stabilization_section(load("stabilize")),)


def stabilization_section(model: StabilizeModel, count: int = FRAMES) -> Section:
    """A made-up walk with a camera in the hand, and its path before and after."""
    renderer = World("handheld", size=(120, 160), shake=1.0).renderer([SCENE])
    with torch.no_grad():
        views = (renderer.view(number / renderer.scenes.rate) for number in range(count))
        frames = [np.ascontiguousarray(picture(renderer.clean(view)[0])) for view in views]
    result = model.stabilize(frames, rate=renderer.scenes.rate)
    shown = list(model.frames(frames, result, renderer.scenes.rate))
    before, after = result.acceleration
    return Section(
        "Stabilization",
        "A walk with a camera in the hand, in a made-up scene. From frame to frame its velocity changed by "
        f"{before:.2f} px on average, and by {after:.2f} px once it was made steady; {result.cropping:.0%} of each "
        "side is shown.",
        (
            *path_figures(result),
            Figure(shown[count // 2][1], "a frame as it was"),
            Figure(shown[count // 2][2], "the same frame, steady"),
        ),
    )
