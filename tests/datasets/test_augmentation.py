"""What is drawn for a sample, and that it depends on the sample's key alone."""

import dataclasses
import math
from hashlib import blake2b

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.datasets.augmentation.flow import (
    AUGMENTATIONS,
    Augmentation,
    Parameters,
    augment_flow,
    sample_flow_parameters,
)
from protoformer.errors import InputError
from protoformer.synthetic.layers import random_scene
from protoformer.synthetic.samples import FlowSample, join

SIZE = (60, 84)
CONFIG = Augmentation(crop=(40, 56), min_scale=-0.4, max_scale=0.6, flip_vertical=0.5, erase_size=(5, 20))
FIELDS = ("first", "second", "flow", "valid", "occlusion")
numbers = st.integers(-(2**70), 2**70)
keys = st.tuples(numbers, numbers, numbers)


def scene(seed: int) -> FlowSample:
    rendered = random_scene(SIZE, seed).render()
    valid = torch.rand(1, 1, *SIZE, generator=torch.Generator().manual_seed(seed)) < 0.9
    return dataclasses.replace(rendered, valid=valid, flow=rendered.flow * valid, names=(f"scene {seed}",))


def drawn(config: Augmentation, count: int = 400) -> list[Parameters]:
    return [sample_flow_parameters(config, (7, 0, index), SIZE) for index in range(count)]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_sample_is_the_same_alone_in_a_batch_and_in_any_place(sparse: bool) -> None:
    config = dataclasses.replace(CONFIG, sparse=sparse, asymmetric=0.5)
    samples = [scene(seed) for seed in range(5)]
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
    changed = augment_flow(on(scene(0), "meta"), config, [(0, 0, 0)])
    assert all(getattr(changed, field).device.type == "meta" for field in FIELDS)
    assert changed.first.shape == (1, 3, 40, 56) and changed.valid.shape == (1, 1, 40, 56)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("sparse", [False, True])
def test_a_gpu_makes_the_same_samples(sparse: bool) -> None:
    config = dataclasses.replace(CONFIG, sparse=sparse)
    keys = [(0, 0, index) for index in range(4)]
    batch = join([scene(seed) for seed in range(4)])
    here, there = augment_flow(batch, config, keys), augment_flow(on(batch, "cuda"), config, keys)
    for field in FIELDS:
        torch.testing.assert_close(getattr(there, field).cpu(), getattr(here, field), atol=1e-5, rtol=0)


def test_random_numbers_taken_elsewhere_change_nothing() -> None:
    torch.manual_seed(1)
    one = augment_flow(scene(0), CONFIG, [(0, 0, 0)])
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    same = augment_flow(scene(0), CONFIG, [(0, 0, 0)])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(getattr(one, field), getattr(same, field)) for field in FIELDS)


def test_every_part_of_the_key_counts() -> None:
    close = [(a, b, c) for a in range(3) for b in range(3) for c in range(3)]
    assert len({sample_flow_parameters(CONFIG, key, SIZE) for key in close}) == 27
    one, other = (augment_flow(scene(0), CONFIG, [(0, epoch, 0)]) for epoch in (0, 1))
    assert not torch.equal(one.first, other.first)


def test_the_numbers_are_the_documented_hash() -> None:
    config = dataclasses.replace(CONFIG, stretch_probability=0.0, scale_probability=1.0)
    digest = blake2b(b"5 6 -7 scale", digest_size=8).digest()
    fraction = math.floor(int.from_bytes(digest, "little") / 2**11) / 2**53
    across, down = sample_flow_parameters(config, (5, 6, -7), (600, 840)).placement.scale
    assert across == down == 2 ** (-0.4 + 1.0 * fraction)


def test_turning_one_change_off_leaves_the_others_as_they_were() -> None:
    for index in range(20):
        full = sample_flow_parameters(CONFIG, (0, 0, index), SIZE)
        calm = sample_flow_parameters(dataclasses.replace(CONFIG, hue=0.0, erase=0.0), (0, 0, index), SIZE)
        assert calm.placement == full.placement and calm.erased == ()
        assert dataclasses.replace(full.first, hue=0.0) == calm.first


@settings(max_examples=200, deadline=None)
@given(keys, st.tuples(st.integers(1, 700), st.integers(1, 700)), st.tuples(st.integers(1, 500), st.integers(1, 500)))
def test_the_scaled_image_covers_the_crop(
    key: tuple[int, int, int], size: tuple[int, int], crop: tuple[int, int]
) -> None:
    placement = sample_flow_parameters(dataclasses.replace(CONFIG, crop=crop), key, size).placement
    for length, cut, scale, start in zip(size[::-1], crop[::-1], placement.scale, placement.corner, strict=True):
        assert 0 <= start <= scale * length - cut + 1e-6
        assert scale >= max(crop[0] / size[0], crop[1] / size[1])


def test_scales_stretches_and_flips_keep_to_their_ranges_and_reach_them() -> None:
    config = dataclasses.replace(CONFIG, crop=(8, 8), scale_probability=1.0, flip_horizontal=0.5, flip_vertical=0.1)
    placements = [parameters.placement for parameters in drawn(config)]
    exponents = torch.tensor([placement.scale for placement in placements]).log2()
    assert -0.6 <= float(exponents.min()) < -0.45 and 0.65 < float(exponents.max()) <= 0.8
    stretched = (exponents[:, 0] - exponents[:, 1]).abs()
    assert float((stretched > 0).float().mean()) == pytest.approx(0.8, abs=0.06) and float(stretched.max()) <= 0.4
    flips = torch.tensor([placement.flip for placement in placements]).float().mean(dim=0)
    assert flips.tolist() == [pytest.approx(0.5, abs=0.07), pytest.approx(0.1, abs=0.05)]


def test_crops_reach_every_corner_of_the_image() -> None:
    config = dataclasses.replace(CONFIG, crop=(58, 81), scale_probability=0.0)
    corners = {parameters.placement.corner for parameters in drawn(config)}
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


def test_erased_boxes_start_on_the_image_and_have_the_sizes_asked_for() -> None:
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
        augment_flow(join([scene(0), scene(1)]), CONFIG, [(0, 0, 0)])


@pytest.mark.parametrize("name", ["chairs", "kitti"])
def test_small_images_come_out_at_the_size_of_the_crop(name: str) -> None:
    config = AUGMENTATIONS[name]
    flow = augment_flow(scene(0), config, [(0, 0, 0)])
    assert flow.first.shape == flow.second.shape == (1, 3, *config.crop)
    assert flow.flow.shape == (1, 2, *config.crop) and flow.valid.shape == (1, 1, *config.crop)
    assert flow.first.dtype == flow.flow.dtype == torch.float32 and flow.valid.dtype == torch.bool
