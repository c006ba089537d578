"""Ground-truth batches for each task, rendered from synthetic scenes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.motion_fields import CELL, Trajectories, build_trajectories, cell_centers
from protoformer.geometry.warps import inside_image
from protoformer.synthetic.renderer import Motion, Renderer, View
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import DepthSample, FlowSample, StabilityClip, TrackClip
from protoformer.synthetic.scene import Frame, to_device
from protoformer.synthetic.surface import Hits

MAX_DEPTH = 500.0
"""Maximum valid depth, meters; beyond it there is only the sky."""
PASSES = ("clean", "final")
"""Names of the render passes."""
SMALL, LARGE = 0.003, 0.06
"""Fractions of the image's pixels between which a target is neither small nor large."""
MIN_TARGET_PIXELS = 64
"""Minimum number of pixels of a target that is not small, regardless of the image size."""


def render_image(renderer: Renderer, view: View, render_pass: str) -> Tensor:
    """Render the pass "clean" or "final" of a view: B x 3 x H x W."""
    if render_pass not in PASSES:
        raise InputError(f"there is no pass called {render_pass!r}; choose clean or final.")
    return renderer.final(view) if render_pass == "final" else renderer.clean(view)


def flow_sample(renderer: Renderer, render_pass: str = "clean", frame: int = 0) -> FlowSample:
    """Render a frame, the next one, and the flow between them."""
    rate, names = renderer.scenes.fps, renderer.scenes.names
    first, second = renderer.view(frame / rate), renderer.view((frame + 1) / rate)
    motion = renderer.motion(first, second)
    return FlowSample(
        first=render_image(renderer, first, render_pass),
        second=render_image(renderer, second, render_pass),
        flow=torch.where(motion.valid, motion.flow, 0.0),
        valid=motion.valid,
        occlusion=motion.occlusion,
        instances=renderer.instances(first),
        names=names,
    )


def depth_sample(renderer: Renderer, render_pass: str = "clean", frame: int = 0) -> DepthSample:
    """Render a frame and its depth; the sky is not valid."""
    view = renderer.view(frame / renderer.scenes.fps)
    valid = view.depth < MAX_DEPTH
    return DepthSample(
        image=render_image(renderer, view, render_pass),
        depth=torch.where(valid, view.depth, 0.0),
        valid=valid,
        intrinsics=intrinsics(renderer),
        instances=renderer.instances(view),
        names=renderer.scenes.names,
    )


def intrinsics(renderer: Renderer) -> Tensor:
    """Return the camera intrinsics: B x 3 x 3, pixels."""
    camera = renderer.scenes.camera
    matrix = torch.eye(3).repeat(renderer.scenes.count, 1, 1)
    matrix[:, 0, 0], matrix[:, 1, 1] = camera.focal.float().unbind(-1)
    matrix[:, :2, 2] = camera.center.float()
    return to_device(matrix, renderer.device)


def targets(renderer: Renderer, view: View) -> Tensor:
    """Return the instance to track in each scene, its target or the one with most visible pixels: B, int64."""
    if renderer.scenes.target:
        return torch.full((renderer.scenes.count,), renderer.scenes.target, device=renderer.device)
    return _visible_pixels(renderer, view).argmax(dim=1) + 1


def sample_targets(renderer: Renderer, view: View, draws: SceneRandom) -> Tensor:
    """Draw the instance to track in each scene, B, uniformly from those that are neither small nor large in a view.

    A scene without such an instance gets the one whose size comes closest; a scene with a target gets its target.
    """
    if renderer.scenes.target:
        return targets(renderer, view)
    height, width = view.frame.size
    num_visible = _visible_pixels(renderer, view)
    tie_break = to_device(draws.uniform("target", shape=(num_visible.shape[1],)).float(), renderer.device)
    log_visible = num_visible.clamp_min(0.5).log()
    small, large = max(MIN_TARGET_PIXELS, SMALL * height * width), max(2 * MIN_TARGET_PIXELS, LARGE * height * width)
    log_excess = torch.maximum(math.log(small) - log_visible, log_visible - math.log(large))
    return torch.where(log_excess <= 0, 1 + tie_break, -log_excess).argmax(dim=1) + 1


def _visible_pixels(renderer: Renderer, view: View) -> Tensor:
    """Count the visible pixels of each instance 1, 2, ... in a view: B x I."""
    instances = renderer.instances(view).flatten(1)
    num_instances = int(renderer.scenes.primitives.instance.max())
    return torch.stack([(instances == instance).sum(dim=1) for instance in range(1, num_instances + 1)], dim=1)


def track_clip(renderer: Renderer, render_pass: str = "clean", *, frames: int, step: int = 1) -> TrackClip:
    """Render frames `step` apart and one target per scene, chosen by `targets` in the first frame."""
    return track_frames(renderer, render_pass, [index / renderer.scenes.fps for index in range(0, frames * step, step)])


def track_frames(
    renderer: Renderer,
    render_pass: str,
    times: Sequence[float | Tensor],
    choose_target: Callable[[Renderer, View], Tensor] = targets,
) -> TrackClip:
    """Render frames and the boxes of one target per scene.

    Args:
        renderer: Renderer of the scenes.
        render_pass: "clean" or "final".
        times: Seconds, each one value for all scenes or B.
        choose_target: Function from (renderer, first view) to the instances to track, B.
    """
    images, boxes, visible, target = [], [], [], None
    for time in times:
        view = renderer.view(time)
        target = choose_target(renderer, view) if target is None else target
        images.append(render_image(renderer, view, render_pass))
        amodal_mask = renderer.amodal_mask(view.frame, target)
        boxes.append(renderer.mask_box(amodal_mask))
        num_visible = (renderer.instances(view) == target.view(-1, 1, 1, 1)).sum(dim=(1, 2, 3))
        visible.append(num_visible / amodal_mask.sum(dim=(1, 2, 3)).clamp_min(1))
    return TrackClip(
        frames=torch.stack(images, dim=1),
        boxes=torch.stack(boxes, dim=1),
        visible=torch.stack(visible, dim=1),
        names=renderer.scenes.names,
    )


def stability_clip(renderer: Renderer, render_pass: str = "clean", *, frames: int, step: int = 1) -> StabilityClip:
    """Render frames `step` apart of the shaky and of the steady path, and the warps between them."""
    shaky, steady, warps, valid = [], [], [], []
    for index in range(0, frames * step, step):
        time = index / renderer.scenes.fps
        unstable, stable = renderer.view(time), renderer.view(time, steady=True)
        motion = renderer.motion(stable, unstable)
        shaky.append(render_image(renderer, unstable, render_pass))
        steady.append(render_image(renderer, stable, render_pass))
        warps.append(torch.where(motion.valid, motion.flow, 0.0))
        valid.append(motion.valid & ~motion.occlusion)
    return StabilityClip(
        unstable=torch.stack(shaky, dim=1),
        stable=torch.stack(steady, dim=1),
        warp=torch.stack(warps, dim=1),
        valid=torch.stack(valid, dim=1),
        names=renderer.scenes.names,
    )


OCCLUSION_STRIDE = 12
"""Frames between occlusion tests of trajectories."""
FRAMES_PER_BATCH = 32
"""Frames processed at once; fewer, larger GPU launches are faster."""


def true_trajectories(renderer: Renderer, frames: Sequence[Frame], now: int) -> Trajectories:
    """Compute exact trajectories through T frames from the cell centers of frame `now`.

    The confidence is 1 while a point is visible and 0 afterwards. As in a chain of flows, a trajectory ends where it
    leaves the image or is occluded, even if it becomes visible again. Occlusion is tested every OCCLUSION_STRIDE
    frames.
    """
    (height, width), count = frames[now].size, renderer.scenes.count
    centers = cell_centers((height, width), renderer.device).flatten(1).expand(count, -1, -1)
    hit = renderer.cast(frames[now], centers)
    groups = [frames[start : start + FRAMES_PER_BATCH] for start in range(0, len(frames), FRAMES_PER_BATCH)]
    targets, inside = zip(*(_project_to_frames(renderer, hit, centers, group) for group in groups), strict=True)
    displacements, visible = torch.cat(targets, dim=1) - centers[:, None], torch.cat(inside, dim=1)
    for index in range(now % OCCLUSION_STRIDE, len(frames), OCCLUSION_STRIDE):
        if index != now:
            visible[:, index] &= ~renderer.moved(hit, centers, frames[index])[2]
    confidence = propagate_confidence(visible.float(), now)
    cells = (height // CELL, width // CELL)
    return build_trajectories(displacements.unflatten(-1, cells), confidence.unflatten(-1, cells))


def _project_to_frames(
    renderer: Renderer, hit: Hits, positions: Tensor, frames: Sequence[Frame]
) -> tuple[Tensor, Tensor]:
    """Project hits of rays through positions (B x 2 x N, pixels) into T frames, whether occluded there or not.

    Returns image positions, B x T x 2 x N, pixels, and whether they are in front of the camera and inside the image, B
    x T x 1 x N.
    """
    num_frames, first = len(frames), frames[0]
    joined = replace(
        first, table=torch.cat([frame.table for frame in frames], dim=1), lens=first.lens.repeat(num_frames, 1)
    )
    source_frame = replace(hit.frame, table=hit.frame.table.repeat(1, num_frames, 1))
    hits = Hits(
        source_frame, hit.index.repeat(num_frames, 1), hit.depth.repeat(num_frames, 1), hit.ray.repeat(1, num_frames, 1)
    )
    target, _, ahead = renderer.project_hits(hits, positions.repeat(num_frames, 1, 1), joined)
    inside = ahead[:, None] & inside_image(target[:, :, None], *first.size)[:, :, 0]
    return target.unflatten(0, (num_frames, -1)).transpose(0, 1), inside.unflatten(0, (num_frames, -1)).transpose(0, 1)


def true_warp(renderer: Renderer, steady: Frame, shaky: Frame) -> Motion:
    """Compute the warp from the cell centers of a steady frame to the shaky one: N x 2 x h x w, pixels."""
    centers = cell_centers(steady.size, renderer.device)
    positions = centers.flatten(1).expand(renderer.scenes.count, -1, -1)
    flow, valid, occluded = renderer.moved(renderer.cast(steady, positions), positions, shaky)
    cells = tuple(centers.shape[1:])
    return Motion(flow.unflatten(-1, cells), valid.unflatten(-1, cells), occluded.unflatten(-1, cells))


def propagate_confidence(factors: Tensor, now: int) -> Tensor:
    """Compute cumulative products of factors, B x T x ..., from frame `now` in both directions; 1 at `now`."""
    after = factors[:, now + 1 :].cumprod(dim=1)
    before = factors[:, :now].flip(1).cumprod(dim=1).flip(1)
    return torch.cat((before, torch.ones_like(factors[:, :1]), after), dim=1)
