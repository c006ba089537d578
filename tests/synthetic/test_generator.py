"""Scenes addressed by index, and the batches of each task."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from protoformer.errors import InputError
from protoformer.geometry.warps import warp_back
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import (
    SceneStream,
    SyntheticScenes,
    depth_stream,
    flow_stream,
    stability_stream,
    track_stream,
)
from protoformer.synthetic.ground_truth import depth_sample, flow_sample, stability_clip, track_clip
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.samples import FlowSample
from protoformer.synthetic.scene import MotionPath, Scenes
from protoformer.synthetic.texture_bank import TextureBank

Compose = Callable[..., Scenes]
SIZE = (48, 64)
WALL = {"kind": "rectangle", "position": (0.0, 0.0, 8.0), "extent": (90.0, 90.0, 1.0)}


def numbers(part: object) -> dict[str, Tensor]:
    """Every tensor of a scene by its attribute path."""
    tensors: dict[str, Tensor] = {}
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif dataclasses.is_dataclass(value):
            tensors.update({f"{field.name}.{name}": tensor for name, tensor in numbers(value).items()})
    return tensors


def make_scenes(family: str, bank: TextureBank, seed: int = 0, **options: float) -> SyntheticScenes:
    return SyntheticScenes(family, seed, SIZE, bank=bank, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_scene_is_the_same_in_any_batch(family: str, bank: TextureBank) -> None:
    family_scenes = make_scenes(family, bank)
    many, few = family_scenes.scenes([7, 3, 11]), family_scenes.scenes([3])
    assert many.names[1] == few.names[0] == f"{family}-0-000003"
    of_many, of_few = numbers(many), numbers(few)
    assert of_many.keys() == of_few.keys() and len(of_few) > 40
    for name, tensor in of_few.items():
        # A sine may end in another bit at another place of a vector; chance itself may not.
        torch.testing.assert_close(of_many[name][1:2], tensor, rtol=1e-13, atol=1e-13, msg=name)
    together, alone = (Renderer(scenes, bank) for scenes in (many, few))
    one, other = flow_sample(together), flow_sample(alone)
    for field in ("flow", "first", "second"):
        torch.testing.assert_close(getattr(one, field)[1:2], getattr(other, field), rtol=0, atol=1e-4)
    depth, single = depth_sample(together, "final"), depth_sample(alone, "final")
    torch.testing.assert_close(depth.depth[1:2], single.depth, rtol=1e-5, atol=0)
    assert (depth.image[1:2] - single.image).abs().mean() < 1e-4  # a last bit can turn a rounding of the codec


@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_and_indices_make_different_scenes(family: str, bank: TextureBank) -> None:
    one = make_scenes(family, bank).renderer([3, 4])
    other = make_scenes(family, bank, seed=1).renderer([3])
    images = one.clean(one.view(0.0))
    assert (images[0] - images[1]).abs().mean() > 0.01
    assert (images[0] - other.clean(other.view(0.0))[0]).abs().mean() > 0.01


def test_the_final_pass_is_the_same_again(bank: TextureBank) -> None:
    family_scenes = make_scenes("handheld", bank)
    first, again = (flow_sample(family_scenes.renderer([5, 9]), "final") for _ in range(2))
    assert torch.equal(first.first, again.first) and torch.equal(first.second, again.second)


def test_an_unknown_family_or_a_tiny_image_is_refused(bank: TextureBank) -> None:
    with pytest.raises(InputError, match="did you mean drive"):
        SyntheticScenes("driv", bank=bank)
    with pytest.raises(InputError, match="at least 16"):
        SyntheticScenes("drive", size=(8, 100), bank=bank)


def test_a_stream_goes_through_the_scenes_in_order(bank: TextureBank) -> None:
    stream = flow_stream(make_scenes("room", bank), 2, final=0.0)
    batches = list(itertools.islice(stream, 3))
    assert [batch.names for batch in batches] == [
        tuple(f"room-0-{index:06d}" for index in pair) for pair in ((0, 1), (2, 3), (4, 5))
    ]
    again = next(iter(flow_stream(make_scenes("room", bank), 2, final=0.0, start=2)))
    assert again.names == batches[2].names
    assert torch.equal(again.first, batches[2].first) and torch.equal(again.flow, batches[2].flow)


def names_of(stream: SceneStream[FlowSample], count: int) -> list[tuple[str, ...]]:
    return [batch.names for batch in itertools.islice(stream, count)]


def named(renderer: Renderer, render_pass: str) -> FlowSample:
    """A batch of names alone, so that a stream can be followed for long."""
    empty = torch.zeros(renderer.scenes.count)
    return FlowSample(first=empty, second=empty, flow=empty, valid=empty, names=(*renderer.scenes.names, render_pass))


def test_parts_of_a_stream_share_it_out(bank: TextureBank) -> None:
    family_scenes = make_scenes("room", bank)
    whole = names_of(SceneStream(family_scenes, named, 1, start=1), 9)
    parts = [names_of(SceneStream(family_scenes, named, 1, start=1, part=(number, 3)), 3) for number in range(3)]
    assert [parts[turn % 3][turn // 3] for turn in range(9)] == whole


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_so_many_batches_of_every_part_are_of_the_final_pass(share: float, parts: int, bank: TextureBank) -> None:
    for number in range(parts):
        stream = SceneStream(make_scenes("room", bank), named, 1, final=share, part=(number, parts))
        passes = [names[-1] for names in names_of(stream, 40)]
        assert passes.count("final") == pytest.approx(40 * share, abs=3 * (0 < share < 1))


def test_a_part_comes_in_the_same_order_from_any_number_of_workers(bank: TextureBank) -> None:
    orders = []
    for workers in (0, 1, 2):
        stream = SceneStream(make_scenes("room", bank), named, 1, part=(1, 2), start=3)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        orders.append([batch.names for batch in itertools.islice(loader, 7)])
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 1, "final": 1.5},
        {"batch_size": 1, "start": -1},
        {"batch_size": 1, "part": (2, 2)},
    ],
)
def test_a_stream_that_cannot_be_is_refused(options: dict[str, Any], bank: TextureBank) -> None:
    with pytest.raises(InputError, match="invalid stream options"):
        SceneStream(make_scenes("room", bank), named, **options)


def test_a_pass_that_is_not_there_is_refused(bank: TextureBank) -> None:
    with pytest.raises(InputError, match="no pass called 'Final'"):
        flow_sample(make_scenes("room", bank).renderer([0]), "Final")


def test_workers_render_the_same_batches(bank: TextureBank) -> None:
    def collected(workers: int) -> dict[tuple[str, ...], FlowSample]:
        stream = flow_stream(SyntheticScenes("room", 0, (32, 48), bank=bank), 2)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        return {batch.names: batch for batch in itertools.islice(loader, 4)}

    here, elsewhere = collected(0), collected(2)
    assert here.keys() == elsewhere.keys() and len(here) == 4
    for names, batch in here.items():
        for field in ("first", "second", "flow", "valid", "occlusion"):
            assert torch.equal(getattr(batch, field), getattr(elsewhere[names], field)), field


def test_workers_of_several_machines_divide_further(bank: TextureBank) -> None:
    seen = []
    for number in range(2):
        stream = SceneStream(make_scenes("room", bank), named, 1, part=(number, 2))
        loader = DataLoader(stream, batch_size=None, num_workers=2)
        seen += [batch.names[0] for batch in itertools.islice(loader, 4)]
    assert sorted(seen) == [f"room-0-{index:06d}" for index in range(8)]


def test_every_task_has_its_stream(bank: TextureBank) -> None:
    chase, handheld = make_scenes("chase", bank), make_scenes("handheld", bank)
    depth = next(iter(depth_stream(chase, 2)))
    assert depth.depth.shape == depth.valid.shape == (2, 1, *SIZE) and depth.image.shape == (2, 3, *SIZE)
    track = next(iter(track_stream(chase, 2, frames=3, step=5)))
    assert track.frames.shape == (2, 3, 3, *SIZE)
    assert track.boxes.shape == (2, 3, 4) and track.visible.shape == (2, 3)
    clip = next(iter(stability_stream(handheld, 2, frames=3)))
    assert clip.stable.shape == clip.unstable.shape == (2, 3, 3, *SIZE)
    assert clip.warp.shape == (2, 3, 2, *SIZE) and clip.valid.shape == (2, 3, 1, *SIZE)


def test_depth_is_in_meters_and_the_sky_has_none(compose: Compose, bank: TextureBank) -> None:
    sky = {"kind": "sky", "position": (0, 0, 0), "extent": (2000.0, 2000.0, 2000.0)}
    patch = {"kind": "rectangle", "position": [(0, 0, 5.0), (0, 0, 1.0)], "extent": (0.5, 0.5, 1.0)}
    renderer = Renderer(compose(sky, patch, focal=(60.0, 50.0), center=(30.0, 20.0)), bank)
    for frame, depth in ((0, 5.0), (2, 7.0)):
        sample = depth_sample(renderer, frame=frame)
        assert sample.depth[sample.valid].unique().tolist() == pytest.approx([depth])
        assert (sample.depth[~sample.valid] == 0).all() and not sample.valid.all()
        middle = sample.valid[0, 0].nonzero().float().mean(dim=0)
        assert middle.tolist() == pytest.approx([20.0, 30.0], abs=0.5)
    assert sample.intrinsics is not None
    assert sample.intrinsics[0].tolist() == [[60, 0, 30], [0, 50, 20], [0, 0, 1]]


def test_flow_goes_from_a_frame_to_the_next(compose: Compose, bank: TextureBank) -> None:
    # It stands for a second, then falls: t^2 - t is 0 at 0 and 1, and 2 at 2 seconds.
    falling = {**WALL, "position": [(0, 0, 8.0), (0, -0.8, 0), (0, 0.8, 0)]}
    renderer = Renderer(compose(falling), bank)
    assert flow_sample(renderer).flow.abs().max() < 1e-4
    sample = flow_sample(renderer, frame=1)
    torch.testing.assert_close(sample.flow[0, 1], torch.full(SIZE, 60 * 1.6 / 8), atol=1e-3, rtol=0)
    assert torch.equal(sample.first, renderer.clean(renderer.view(1.0)))
    assert torch.equal(sample.second, renderer.clean(renderer.view(2.0)))


def test_a_track_tells_how_much_of_the_target_is_seen(compose: Compose, bank: TextureBank) -> None:
    # 12 pixels wide at x = 26 .. 37; from the second second on a board covers all right of x = 31.5.
    target = {"kind": "rectangle", "position": (0, 0, 5.0), "extent": (0.5, 0.5, 1.0), "instance": 2}
    board = {"kind": "rectangle", "position": [(21.0, 0, 3.0), (-9.0, 0, 0)], "extent": (3.0, 3.0, 1.0)}
    clip = track_clip(Renderer(compose(target, board, WALL), bank), frames=3)
    assert clip.boxes[0].tolist() == [[26, 18, 12, 12]] * 3
    assert clip.visible[0].tolist() == [1.0, 1.0, 0.5]
    gone = track_clip(Renderer(compose(target, board, WALL), bank), frames=2, step=2)
    assert gone.visible[0].tolist() == [1.0, 0.5]
    assert torch.equal(gone.frames[:, 1], clip.frames[:, 2])


@pytest.mark.parametrize("family", FAMILIES)
def test_without_shake_the_twins_are_one(family: str, bank: TextureBank) -> None:
    clip = stability_clip(make_scenes(family, bank, shake=0.0).renderer([1, 2]), frames=2, step=9)
    assert torch.equal(clip.stable, clip.unstable)
    assert clip.warp.abs().max() < 1e-4
    assert clip.valid.float().mean() > 0.999  # but for rays at the very edge of a thing


@pytest.mark.parametrize("family", FAMILIES)
def test_the_steady_camera_is_the_shaky_one_without_its_hand(family: str, bank: TextureBank) -> None:
    scenes = make_scenes(family, bank, shake=1.0).scenes([0, 1, 2])
    without = make_scenes(family, bank, shake=0.0).scenes([0, 1, 2])
    of_one, of_other = numbers(scenes.primitives), numbers(without.primitives)
    assert all(torch.equal(tensor, of_other[name]) for name, tensor in of_one.items())
    for time in (0.0, 0.4, 2.0):
        steady, shaky, plain = scenes.frame(time, steady=True), scenes.frame(time), without.frame(time)
        assert torch.equal(steady.eye, plain.eye) and torch.equal(steady.to_world, plain.to_world)
        assert torch.equal(steady.table, plain.table)
        moved = (steady.to_world.mT @ (shaky.eye - steady.eye)[..., None])[..., 0]
        torch.testing.assert_close(moved, scenes.camera.shake.at(torch.full((3,), time)))
        turned = steady.to_world.mT @ shaky.to_world
        angle = ((turned.diagonal(dim1=1, dim2=2).sum(dim=1) - 1) / 2).clamp(-1, 1).acos()
        wanted = scenes.camera.shake_turn.at(torch.full((3,), time)).norm(dim=1)
        torch.testing.assert_close(angle, wanted, atol=1e-6, rtol=0)
        assert moved.norm(dim=1).min() > 0 and angle.min() > 0


def test_shake_moves_along_the_cameras_own_axes(compose: Compose, bank: TextureBank) -> None:
    # The camera looks to the right; its own right is then backwards in the world.
    scenes = compose(WALL, turn=(0, torch.pi / 2, 0), shake=(0.3, 0, 0), shake_turn=(0, 0, 0.2))
    frame = scenes.frame(0.0)
    torch.testing.assert_close(frame.eye[0], torch.tensor([0, 0, -0.3], dtype=torch.float64))
    ahead = frame.to_world[0] @ torch.tensor([0, 0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(ahead, torch.tensor([1.0, 0, 0], dtype=torch.float64))


@pytest.mark.parametrize("indices", [[0, 1], [2, 3]])
def test_the_warp_brings_the_shaky_clip_onto_the_steady_one(indices: list[int], bank: TextureBank) -> None:
    clip = stability_clip(SyntheticScenes("handheld", 0, (120, 160), bank=bank).renderer(indices), frames=2, step=7)
    for frame in range(2):
        warped = warp_back(clip.unstable[:, frame], clip.warp[:, frame])
        hidden = torch.nn.functional.max_pool2d((~clip.valid[:, frame]).float(), 5, 1, 2) > 0
        gap = 255 * (warped - clip.stable[:, frame]).abs().mean(dim=1, keepdim=True)
        unmoved = 255 * (clip.unstable[:, frame] - clip.stable[:, frame]).abs().mean(dim=1, keepdim=True)
        assert gap[~hidden].mean() < 2
        assert gap[~hidden].mean() < 0.4 * unmoved[~hidden].mean()


def test_a_hand_shakes_less_the_weaker_it_is(bank: TextureBank) -> None:
    def shake(strength: float) -> MotionPath:
        return make_scenes("handheld", bank, shake=strength).scenes([0]).camera.shake_turn

    time = torch.tensor([0.37])
    torch.testing.assert_close(2 * shake(0.5).at(time), shake(1.0).at(time))
