"""What each task learns from: batches of one world, with their truth."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.world.chance import Draws
from protoformer.world.render import Renderer, View
from protoformer.world.sample import DepthSample, FlowSample, StabilityClip, TrackClip
from protoformer.world.scene import sent

FARTHEST = 500.0
"""Metres; beyond, there is only the sky, whose depth nobody should learn."""
PASSES = ("clean", "final")
SMALL, LARGE = 0.003, 0.06
"""Shares of an image's pixels between which a target is of a size that leaves room to look for it."""
FEWEST = 64
"""Pixels below which a target is small however few the image has."""


def picture(renderer: Renderer, view: View, look: str) -> Tensor:
    """One pass of a view: B x 3 x H x W."""
    if look not in PASSES:
        raise InputError(f"there is no pass called {look!r}; choose clean or final.")
    return renderer.final(view) if look == "final" else renderer.clean(view)


def flow_sample(renderer: Renderer, look: str = "clean", frame: int = 0) -> FlowSample:
    """A frame, the next one, and the motion between them."""
    rate, names = renderer.scenes.rate, renderer.scenes.names
    first, second = renderer.view(frame / rate), renderer.view((frame + 1) / rate)
    motion = renderer.motion(first, second)
    return FlowSample(
        first=picture(renderer, first, look),
        second=picture(renderer, second, look),
        flow=torch.where(motion.valid, motion.flow, 0.0),
        valid=motion.valid,
        occlusion=motion.occlusion,
        names=names,
    )


def depth_sample(renderer: Renderer, look: str = "clean", frame: int = 0) -> DepthSample:
    """A frame and its depth; the sky has none."""
    view = renderer.view(frame / renderer.scenes.rate)
    valid = view.depth < FARTHEST
    return DepthSample(
        image=picture(renderer, view, look),
        depth=torch.where(valid, view.depth, 0.0),
        valid=valid,
        intrinsics=intrinsics(renderer),
        names=renderer.scenes.names,
    )


def intrinsics(renderer: Renderer) -> Tensor:
    """Of the cameras: B x 3 x 3, pixels."""
    camera = renderer.scenes.camera
    matrix = torch.eye(3).repeat(renderer.scenes.count, 1, 1)
    matrix[:, 0, 0], matrix[:, 1, 1] = camera.focal.float().unbind(-1)
    matrix[:, :2, 2] = camera.centre.float()
    return sent(matrix, renderer.device)


def targets(renderer: Renderer, view: View) -> Tensor:
    """The instance to follow in each scene: its target if it has one, else that of which most is seen: B, int64."""
    if renderer.scenes.target:
        return torch.full((renderer.scenes.count,), renderer.scenes.target, device=renderer.device)
    return _seen(renderer, view).argmax(dim=1) + 1


def any_targets(renderer: Renderer, view: View, draws: Draws) -> Tensor:
    """As `targets`, but any of those that are neither small nor large, as likely as another: B, int64.

    Where there is none, the one that comes nearest to it. draws: of as many scenes.
    """
    if renderer.scenes.target:
        return targets(renderer, view)
    height, width = view.frame.size
    seen = _seen(renderer, view)
    luck = sent(draws.uniform("target", shape=(seen.shape[1],)).float(), renderer.device)
    logs = seen.clamp_min(0.5).log()
    small, large = max(FEWEST, SMALL * height * width), max(2 * FEWEST, LARGE * height * width)
    beyond = torch.maximum(math.log(small) - logs, logs - math.log(large))
    return torch.where(beyond <= 0, 1 + luck, -beyond).argmax(dim=1) + 1


def _seen(renderer: Renderer, view: View) -> Tensor:
    """Pixels that each instance 1, 2, ... has in a view: B x I."""
    shown = renderer.instances(view).flatten(1)
    known = int(renderer.scenes.primitives.instance.max())
    return torch.stack([(shown == instance).sum(dim=1) for instance in range(1, known + 1)], dim=1)


def track_clip(renderer: Renderer, look: str = "clean", *, frames: int, step: int = 1) -> TrackClip:
    """Frames, `step` apart, and one instance in each scene, by `targets` of the first frame."""
    return track_frames(renderer, look, [number / renderer.scenes.rate for number in range(0, frames * step, step)])


def track_frames(
    renderer: Renderer,
    look: str,
    times: Sequence[float | Tensor],
    chosen: Callable[[Renderer, View], Tensor] = targets,
) -> TrackClip:
    """The frames of these times, seconds (one for all scenes, or B), and an instance, as chosen in the first."""
    pictures, boxes, visible, target = [], [], [], None
    for time in times:
        view = renderer.view(time)
        target = chosen(renderer, view) if target is None else target
        pictures.append(picture(renderer, view, look))
        whole = renderer.whole(view.frame, target)
        boxes.append(renderer.box_of_whole(whole))
        seen = (renderer.instances(view) == target.view(-1, 1, 1, 1)).sum(dim=(1, 2, 3))
        visible.append(seen / whole.sum(dim=(1, 2, 3)).clamp_min(1))
    return TrackClip(
        frames=torch.stack(pictures, dim=1),
        boxes=torch.stack(boxes, dim=1),
        visible=torch.stack(visible, dim=1),
        names=renderer.scenes.names,
    )


def stability_clip(renderer: Renderer, look: str = "clean", *, frames: int, step: int = 1) -> StabilityClip:
    """Frames, `step` apart, of the shaky path and of the steady one, and the warp between them."""
    shaky, steady, warps, valid = [], [], [], []
    for number in range(0, frames * step, step):
        time = number / renderer.scenes.rate
        unstable, stable = renderer.view(time), renderer.view(time, steady=True)
        motion = renderer.motion(stable, unstable)
        shaky.append(picture(renderer, unstable, look))
        steady.append(picture(renderer, stable, look))
        warps.append(torch.where(motion.valid, motion.flow, 0.0))
        valid.append(motion.valid & ~motion.occlusion)
    return StabilityClip(
        unstable=torch.stack(shaky, dim=1),
        stable=torch.stack(steady, dim=1),
        warp=torch.stack(warps, dim=1),
        valid=torch.stack(valid, dim=1),
        names=renderer.scenes.names,
    )
