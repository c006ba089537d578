"""Augmentation of flow samples: parameters, devices, and the affine resampling."""

import dataclasses
import math
from hashlib import blake2b

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.datasets.augmentation.flow import (
    AUGMENTATIONS,
    Augmentation,
    CropGeometry,
    Parameters,
    Resampling,
    apply_flow,
    augment_flow,
    sample_flow_parameters,
)
from protoformer.errors import InputError
from protoformer.geometry.warps import inside_image, pixel_grid, warp_back
from protoformer.synthetic.layers import random_scene
from protoformer.synthetic.samples import FlowSample, join

SIZE = (60, 84)
CONFIG = Augmentation(crop=(40, 56), min_scale=-0.4, max_scale=0.6, flip_vertical=0.5, erase_size=(5, 20))
FIELDS = ("first", "second", "flow", "valid", "occlusion")
numbers = st.integers(-(2**70), 2**70)
keys = st.tuples(numbers, numbers, numbers)


def scene_with_gaps(seed: int) -> FlowSample:
    rendered = random_scene(SIZE, seed).render()
    valid = torch.rand(1, 1, *SIZE, generator=torch.Generator().manual_seed(seed)) < 0.9
    return dataclasses.replace(rendered, valid=valid, flow=rendered.flow * valid, names=(f"scene {seed}",))


def drawn(config: Augmentation, count: int = 400) -> list[Parameters]:
    return [sample_flow_parameters(config, (7, 0, index), SIZE) for index in range(count)]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_sample_is_the_same_alone_in_a_batch_and_in_any_place(sparse: bool) -> None:
    config = dataclasses.replace(CONFIG, sparse=sparse, asymmetric=0.5)
    samples = [scene_with_gaps(seed) for seed in range(5)]
    own = [(3, 1, index) for index in range(5)]
    alone = [augment_flow(sample, config, [key]) for sample, key in zip(samples, own, strict=True)]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [1, 3], [2, 2, 2]):
        batch = augment_flow(join([samples[index] for index in order]), config, [own[index] for index in order])
        assert batch.names == tuple(f"scene {index}" for index in order)
        for place, index in enumerate(order):
            for field in FIELDS:
                assert torch.equal(getattr(batch, field)[place], getattr(alone[index], field)[0]), field


def on(sample: FlowSample, device: str) -> FlowSample:
    return dataclasses.replace(sample, **{field: getattr(sample, field).to(device) for field in FIELDS})


@pytest.mark.parametrize("sparse", [False, True])
def test_pixels_never_leave_their_device(sparse: bool) -> None:
    # A tensor on "meta" has no values, so whatever looked at them or mixed them with another device's would fail.
    config = dataclasses.replace(CONFIG, sparse=sparse, erase=1.0)
    changed = augment_flow(on(scene_with_gaps(0), "meta"), config, [(0, 0, 0)])
    assert all(getattr(changed, field).device.type == "meta" for field in FIELDS)
    assert changed.first.shape == (1, 3, 40, 56) and changed.valid.shape == (1, 1, 40, 56)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("sparse", [False, True])
def test_a_gpu_makes_the_same_samples(sparse: bool) -> None:
    config = dataclasses.replace(CONFIG, sparse=sparse)
    keys = [(0, 0, index) for index in range(4)]
    batch = join([scene_with_gaps(seed) for seed in range(4)])
    here, there = augment_flow(batch, config, keys), augment_flow(on(batch, "cuda"), config, keys)
    for field in FIELDS:
        torch.testing.assert_close(getattr(there, field).cpu(), getattr(here, field), atol=1e-5, rtol=0)


def test_random_numbers_taken_elsewhere_change_nothing() -> None:
    torch.manual_seed(1)
    one = augment_flow(scene_with_gaps(0), CONFIG, [(0, 0, 0)])
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    same = augment_flow(scene_with_gaps(0), CONFIG, [(0, 0, 0)])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(getattr(one, field), getattr(same, field)) for field in FIELDS)


def test_every_part_of_the_key_counts() -> None:
    close = [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    assert len({sample_flow_parameters(CONFIG, key, SIZE) for key in close}) == 27
    one, other = (augment_flow(scene_with_gaps(0), CONFIG, [(0, epoch, 0)]) for epoch in (0, 1))
    assert not torch.equal(one.first, other.first)


def test_the_numbers_are_the_documented_hash() -> None:
    config = dataclasses.replace(CONFIG, stretch_probability=0.0, scale_probability=1.0)
    digest = blake2b(b"5 6 -7 scale", digest_size=8).digest()
    fraction = math.floor(int.from_bytes(digest, "little") / 2**11) / 2**53
    across, down = sample_flow_parameters(config, (5, 6, -7), (600, 840)).geometry.scale
    assert across == down == 2 ** (-0.4 + 1.0 * fraction)


def test_turning_one_change_off_leaves_the_others_as_they_were() -> None:
    for index in range(20):
        full = sample_flow_parameters(CONFIG, (0, 0, index), SIZE)
        calm = sample_flow_parameters(dataclasses.replace(CONFIG, hue=0.0, erase=0.0), (0, 0, index), SIZE)
        assert calm.geometry == full.geometry and calm.erased == ()
        assert dataclasses.replace(full.first, hue=0.0) == calm.first


@settings(max_examples=200, deadline=None)
@given(keys, st.tuples(st.integers(1, 700), st.integers(1, 700)), st.tuples(st.integers(1, 500), st.integers(1, 500)))
def test_the_scaled_image_covers_the_crop(
    key: tuple[int, int, int], size: tuple[int, int], crop: tuple[int, int]
) -> None:
    geometry = sample_flow_parameters(dataclasses.replace(CONFIG, crop=crop), key, size).geometry
    for length, cut, scale, start in zip(size[::-1], crop[::-1], geometry.scale, geometry.corner, strict=True):
        assert 0 <= start <= scale * length - cut + 1e-6
        assert scale >= max(crop[0] / size[0], crop[1] / size[1])


def test_scales_stretches_and_flips_keep_to_their_ranges_and_reach_them() -> None:
    config = dataclasses.replace(CONFIG, crop=(8, 8), scale_probability=1.0, flip_horizontal=0.5, flip_vertical=0.1)
    geometries = [parameters.geometry for parameters in drawn(config)]
    exponents = torch.tensor([geometry.scale for geometry in geometries]).log2()
    assert -0.6 <= float(exponents.min()) < -0.45 and 0.65 < float(exponents.max()) <= 0.8
    stretched = (exponents[:, 0] - exponents[:, 1]).abs()
    assert float((stretched > 0).float().mean()) == pytest.approx(0.8, abs=0.06) and float(stretched.max()) <= 0.4
    flips = torch.tensor([geometry.flip for geometry in geometries]).float().mean(dim=0)
    assert flips.tolist() == [pytest.approx(0.5, abs=0.07), pytest.approx(0.1, abs=0.05)]


def test_crops_reach_every_corner_of_the_image() -> None:
    config = dataclasses.replace(CONFIG, crop=(58, 81), scale_probability=0.0)
    corners = {parameters.geometry.corner for parameters in drawn(config)}
    assert corners == {(x, y) for x in range(4) for y in range(3)}


def test_colors_change_within_their_strengths_and_mostly_alike() -> None:
    parameters = drawn(CONFIG)
    for field, middle, strength in (
        ("brightness", 1, 0.4),
        ("contrast", 1, 0.4),
        ("saturation", 1, 0.4),
        ("hue", 0, 1),
    ):
        values = torch.tensor([getattr(each.first, field) for each in parameters])
        assert middle - strength <= float(values.min()) < middle - 0.9 * strength
        assert middle + 0.9 * strength < float(values.max()) <= middle + strength
    apart = sum(each.first != each.second for each in parameters) / len(parameters)
    assert apart == pytest.approx(0.2, abs=0.06)


def test_erased_boxes_start_on_the_image_and_have_the_configured_sizes() -> None:
    erased = [parameters.erased for parameters in drawn(CONFIG)]
    assert {len(boxes) for boxes in erased} == {0, 1, 2}
    assert sum(not boxes for boxes in erased) / len(erased) == pytest.approx(0.5, abs=0.07)
    boxes = torch.tensor([box for boxes in erased for box in boxes])
    assert boxes.amin(dim=0).tolist() == [0, 0, 5, 5]
    assert boxes.amax(dim=0).tolist() == [SIZE[1] - 1, SIZE[0] - 1, 20, 20]


def test_the_presets_are_the_published_ones() -> None:
    assert set(AUGMENTATIONS) == {"chairs", "things", "sintel", "kitti"}
    scales = {name: (config.min_scale, config.max_scale) for name, config in AUGMENTATIONS.items()}
    assert scales == {"chairs": (-0.1, 1.0), "things": (-0.4, 0.8), "sintel": (-0.2, 0.6), "kitti": (-0.2, 0.4)}
    assert AUGMENTATIONS["chairs"].crop == (368, 496) and AUGMENTATIONS["things"].crop == (432, 960)
    kitti = AUGMENTATIONS["kitti"]
    assert kitti.sparse and kitti.flip_vertical == 0 and not AUGMENTATIONS["sintel"].sparse


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"crop": (0, 5)}, "crop"),
        ({"crop": 400}, "crop"),
        ({"min_scale": 0.5, "max_scale": 0.4}, "min_scale"),
        ({"min_scale": -0.9, "stretch": 0.2}, "half the size"),
        ({"max_scale": math.inf}, "max_scale"),
        ({"flip_vertical": 1.5}, "flip_vertical"),
        ({"hue": -0.1}, "hue"),
        ({"erase_size": (9, 5)}, "erase_size"),
        ({"sparse": 1}, "sparse"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Augmentation(**fields)  # type: ignore[arg-type]


def test_a_batch_needs_a_key_for_every_sample() -> None:
    with pytest.raises(ValueError, match="a batch of 2 needs as many parameters, not 1"):
        augment_flow(join([scene_with_gaps(0), scene_with_gaps(1)]), CONFIG, [(0, 0, 0)])


@pytest.mark.parametrize("name", ["chairs", "kitti"])
def test_small_images_come_out_at_the_size_of_the_crop(name: str) -> None:
    config = AUGMENTATIONS[name]
    flow = augment_flow(scene_with_gaps(0), config, [(0, 0, 0)])
    assert flow.first.shape == flow.second.shape == (1, 3, *config.crop)
    assert flow.flow.shape == (1, 2, *config.crop) and flow.valid.shape == (1, 1, *config.crop)
    assert flow.first.dtype == flow.flow.dtype == torch.float32 and flow.valid.dtype == torch.bool


HEIGHT, WIDTH = SIZE
SHAPES_ONLY = Augmentation(
    crop=(44, 60),
    min_scale=-0.4,
    max_scale=0.8,
    flip_vertical=0.5,
    brightness=0.0,
    contrast=0.0,
    saturation=0.0,
    hue=0.0,
    erase=0.0,
)


def scene(seed: int = 0) -> FlowSample:
    return random_scene(SIZE, seed).render()


def with_gaps(sample: FlowSample, density: float = 0.2, seed: int = 0) -> FlowSample:
    valid = torch.rand(sample.valid.shape, generator=torch.Generator().manual_seed(seed)) < density
    return dataclasses.replace(sample, flow=sample.flow * valid, valid=valid)


def placed(sample: FlowSample, sparse: bool = False, crop: tuple[int, int] = SIZE, **geometry: object) -> FlowSample:
    where = CropGeometry(size=SIZE, crop=crop, **geometry)  # type: ignore[arg-type]
    return apply_flow(sample, [Parameters(where)], sparse)


def away_from_borders(mask: torch.Tensor, margin: int = 2) -> torch.Tensor:
    kept = torch.zeros_like(mask)
    kept[..., margin:-margin, margin:-margin] = mask[..., margin:-margin, margin:-margin]
    return kept


@pytest.mark.parametrize("seed", range(3))
def test_the_second_image_seen_along_the_flow_is_still_the_first(seed: int) -> None:
    sample = random_scene((96, 128), seed, motion=8.0).render()
    config = dataclasses.replace(SHAPES_ONLY, crop=(64, 80))
    for index in range(12):
        changed = augment_flow(sample, config, [(seed, 0, index)])
        difference = (warp_back(changed.second, changed.flow) - changed.first).abs().mean(dim=1, keepdim=True)
        still = (changed.second - changed.first).abs().mean(dim=1, keepdim=True)
        shown = away_from_borders(changed.valid & ~changed.occlusion)
        assert float(shown.float().mean()) > 0.3
        assert float(difference[shown].mean()) < 0.025
        assert float(difference[shown].mean()) < 0.3 * float(still[shown].mean())


@pytest.mark.parametrize("sparse", [False, True])
def test_scale_one_without_flips_and_a_full_crop_changes_nothing(sparse: bool) -> None:
    config = dataclasses.replace(
        SHAPES_ONLY, crop=SIZE, min_scale=0.0, max_scale=0.0, stretch=0.0, flip_horizontal=0.0, flip_vertical=0.0
    )
    sample = with_gaps(scene())
    same = augment_flow(sample, dataclasses.replace(config, sparse=sparse), [(0, 0, 0)])
    for field in FIELDS:
        assert torch.equal(getattr(same, field), getattr(sample, field)), field


@pytest.mark.parametrize("sparse", [False, True])
def test_a_crop_alone_cuts_the_pixels_out(sparse: bool) -> None:
    sample = with_gaps(scene())
    cut = placed(sample, sparse, crop=(30, 40), corner=(7, 11))
    for field in FIELDS[:-1]:
        assert torch.equal(getattr(cut, field), getattr(sample, field)[..., 11:41, 7:47]), field
    leaves = ~inside_image(pixel_grid(30, 40) + cut.flow, 30, 40)
    assert torch.equal(cut.occlusion, sample.occlusion[..., 11:41, 7:47] | leaves)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scale", [(1.5, 1.5), (0.7, 0.7), (1.3, 0.8)])
@pytest.mark.parametrize("flip", [(False, False), (True, False), (True, True)])
def test_a_scaled_pan_is_the_pan_times_the_scale(
    sparse: bool, scale: tuple[float, float], flip: tuple[bool, bool]
) -> None:
    pan = torch.tensor([3.3, -2.1]).view(1, 2, 1, 1).expand(1, 2, *SIZE)
    sample = dataclasses.replace(scene(), flow=pan)
    scaled = placed(sample, sparse, crop=(40, 56), scale=scale, flip=flip)
    signed = [-factor if mirrored else factor for factor, mirrored in zip(scale, flip, strict=True)]
    expected = torch.where(scaled.valid, pan[..., :40, :56] * torch.tensor(signed).view(1, 2, 1, 1), 0)
    assert torch.equal(scaled.flow, expected)
    assert bool(scaled.valid.all()) is (not sparse or max(scale) < 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_flip_mirrors_the_image_and_reverses_the_flow(sparse: bool) -> None:
    sample = with_gaps(scene())
    across = placed(sample, sparse, flip=(True, False))
    for field in FIELDS:
        mirrored = getattr(sample, field).flip(-1)
        if field == "flow":
            mirrored = mirrored * torch.tensor([-1.0, 1.0]).view(1, 2, 1, 1)
        assert torch.equal(getattr(across, field), mirrored), field
    down = placed(sample, sparse, flip=(False, True))
    assert torch.equal(down.flow, sample.flow.flip(-2) * torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
    assert torch.equal(down.first, sample.first.flip(-2))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("flip", [(True, False), (False, True), (True, True)])
def test_a_flip_twice_is_none(sparse: bool, flip: tuple[bool, bool]) -> None:
    sample = with_gaps(scene())
    twice = placed(placed(sample, sparse, flip=flip), sparse, flip=flip)
    for field in FIELDS:
        assert torch.equal(getattr(twice, field), getattr(sample, field)), field


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_scaling_is_that_of_torch(scale: float) -> None:
    sample, crop = scene(), (round(HEIGHT * scale), round(WIDTH * scale))
    scaled = placed(sample, crop=crop, scale=(scale, scale))
    expected = F.interpolate(sample.first, size=crop, mode="bilinear", align_corners=False)
    torch.testing.assert_close(scaled.first, expected, atol=1e-5, rtol=0)


def test_half_the_size_is_the_mean_of_four_pixels() -> None:
    half = placed(scene(), crop=(30, 42), scale=(0.5, 0.5))
    torch.testing.assert_close(half.first, F.avg_pool2d(scene().first, 2), atol=1e-6, rtol=0)


def test_a_dense_vector_is_valid_only_if_all_it_comes_from_is() -> None:
    sample = scene()
    valid = torch.ones_like(sample.valid)
    valid[..., 20, 30] = False
    sample = dataclasses.replace(sample, valid=valid)
    # At twice the size pixel i reads i / 2 - 0.25, so 2 p - 1 .. 2 p + 2 take a share of p.
    double = placed(sample, crop=(120, 168), scale=(2.0, 2.0))
    expected = torch.ones_like(double.valid)
    expected[..., 39:43, 59:63] = False
    assert torch.equal(double.valid, expected)
    assert not double.flow[(~double.valid).expand_as(double.flow)].any()


def test_pixels_from_outside_are_not_valid() -> None:
    for sparse in (False, True):
        beyond = placed(scene(), sparse, corner=(10, -5))
        expected = torch.zeros_like(beyond.valid)
        expected[..., 5:, :-10] = True
        assert torch.equal(beyond.valid, expected)


def test_pixels_that_leave_the_crop_are_occluded() -> None:
    pan = torch.tensor([3.0, -2.0]).view(1, 2, 1, 1).expand(1, 2, *SIZE)
    sample = dataclasses.replace(scene(), flow=pan, occlusion=torch.zeros(1, 1, *SIZE, dtype=torch.bool))
    cut = placed(sample, crop=(30, 40), corner=(10, 10))
    x, y = pixel_grid(30, 40)
    assert torch.equal(cut.occlusion[0, 0], (x > 36) | (y < 2))


def test_an_unknown_occlusion_stays_unknown() -> None:
    for sparse in (False, True):
        assert placed(dataclasses.replace(scene(), occlusion=None), sparse).occlusion is None


def numbered(density: float, seed: int) -> FlowSample:
    """Every vector tells which pixel it comes from: (its number, its row)."""
    x, y = pixel_grid(*SIZE)
    flow = torch.stack((y * WIDTH + x + 1, y + 1))[None]
    return with_gaps(dataclasses.replace(scene(), flow=flow, occlusion=None), density, seed)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.5, 2.5),
    st.floats(0.5, 2.5),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(0, 9),
    st.sampled_from((0.05, 0.3, 1.0)),
)
def test_sparse_vectors_are_carried_to_the_nearest_pixel_and_none_is_made_up(
    across: float, down: float, flip: tuple[bool, bool], start: int, density: float
) -> None:
    sample, scale = numbered(density, start), torch.tensor([across, down])
    where = CropGeometry(SIZE, (24, 32), (across, down), flip, (start, start))
    carried = apply_flow(sample, [Parameters(where)], sparse=True)
    y, x = carried.valid[0, 0].nonzero(as_tuple=True)
    signs = torch.tensor([-1.0 if mirrored else 1.0 for mirrored in flip])
    number = (carried.flow[0, :, y, x] / (scale * signs)[:, None])[0].round().long() - 1
    from_x, from_y = number % WIDTH, number // WIDTH
    assert sample.valid[0, 0, from_y, from_x].all()
    # Exactly the vector of that pixel, scaled, at the pixel where it lands.
    assert torch.equal(carried.flow[0, :, y, x], sample.flow[0, :, from_y, from_x] * (scale * signs)[:, None])
    for target, source, (slope, shift) in ((x, from_x, where.x), (y, from_y, where.y)):
        assert float((slope * source.double() + shift - target).abs().max() if len(x) else 0) <= 0.5 + 1e-9
    # Every pixel that some vector lands in has one, as when they are written there one by one.
    rows, columns = sample.valid[0, 0].nonzero().double().unbind(dim=1)
    left = (where.x[0] * columns + where.x[1] + 0.5).floor().long()
    top = (where.y[0] * rows + where.y[1] + 0.5).floor().long()
    seen = (left >= 0) & (left < 32) & (top >= 0) & (top < 24)
    written = torch.zeros(24, 32, dtype=torch.bool)
    written[top[seen], left[seen]] = True
    assert torch.equal(carried.valid[0, 0], written)


def test_where_sparse_vectors_meet_the_nearest_known_one_stays() -> None:
    # At 0.6 the pixels 0 .. 6 come to -0.2, 0.4, 1.0, 1.6, 2.2, 2.8 and 3.4.
    sample = numbered(1.0, 0)
    for missing, expected in ((None, [0, 2, 4, 5]), (0, [1, 2, 4, 5]), (4, [0, 2, 3, 5]), (5, [0, 2, 4, 6])):
        valid = sample.valid.clone()
        if missing is not None:
            valid[..., missing, :] = valid[..., missing] = False
        gappy = dataclasses.replace(sample, valid=valid)
        carried = placed(gappy, sparse=True, crop=(4, 4), scale=(0.6, 0.6))
        assert carried.valid.all()
        number = (carried.flow[0, 0] / 0.6).round().long() - 1
        assert (number // WIDTH)[:, 0].tolist() == (number % WIDTH)[0].tolist() == expected


@pytest.mark.parametrize(("scale", "density"), [(1.0, 0.2), (2.0, 0.2 / 4), (0.5, 1 - 0.8**4)])
def test_the_density_of_sparse_vectors_is_that_of_the_pixels_they_land_in(scale: float, density: float) -> None:
    carried = placed(numbered(0.2, 0), sparse=True, crop=(30, 42), scale=(scale, scale))
    assert float(carried.valid.float().mean()) == pytest.approx(density, abs=0.05)


def test_a_sparse_vector_keeps_its_own_occlusion() -> None:
    sample = with_gaps(scene(3))
    hidden = sample.valid & (torch.rand(sample.valid.shape, generator=torch.Generator().manual_seed(5)) < 0.5)
    flow = torch.where(hidden, 2.0, 1.0).expand(1, 2, *SIZE) * 1e-3 * sample.valid
    sample = dataclasses.replace(sample, flow=flow, occlusion=hidden)
    for scale in (0.6, 1.7):
        carried = placed(sample, sparse=True, crop=(30, 42), scale=(scale, scale))
        inner = carried.valid & (F.pad(torch.ones(1, 1, 29, 41), (0, 1, 0, 1)) > 0)
        assert torch.equal(carried.occlusion[inner], (carried.flow[:, :1] > 1.5e-3 * scale)[inner])


def test_placements_of_different_sizes_do_not_make_a_batch() -> None:
    with pytest.raises(ValueError, match="one image size and one crop size"):
        Resampling([CropGeometry(SIZE, (8, 8)), CropGeometry(SIZE, (8, 9))], torch.device("cpu"))
    with pytest.raises(ValueError, match="images of"):
        apply_flow(scene(), [Parameters(CropGeometry((61, 84), (8, 8)))], sparse=False)
