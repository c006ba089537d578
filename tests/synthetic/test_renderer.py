"""Renders match an independent double-precision computation from the scene description."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid, warp_back
from protoformer.synthetic.assembly import Material
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.renderer import Motion, Renderer, View
from protoformer.synthetic.scene import KINDS, NEAREST, MotionPath, Scenes
from protoformer.synthetic.surface import transport_points
from protoformer.synthetic.texture_bank import TextureBank

Compose = Callable[..., Scenes]
Dilated = Callable[[Tensor, int], Tensor]
SIZE = (64, 96)
GRAY = 255.0
WALL = {"kind": "rectangle", "position": (0.0, 0.0, 8.0), "extent": (90.0, 90.0, 1.0)}
EVEN = Material(repeat=(40.0, 40.0), contrast=(0.0, 0.0), tone=(0.5, 0.5), tint=0.0, gloss=0.0)


def value(path: MotionPath, time: float) -> Tensor:
    """A path's numbers at a time, term by term."""
    total = torch.zeros(path.powers.shape[:-1], dtype=torch.float64)
    for exponent in range(path.powers.shape[-1]):
        total = total + path.powers[..., exponent] * time**exponent
    for wave in range(path.amplitude.shape[-1]):
        angle = 2 * math.pi * path.frequency[..., wave] * time + path.phase[..., wave]
        total = total + path.amplitude[..., wave] * angle.sin()
    return total


def turn(vector: Tensor) -> Tensor:
    """The rotation by a vector, as the exponential of its cross product."""
    zero = torch.zeros_like(vector[..., 0])
    x, y, z = vector.unbind(-1)
    cross = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), dim=-1).unflatten(-1, (3, 3))
    return torch.matrix_exp(cross)


def eye_and_axes(scenes: Scenes, scene: int, time: float, steady: bool) -> tuple[Tensor, Tensor]:
    """Where a camera is, and its axes as columns, in the world."""
    camera = scenes.camera
    axes = turn(value(camera.turn, time)[scene]) @ camera.base[scene]
    eye = value(camera.position, time)[scene]
    if not steady:
        eye = eye + axes @ value(camera.shake, time)[scene]
        axes = axes @ turn(value(camera.shake_turn, time)[scene])
    return eye, axes


def waved(points: Tensor, ripple: Tensor, time: float, back: bool) -> Tensor:
    """Points N x 3 on flat things from the plane to the material, or back. ripple: N x 2 x 4."""
    x, y, z = points.unbind(-1)
    (a, b), (p, q) = ripple[..., 0].unbind(-1), ripple[..., 1].unbind(-1)
    f, g = (ripple[..., 2] + ripple[..., 3] * time).unbind(-1)
    if back:
        y = y - b * torch.sin(q * x + g)
        x = x - a * torch.sin(p * y + f)
    else:
        x = x + a * torch.sin(p * y + f)
        y = y + b * torch.sin(q * x + g)
    return torch.stack((x, y, z), dim=-1)


def true_target(
    scenes: Scenes, scene: int, index: Tensor, depth: Tensor, times: tuple[float, float], steady: tuple[bool, bool]
) -> Tensor:
    """Where the points that a scene's pixels show at one time (H x W primitives and depths) are at another: N x 3.

    (x, y) in pixels and the depth.
    """
    parts = scenes.primitives
    which, deep = index.flatten(), depth.flatten().double()
    focal, center = scenes.camera.focal[scene], scenes.camera.center[scene]
    grid = pixel_grid(*scenes.size).flatten(1).T.double()
    rays = torch.cat(((grid - center) / focal, torch.ones(len(grid), 1)), dim=1)
    eye, axes = eye_and_axes(scenes, scene, times[0], steady[0])
    points = (rays * deep[:, None]) @ axes.T + eye

    def pose(time: float) -> tuple[Tensor, Tensor, Tensor]:
        spun = turn(value(parts.spin, time)[scene])
        middle = value(parts.position, time)[scene] + (spun @ parts.offset[scene][..., None])[..., 0]
        extent = parts.extent[scene] * value(parts.stretch, time)[scene].exp()
        return (spun @ parts.base[scene])[which], middle[which], extent[which]

    axes_of_thing, middle, extent = pose(times[0])
    own = ((points - middle)[:, None] @ axes_of_thing)[:, 0] / extent
    flat = (which < sum(parts.counts[: KINDS.index("box")]))[:, None]
    ripple = parts.ripple[scene][which]
    own = torch.where(flat, waved(own, ripple, times[0], back=False), own)
    own = torch.where(flat, waved(own, ripple, times[1], back=True), own)
    axes_of_thing, middle, extent = pose(times[1])
    points = (axes_of_thing @ (own * extent)[..., None])[..., 0] + middle
    eye, axes = eye_and_axes(scenes, scene, times[1], steady[1])
    seen = (points - eye) @ axes
    return torch.cat((seen[:, :2] / seen[:, 2:] * focal + center, seen[:, 2:]), dim=1)


def flow_errors(renderer: Renderer, view: View, other: View, motion: Motion) -> Tensor:
    """How far the flow is from the truth, pixels: B x H x W, 0 where it is not valid."""
    scenes = renderer.scenes
    errors = []
    for scene in range(scenes.count):
        times = (float(view.frame.time[scene]), float(other.frame.time[scene]))
        steady = (view.frame.steady, other.frame.steady)
        target = true_target(scenes, scene, view.primitive[scene, 0], view.depth[scene, 0], times, steady)
        expected = (target[:, :2] - pixel_grid(*scenes.size).flatten(1).T.double()).T.unflatten(1, scenes.size)
        error = (motion.flow[scene].double() - expected).norm(dim=0)
        assert torch.equal(motion.valid[scene, 0], (target[:, 2] > NEAREST).unflatten(0, scenes.size))
        errors.append(torch.where(motion.valid[scene, 0], error, 0.0))
    return torch.stack(errors)


def two_views(renderer: Renderer) -> tuple[View, View]:
    return renderer.view(0.0), renderer.view(1 / renderer.scenes.fps)


@pytest.mark.parametrize("family", FAMILIES)
def test_depth_moved_by_the_true_motion_and_projected_is_the_flow(family: str, bank: TextureBank) -> None:
    renderer = SyntheticScenes(family, 1, SIZE, bank=bank).renderer([0, 1, 2, 17, 40, 123])
    first, second = two_views(renderer)
    later = renderer.view(4.0)
    for view, other in ((first, second), (second, first), (first, later)):
        motion = renderer.motion(view, other)
        errors = flow_errors(renderer, view, other, motion)
        assert errors[~motion.occlusion[:, 0]].max() < 1e-3
        # What passes close by the camera goes far beyond the image, and single precision has seven digits.
        assert errors[motion.flow.norm(dim=1) < 100].max() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_depth_moved_between_the_shaky_and_the_steady_camera_is_the_warp(family: str, bank: TextureBank) -> None:
    renderer = SyntheticScenes(family, 1, SIZE, shake=1.5, bank=bank).renderer([3, 4])
    shaky, steady = renderer.view(0.3), renderer.view(0.3, steady=True)
    motion = renderer.motion(steady, shaky)
    assert flow_errors(renderer, steady, shaky, motion)[~motion.occlusion[:, 0]].max() < 1e-3
    assert motion.flow.norm(dim=1).max() > 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_flow_there_and_back_returns_to_the_start(family: str, bank: TextureBank) -> None:
    renderer = SyntheticScenes(family, 2, SIZE, bank=bank).renderer(range(8))
    first, second = two_views(renderer)
    for view, other in ((first, second), (second, first)):
        forward, valid, occluded = renderer.moved(view.hits, pixel_grid(*SIZE).flatten(1)[None], other.frame)
        target = pixel_grid(*SIZE).flatten(1)[None] + forward
        landed = renderer.cast(other.frame, target)  # between pixels, where the flow ends
        back, _, _ = renderer.moved(landed, target, view.frame)
        gap = (forward + back).norm(dim=1)
        # At the very edge of a thing a ray may just miss it; and behind a limb the other side is hardly deeper.
        deep = transport_points(view.hits, other.frame)[2]
        same = (landed.index == view.hits.index) & ((landed.depth / deep - 1).abs() < 3e-5)
        shown = (valid & ~occluded)[:, 0]
        assert gap[shown & same].max() < 1e-2
        assert (shown & ~same).sum() <= 3e-4 * shown.sum()
        assert shown.float().mean() > 0.3


@pytest.mark.parametrize("family", FAMILIES)
def test_frame_two_seen_along_the_flow_is_frame_one(family: str, bank: TextureBank, dilated: Dilated) -> None:
    size = (184, 248)
    renderer = SyntheticScenes(family, 3, size, bank=bank).renderer(range(3))
    first, second = two_views(renderer)
    motion = renderer.motion(first, second)
    image = renderer.clean(first)
    warped = (warp_back(renderer.clean(second), motion.flow) - image).abs().mean(dim=1, keepdim=True)
    # Bilinear samples mix both sides of an edge, so they count only away from what is hidden and from the border.
    border = torch.ones_like(motion.occlusion)
    border[..., 2:-2, 2:-2] = False
    counts = ~dilated(motion.occlusion | border, 2)
    assert counts.float().mean() > 0.3
    means = [float(GRAY * warped[scene][counts[scene]].mean()) for scene in range(3)]
    assert sum(means) / 3 < 2, means
    # Without interpolation, nothing is left but the change of the textures' level of detail.
    landed = renderer.cast(second.frame, (pixel_grid(*size) + motion.flow).flatten(2))
    exact = first.map(renderer._constant_color(landed) - renderer._constant_color(first.hits))
    for scene in range(3):
        assert GRAY * exact[scene].abs().mean(dim=0)[counts[scene, 0]].mean() < 1.5


def closed_form(scenes: Scenes, bank: TextureBank) -> tuple[Tensor, Tensor, Tensor]:
    """The flow of a scene, and the rays of its pixels, x and y: B x 2 x H x W and H x W."""
    renderer = Renderer(scenes, bank)
    first, second = two_views(renderer)
    grid = pixel_grid(*scenes.size).double()
    x, y = (grid - scenes.camera.center[0].view(2, 1, 1)) / scenes.camera.focal[0].view(2, 1, 1)
    return renderer.motion(first, second).flow[0].double(), x, y


def expect(flow: Tensor, x: Tensor, y: Tensor) -> None:
    torch.testing.assert_close(flow, torch.stack((x, y)), atol=1e-3, rtol=0)


@pytest.mark.parametrize("angle", [-0.1, 0.003, 0.4])
def test_a_pan_is_the_homography_of_a_turn_about_the_vertical(
    angle: float, compose: Compose, bank: TextureBank
) -> None:
    scenes = compose({**WALL, "kind": "ball", "extent": (9.0, 9.0, 1.0)}, WALL, turn=[(0, 0, 0), (0, angle, 0)])
    flow, x, y = closed_form(scenes, bank)
    forward = x * math.sin(angle) + math.cos(angle)
    expect(flow, 60 * ((x * math.cos(angle) - math.sin(angle)) / forward - x), 60 * (y / forward - y))


def test_a_tilt_is_the_homography_of_a_turn_about_the_horizontal(compose: Compose, bank: TextureBank) -> None:
    flow, x, y = closed_form(compose(WALL, turn=[(0, 0, 0), (0.1, 0, 0)], focal=(60.0, 50.0)), bank)
    forward = math.cos(0.1) - y * math.sin(0.1)
    expect(flow, 60 * (x / forward - x), 50 * ((y * math.cos(0.1) + math.sin(0.1)) / forward - y))


@pytest.mark.parametrize("depth", [3.0, 8.0, 40.0])
def test_a_step_aside_moves_a_wall_in_proportion_to_its_nearness(
    depth: float, compose: Compose, bank: TextureBank
) -> None:
    scenes = compose({**WALL, "position": (0, 0, depth)}, eye=[(0, 0, 0), (0.5, -0.25, 0)], focal=(60.0, 80.0))
    flow, x, _ = closed_form(scenes, bank)
    expect(flow, torch.full_like(x, -60 * 0.5 / depth), torch.full_like(x, 80 * 0.25 / depth))


@pytest.mark.parametrize("step", [-2.0, 0.1, 4.0])
def test_an_approach_is_a_zoom_about_the_center_whatever_the_lens(
    step: float, compose: Compose, bank: TextureBank
) -> None:
    for focal, center in (((60.0, 60.0), None), ((30.0, 45.0), (20.0, 30.0))):
        flow, x, y = closed_form(compose(WALL, eye=[(0, 0, 0), (0, 0, step)], focal=focal, center=center), bank)
        growth = step / (8 - step)
        expect(flow, focal[0] * x * growth, focal[1] * y * growth)


@pytest.mark.parametrize("angle", [-1.0, 0.01, 2.0])
def test_a_roll_turns_the_image_about_its_center(angle: float, compose: Compose, bank: TextureBank) -> None:
    flow, x, y = closed_form(compose(WALL, turn=[(0, 0, 0), (0, 0, angle)]), bank)
    cos, sin = math.cos(angle), math.sin(angle)
    expect(flow, 60 * (cos * x + sin * y - x), 60 * (cos * y - sin * x - y))


def test_a_thing_that_swells_and_spins_moves_about_its_middle(compose: Compose, bank: TextureBank) -> None:
    growth = math.log(1.2)
    thing = {**WALL, "spin": [(0, 0, 0), (0, 0, 0.3)], "stretch": [(0, 0, 0), (growth, growth, 0)]}
    flow, x, y = closed_form(compose(thing), bank)
    cos, sin = 1.2 * math.cos(0.3), 1.2 * math.sin(0.3)
    expect(flow, 60 * (cos * x - sin * y - x), 60 * (sin * x + cos * y - y))


def test_a_part_turns_about_the_body_it_belongs_to(compose: Compose, bank: TextureBank) -> None:
    # The part stands one meter right of the body; half a turn takes it one meter left.
    part = {"kind": "rectangle", "position": (0, 0, 6.0), "offset": (1.0, 0, 0), "extent": (0.2, 0.2, 1.0)}
    renderer = Renderer(compose({**part, "spin": [(0, 0, 0), (0, 0, math.pi)], "instance": 1}, WALL), bank)
    boxes = [renderer.boxes(view)[0, 0] for view in two_views(renderer)]
    middles = [float(box[0] + 0.5 * (box[2] - 1)) for box in boxes]
    assert middles == pytest.approx([31.5 + 10, 31.5 - 10])


@pytest.mark.parametrize("depth", [6.0, 7.96])  # far before the wall, and only just
def test_occlusion_is_what_the_nearer_thing_comes_to_cover(depth: float, compose: Compose, bank: TextureBank) -> None:
    scale = depth / 6
    patch = {
        "kind": "rectangle",
        "position": [(0, 0, depth), (0.6 * scale, 0.3 * scale, 0)],
        "extent": (1.04 * scale, 0.54 * scale, 1.0),
        "instance": 1,
    }
    renderer = Renderer(compose(patch, WALL), bank)
    first, second = two_views(renderer)
    motion = renderer.motion(first, second)
    before, after = renderer.instances(first) == 1, renderer.instances(second) == 1
    assert torch.equal(motion.occlusion, after & ~before)
    moved = torch.tensor([6.0, 3.0]).view(1, 2, 1, 1)
    torch.testing.assert_close(motion.flow, torch.where(before, moved, 0.0), atol=1e-4, rtol=0)


def test_what_comes_behind_the_camera_has_no_flow(compose: Compose, bank: TextureBank) -> None:
    patch = {"kind": "rectangle", "position": [(0, 0, 2.0), (0, 0, -3.0)], "extent": (0.3, 0.3, 1.0), "instance": 1}
    renderer = Renderer(compose(patch, WALL), bank)
    first, second = two_views(renderer)
    motion = renderer.motion(first, second)
    gone = renderer.instances(first) == 1
    assert gone.any()
    assert torch.equal(motion.valid, ~gone)
    assert torch.equal(motion.occlusion, gone)
    assert motion.flow.isfinite().all()


def extent(mask: Tensor) -> list[float]:
    """The box of a mask, H x W: (x, y, w, h)."""
    rows, columns = mask.any(dim=1).nonzero()[:, 0], mask.any(dim=0).nonzero()[:, 0]
    left, top = int(columns[0]), int(rows[0])
    return [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1]


@pytest.mark.parametrize("family", ["objects", "drive", "chase"])
def test_boxes_are_the_extents_of_masks(family: str, bank: TextureBank) -> None:
    renderer = SyntheticScenes(family, 4, SIZE, bank=bank).renderer(range(4))
    view = renderer.view(0.5)
    instances, boxes = renderer.instances(view), renderer.boxes(view)
    height, width = SIZE
    seen = 0
    for number in range(1, boxes.shape[1] + 1):
        masks = instances[:, 0] == number
        whole, amodal_box = renderer.amodal_mask(view.frame, number)[:, 0], renderer.amodal_box(view.frame, number)
        inner = whole[:, height // 2 : height // 2 + height, width // 2 : width // 2 + width]
        assert not (masks & ~inner).any()
        for scene in range(4):
            box = boxes[scene, number - 1]
            if not masks[scene].any():
                assert box.isnan().all()
                assert amodal_box[scene].isnan().all() == (not whole[scene].any())
                continue
            seen += 1
            assert box.tolist() == extent(masks[scene])
            large = extent(whole[scene])
            assert amodal_box[scene].tolist() == [large[0] - width // 2, large[1] - height // 2, *large[2:]]
            assert (amodal_box[scene][:2] <= box[:2]).all()
            assert (amodal_box[scene][:2] + amodal_box[scene][2:] >= box[:2] + box[2:]).all()
            if int(masks[scene].sum()) == int(whole[scene].sum()):
                assert amodal_box[scene].tolist() == box.tolist()
    assert seen >= 4


def test_the_whole_box_goes_on_behind_others_and_beyond_the_border(compose: Compose, bank: TextureBank) -> None:
    # 60 pixels a meter at 1 m: a patch of 2 x 1 m at 5 m is 24 x 12 pixels, its middle at x = 31.5 or 12 less a second.
    patch = {
        "kind": "rectangle",
        "position": [(0, 0, 5.0), (-1.0, 0, 0)],
        "extent": (1.0, 0.5, 1.0),
        "instance": 1,
    }
    post = {"kind": "box", "position": (-1.0, 0, 3.0), "extent": (0.75, 2.0, 0.1)}
    renderer = Renderer(compose(patch, post, WALL), bank)
    boxes = [renderer.amodal_box(renderer.scenes.frame(time), 1)[0].tolist() for time in (0.0, 1.0, 3.0, 8.0)]
    assert boxes[0] == [20, 18, 24, 12]
    assert boxes[1] == [8, 18, 24, 12]
    assert boxes[2] == [-16, 18, 24, 12]
    assert all(math.isnan(number) for number in boxes[3])
    # The post's front, at 2.9 m, ends at x = 31.5 - 60 * 0.25 / 2.9 or 26.3.
    assert renderer.boxes(renderer.view(0.0))[0, 0].tolist() == [27, 18, 17, 12]
