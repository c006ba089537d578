"""What each task learns from: batches of one world, with their truth."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.motion_fields import CELL, Trajectories, cell_centers, trusted_tracks
from protoformer.geometry.warps import inside_image
from protoformer.synthetic.renderer import Motion, Renderer, View
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample, StabilityClip, TrackClip
from protoformer.synthetic.scene import Frame, to_device
from protoformer.synthetic.surface import Hits

FARTHEST = 500.0
"""Meters; beyond, there is only the sky, whose depth nobody should learn."""
PASSES = ("clean", "final")
SMALL, LARGE = 0.003, 0.06
"""Shares of an image's pixels between which a target is of a size that leaves room to look for it."""
FEWEST = 64
"""Pixels below which a target is small however few the image has."""


def render_image(renderer: Renderer, view: View, look: str) -> Tensor:
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
        first=render_image(renderer, first, look),
        second=render_image(renderer, second, look),
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
        image=render_image(renderer, view, look),
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
    matrix[:, :2, 2] = camera.center.float()
    return to_device(matrix, renderer.device)


def targets(renderer: Renderer, view: View) -> Tensor:
    """The instance to follow in each scene: its target if it has one, else that of which most is seen: B, int64."""
    if renderer.scenes.target:
        return torch.full((renderer.scenes.count,), renderer.scenes.target, device=renderer.device)
    return _seen(renderer, view).argmax(dim=1) + 1


def any_targets(renderer: Renderer, view: View, draws: SceneRandom) -> Tensor:
    """As `targets`, but any of those that are neither small nor large, as likely as another: B, int64.

    Where there is none, the one that comes nearest to it. draws: of as many scenes.
    """
    if renderer.scenes.target:
        return targets(renderer, view)
    height, width = view.frame.size
    seen = _seen(renderer, view)
    luck = to_device(draws.uniform("target", shape=(seen.shape[1],)).float(), renderer.device)
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
        pictures.append(render_image(renderer, view, look))
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
        shaky.append(render_image(renderer, unstable, look))
        steady.append(render_image(renderer, stable, look))
        warps.append(torch.where(motion.valid, motion.flow, 0.0))
        valid.append(motion.valid & ~motion.occlusion)
    return StabilityClip(
        unstable=torch.stack(shaky, dim=1),
        stable=torch.stack(steady, dim=1),
        warp=torch.stack(warps, dim=1),
        valid=torch.stack(valid, dim=1),
        names=renderer.scenes.names,
    )


LOOKS = 12
"""Frames from one to the next of those in which it is asked whether something stands before a place."""
TOGETHER = 32
"""Frames that are made at once: a GPU is asked a few times for much, not often for little."""


def true_trajectories(renderer: Renderer, frames: Sequence[Frame], now: int) -> Trajectories:
    """Trails through all frames as seen from frame `now` of them; trusted as long as they are seen, 0 or 1.

    As a chain of motions would, a trail ends where it leaves the frame or is hidden, even if it comes back.
    """
    (height, width), count = frames[now].size, renderer.scenes.count
    centers = cell_centers((height, width), renderer.device).flatten(1).expand(count, -1, -1)
    hit = renderer.meet(frames[now], centers)
    groups = [frames[start : start + TOGETHER] for start in range(0, len(frames), TOGETHER)]
    targets, within = zip(*(_reached(renderer, hit, centers, group) for group in groups), strict=True)
    places, seen = torch.cat(targets, dim=1) - centers[:, None], torch.cat(within, dim=1)
    for number in range(now % LOOKS, len(frames), LOOKS):
        if number != now:
            seen[:, number] &= ~renderer.moved(hit, centers, frames[number])[2]
    trust = outward(seen.float(), now)
    cells = (height // CELL, width // CELL)
    return trusted_tracks(places.unflatten(-1, cells), trust.unflatten(-1, cells))


def _reached(renderer: Renderer, hit: Hits, positions: Tensor, frames: Sequence[Frame]) -> tuple[Tensor, Tensor]:
    """Where what was met at positions (B x 2 x N) lies in T frames, pixels, B x T x 2 x N, and whether that is ahead of
    the camera and within the frame, hidden or not, B x T x 1 x N.
    """
    many, first = len(frames), frames[0]
    joined = replace(first, table=torch.cat([frame.table for frame in frames], dim=1), lens=first.lens.repeat(many, 1))
    here = replace(hit.frame, table=hit.frame.table.repeat(1, many, 1))
    hits = Hits(here, hit.index.repeat(many, 1), hit.depth.repeat(many, 1), hit.ray.repeat(1, many, 1))
    target, _, ahead = renderer.project_hits(hits, positions.repeat(many, 1, 1), joined)
    within = ahead[:, None] & inside_image(target[:, :, None], *first.size)[:, :, 0]
    return target.unflatten(0, (many, -1)).transpose(0, 1), within.unflatten(0, (many, -1)).transpose(0, 1)


def true_warp(renderer: Renderer, steady: Frame, shaky: Frame) -> Motion:
    """From the centers of the cells of a steady frame to the shaky one of the same moment: N x 2 x h x w, pixels."""
    centers = cell_centers(steady.size, renderer.device)
    positions = centers.flatten(1).expand(renderer.scenes.count, -1, -1)
    flow, valid, unseen = renderer.moved(renderer.meet(steady, positions), positions, shaky)
    cells = tuple(centers.shape[1:])
    return Motion(flow.unflatten(-1, cells), valid.unflatten(-1, cells), unseen.unflatten(-1, cells))


def outward(shares: Tensor, now: int) -> Tensor:
    """Products of shares, B x T x ..., from frame now on to each frame, on both sides; 1 at now."""
    after = shares[:, now + 1 :].cumprod(dim=1)
    before = shares[:, :now].flip(1).cumprod(dim=1).flip(1)
    return torch.cat((before, torch.ones_like(shares[:, :1]), after), dim=1)
