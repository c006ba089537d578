"""What each task learns from: batches of one world, with their truth."""

import torch
from torch import Tensor

from protoformer.world.render import Renderer, View
from protoformer.world.sample import DepthSample, FlowSample, StabilityClip, TrackClip

FARTHEST = 500.0
"""Metres; beyond, there is only the sky, whose depth nobody should learn."""
PASSES = ("clean", "final")


def picture(renderer: Renderer, view: View, look: str) -> Tensor:
    """One pass of a view: B x 3 x H x W."""
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
    return matrix.to(renderer.device)


def track_clip(renderer: Renderer, frames: int, look: str = "clean", instance: int = 1, step: int = 1) -> TrackClip:
    """Frames, `step` apart, and one instance in them."""
    pictures, boxes, visible = [], [], []
    for number in range(0, frames * step, step):
        view = renderer.view(number / renderer.scenes.rate)
        pictures.append(picture(renderer, view, look))
        boxes.append(renderer.whole_box(view.frame, instance))
        seen = (renderer.instances(view) == instance).sum(dim=(1, 2, 3))
        visible.append(seen / renderer.whole(view.frame, instance).sum(dim=(1, 2, 3)).clamp_min(1))
    return TrackClip(
        frames=torch.stack(pictures, dim=1),
        boxes=torch.stack(boxes, dim=1),
        visible=torch.stack(visible, dim=1),
        names=renderer.scenes.names,
    )


def stability_clip(renderer: Renderer, frames: int, look: str = "clean", step: int = 1) -> StabilityClip:
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
