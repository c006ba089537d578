"""Layered scenes with exact flow."""

import math

import pytest
import torch

from protoformer.geometry.warps import occlusion_by_consistency, pixel_grid, warp_back
from protoformer.synthetic.layers import Layer, LayeredScene, affine_about, random_scene
from protoformer.synthetic.samples import FlowSample, join
from protoformer.synthetic.textures import noise

HEIGHT, WIDTH = 48, 64
CENTER = (31.0, 23.0)


def texture(seed: int = 0) -> torch.Tensor:
    return noise(HEIGHT, WIDTH, torch.Generator().manual_seed(seed), coarsest=16)


def backdrop(shift: tuple[float, float] = (0.0, 0.0), turn: float = 0.0, zoom: float = 1.0) -> Layer:
    return Layer(texture(), affine_about(CENTER, shift, turn, zoom))


def box(center: tuple[float, float], radii: tuple[float, float], shift: tuple[float, float], seed: int = 1) -> Layer:
    """A rectangle: with radii half way between pixels, so great a power takes in every pixel up to the corners."""
    return Layer(texture(seed), affine_about(center, shift, 0.0, 1.0), center, radii, power=64.0)


def rendered(*layers: Layer) -> FlowSample:
    return LayeredScene(layers, (HEIGHT, WIDTH)).render()


def rectangle(left: int, top: int, right: int, bottom: int) -> torch.Tensor:
    mask = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    mask[top : bottom + 1, left : right + 1] = True
    return mask


def test_shapes_ranges_and_types_are_as_promised() -> None:
    sample = random_scene((40, 56), 1).render()
    assert sample.first.shape == sample.second.shape == (1, 3, 40, 56)
    assert sample.flow.shape == (1, 2, 40, 56)
    assert sample.valid.shape == sample.occlusion.shape == (1, 1, 40, 56)
    assert sample.valid.dtype == sample.occlusion.dtype == torch.bool
    for image in (sample.first, sample.second):
        assert image.min() >= 0 and image.max() <= 1 + 1e-6
    assert sample.valid.all()


def test_the_seed_alone_decides_the_scene() -> None:
    torch.manual_seed(1)
    one = random_scene((40, 56), 5).render()
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    same = random_scene((40, 56), 5).render()
    assert torch.equal(torch.random.get_rng_state(), before)
    for field in ("first", "second", "flow", "valid", "occlusion"):
        assert torch.equal(getattr(one, field), getattr(same, field))
    assert not torch.equal(one.first, random_scene((40, 56), 6).render().first)


def test_a_camera_pan_gives_constant_flow() -> None:
    sample = rendered(backdrop(shift=(3.0, -2.0)))
    torch.testing.assert_close(sample.flow[0], torch.tensor([3.0, -2.0]).view(2, 1, 1).expand(2, HEIGHT, WIDTH))
    x, y = pixel_grid(HEIGHT, WIDTH)
    assert torch.equal(sample.occlusion[0, 0], (x > WIDTH - 4) | (y < 2))


def test_a_pan_by_whole_pixels_shifts_the_image() -> None:
    sample = rendered(backdrop(shift=(3.0, -2.0)))
    torch.testing.assert_close(sample.second[..., :-2, 3:], sample.first[..., 2:, :-3], atol=1e-4, rtol=0)


@pytest.mark.parametrize("zoom", [0.9, 1.1, 2.0])
def test_a_zoom_gives_flow_in_proportion_to_the_distance_from_its_center(zoom: float) -> None:
    offset = pixel_grid(HEIGHT, WIDTH) - torch.tensor(CENTER).view(2, 1, 1)
    torch.testing.assert_close(rendered(backdrop(zoom=zoom)).flow[0], (zoom - 1) * offset, atol=1e-4, rtol=0)


@pytest.mark.parametrize("turn", [-0.3, 0.02, math.pi / 2])
def test_a_roll_turns_every_offset_from_its_center(turn: float) -> None:
    x, y = pixel_grid(HEIGHT, WIDTH) - torch.tensor(CENTER).view(2, 1, 1)
    cos, sin = math.cos(turn), math.sin(turn)
    expected = torch.stack((cos * x - sin * y - x, sin * x + cos * y - y))
    torch.testing.assert_close(rendered(backdrop(turn=turn)).flow[0], expected, atol=1e-4, rtol=0)


def test_a_quarter_turn_takes_what_is_right_of_the_center_below_it() -> None:
    motion = affine_about(CENTER, (0.0, 0.0), math.pi / 2, 1.0)
    right = torch.tensor([CENTER[0] + 10, CENTER[1], 1.0])
    torch.testing.assert_close(motion @ right, torch.tensor([CENTER[0], CENTER[1] + 10]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_the_second_image_seen_along_the_true_flow_is_the_first(seed: int) -> None:
    sample = random_scene((96, 128), seed, motion=8.0).render()
    difference = (warp_back(sample.second, sample.flow) - sample.first).abs().mean(dim=1, keepdim=True)
    still = (sample.second - sample.first).abs().mean(dim=1, keepdim=True)
    shown = ~sample.occlusion
    assert difference[shown].mean() < 0.02
    assert difference[shown].mean() < 0.25 * still[shown].mean()


def test_a_box_moves_and_the_background_stays() -> None:
    inside = rectangle(10, 8, 20, 18)
    sample = rendered(backdrop(), box((15.0, 13.0), (5.5, 5.5), (6.0, 3.0)))
    expected = torch.where(inside, torch.tensor([6.0, 3.0]).view(2, 1, 1), torch.tensor(0.0))
    torch.testing.assert_close(sample.flow[0], expected)


def test_a_moving_box_hides_exactly_the_background_it_arrives_at() -> None:
    before, after = rectangle(10, 8, 20, 18), rectangle(16, 11, 26, 21)
    sample = rendered(backdrop(), box((15.0, 13.0), (5.5, 5.5), (6.0, 3.0)))
    assert torch.equal(sample.occlusion[0, 0], after & ~before)


def test_a_box_that_leaves_takes_its_pixels_out_of_sight() -> None:
    before, gone = rectangle(50, 20, 60, 30), rectangle(54, 20, 60, 30)
    after = rectangle(60, 20, 63, 30)
    sample = rendered(backdrop(), box((55.0, 25.0), (5.5, 5.5), (10.0, 0.0)))
    assert torch.equal(sample.occlusion[0, 0], gone | (after & ~before))


def test_a_box_that_passes_behind_another_is_hidden_by_it() -> None:
    back = rectangle(10, 10, 20, 20)
    sample = rendered(
        backdrop(), box((15.0, 15.0), (5.5, 5.5), (20.0, 0.0)), box((35.0, 15.0), (5.5, 10.5), (0.0, 0.0), seed=2)
    )
    # All of the back box arrives behind the front one, and so hides nothing itself.
    assert torch.equal(sample.occlusion[0, 0], back)
    assert torch.equal(sample.flow[0].norm(dim=0) == 0, ~back)
    torch.testing.assert_close(sample.first[..., 6:25, 31:40], sample.second[..., 6:25, 31:40], atol=1e-4, rtol=0)


def test_flow_back_and_forth_finds_the_same_occlusion() -> None:
    before, after = rectangle(10, 8, 20, 18), rectangle(16, 11, 26, 21)
    sample = rendered(backdrop(), box((15.0, 13.0), (5.5, 5.5), (6.0, 3.0)))
    backward = torch.where(after, torch.tensor([-6.0, -3.0]).view(2, 1, 1), torch.tensor(0.0))[None]
    assert torch.equal(occlusion_by_consistency(sample.flow, backward), sample.occlusion)
    assert int(sample.occlusion.sum()) == int((after & ~before).sum())


def test_colors_go_on_past_the_border_by_reflection() -> None:
    layer = backdrop()
    inside = pixel_grid(HEIGHT, WIDTH)
    mirrored = torch.stack((-inside[0], 2 * (HEIGHT - 1) - inside[1]))
    torch.testing.assert_close(layer.color(mirrored), layer.color(inside), atol=1e-4, rtol=0)
    torch.testing.assert_close(layer.color(inside), layer.texture, atol=1e-4, rtol=0)


def test_an_ellipse_covers_its_area() -> None:
    layer = Layer(texture(), affine_about(CENTER, (0.0, 0.0), 0.0, 1.0), CENTER, (18.0, 9.0), angle=0.7)
    covered = layer.coverage(pixel_grid(HEIGHT, WIDTH)) > 0
    assert float(covered.sum()) == pytest.approx(math.pi * 18 * 9, rel=0.02)


def test_random_shapes_move_by_no_more_than_the_maximum() -> None:
    for seed in range(5):
        for layer in random_scene((64, 64), seed, shapes=4, motion=5.0).layers[1:]:
            center = torch.tensor([*layer.center, 1.0])
            assert float((layer.motion @ center - center[:2]).abs().max()) <= 5.0 + 1e-4


def test_joined_samples_keep_their_order() -> None:
    samples = [random_scene((24, 32), seed).render() for seed in range(3)]
    joined = join(samples)
    for field in ("first", "second", "flow", "valid", "occlusion"):
        assert len(getattr(joined, field)) == 3
        for index, sample in enumerate(samples):
            assert torch.equal(getattr(joined, field)[index : index + 1], getattr(sample, field))


def test_samples_of_different_sizes_do_not_join() -> None:
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        join([random_scene((24, 32), 0).render(), random_scene((24, 40), 0).render()])
