"""The demonstration's section on tracking, for a package that brings weights for it."""

import numpy as np
import torch

from protoformer.inference import TrackedBox, TrackModel, load
from protoformer.inference.weights import packaged_weights
from protoformer.metrics import track_scores
from protoformer.show import Figure, Section, picture
from protoformer.show.track_frames import draw_targets
from protoformer.world import World
from protoformer.world.tasks import track_clip

SCENE = 1
SHOWN = (0, 7, 15, 23)


def tracking_sections() -> tuple[Section, ...]:
    """The section, or nothing where the package brings no weights: boxes of an untrained network mean nothing."""
    return () if packaged_weights("track") is None else (tracking_section(load("track")),)


def tracking_section(model: TrackModel, shown: tuple[int, ...] = SHOWN) -> Section:
    """A target of a made-up chase, followed from its true box in the first frame to the last that is shown."""
    clip = track_clip(World("chase", size=(240, 320)).renderer([SCENE]), frames=shown[-1] + 1)
    frames, truth = clip.frames[0], clip.boxes[0]
    tracker = model.tracker(frames[0], truth[0])
    x, y, width, height = truth[0].tolist()
    found = [TrackedBox((x, y, width, height), 1.0, False), *(tracker.update(frame)[0] for frame in frames[1:])]
    scores = track_scores(torch.tensor([target.box for target in found]), truth, clip.visible[0] > 0)
    figures = tuple(
        Figure(draw_targets(np.ascontiguousarray(picture(frames[place])), [found[place]]), f"frame {place + 1}")
        for place in shown
    )
    return Section(
        "Tracking",
        "A thing among others like it, followed from a box around it in the first frame, in a scene that the network "
        f"has not seen. Over {len(found)} frames its boxes have a success of {100 * scores.success:.0f} of 95 that a "
        f"perfect track has, and {100 * scores.precision:.0f} % of their centres are within 20 px of the true ones.",
        figures,
    )
