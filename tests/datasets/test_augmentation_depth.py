"""Images with depth are varied, and their camera is still the one that took them."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.datasets.augmentation.depth import (
    DEPTH_AUGMENTATIONS,
    DepthAugmentation,
    DepthParameters,
    RotatedCropGeometry,
    apply_depth,
    augment_depth,
    sample_depth_parameters,
)
from protoformer.errors import InputError
from protoformer.geometry.warps import pixel_grid
from protoformer.synthetic.samples import DepthSample, join
from protoformer.synthetic.textures import noise

SIZE = (60, 84)
CROP = (44, 60)
STRONG = DepthAugmentation(crop=CROP, rotation=0.3, max_scale=0.8, erase=1.0, erase_size=(4, 10), blur_probability=1.0)
PLAIN = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, "blur": 0.0, "noise": 0.0, "erase": 0.0}
SHAPES_ONLY = dataclasses.replace(STRONG, **PLAIN)
CAMERA = torch.tensor([[70.0, 0.0, 40.5], [0.0, 70.0, 31.0], [0.0, 0.0, 1.0]])


def spots(points: torch.Tensor) -> DepthSample:
    """An image of a soft spot where each of the points (K x 3, meters) projects to, one an image."""
    pixels = points @ CAMERA.T
    gap = pixel_grid(*SIZE)[None] - (pixels[:, :2] / pixels[:, 2:])[:, :, None, None]
    image = torch.exp(-gap.square().sum(dim=1) / (2 * 3.0**2))
    depth = points[:, 2].view(-1, 1, 1, 1).expand(-1, 1, *SIZE).clone()
    return DepthSample(
        image=image[:, None].expand(-1, 3, -1, -1),
        depth=depth,
        valid=depth > 0,
        intrinsics=CAMERA.expand(len(points), 3, 3),
        names=tuple(str(number) for number in range(len(points))),
    )


def wall(seed: int = 0) -> DepthSample:
    """Whole meters that differ from pixel to pixel, of which some are not known."""
    generator = torch.Generator().manual_seed(seed)
    valid = torch.rand(1, 1, *SIZE, generator=generator) < 0.8
    depth = torch.randint(1, 60, (1, 1, *SIZE), generator=generator).float() * valid
    image = noise(*SIZE, generator, coarsest=16)[None]
    return DepthSample(image=image, depth=depth, valid=valid, intrinsics=CAMERA[None], names=(f"wall {seed}",))


def test_points_project_to_their_pixels() -> None:
    points = torch.tensor([[0.1, 0.2, 4.0], [-0.4, 0.3, 5.0], [0.5, -0.4, 6.0], [0.0, 0.0, 3.0]])
    sample, looked_at = spots(points), 0
    for epoch in range(8):
        keys = [(0, epoch, index) for index in range(4)]
        changed = augment_depth(sample, SHAPES_ONLY, keys)
        assert changed.intrinsics is not None
        for index, key in enumerate(keys):
            geometry = sample_depth_parameters(SHAPES_ONLY, key, SIZE).geometry
            # The world is turned about the optical axis and mirrored; distances along the axis are what they were.
            cosine, sine = math.cos(geometry.angle), math.sin(geometry.angle)
            x, y, z = points[index].tolist()
            turned = torch.tensor([cosine * x - sine * y, sine * x + cosine * y, z])
            turned[0] *= -1 if geometry.flipped else 1
            seen = changed.intrinsics[index] @ turned
            x, y = (seen[:2] / seen[2]).tolist()
            if not (12 < x < CROP[1] - 13 and 12 < y < CROP[0] - 13):
                continue
            looked_at += 1
            # The spot is symmetric, so its center of mass is its middle.
            mass = changed.image[index, 0] * (changed.image[index, 0] > 0.05)
            middle = (pixel_grid(*CROP) * mass).sum(dim=(1, 2)) / mass.sum()
            torch.testing.assert_close(middle, torch.tensor([x, y]), atol=0.15, rtol=0)
            assert torch.equal(changed.depth[index].unique(), points[index, 2:])
    assert looked_at >= 12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**40), st.floats(0.0, 0.5), st.sampled_from([(44, 60), (60, 84), (90, 50)]))
def test_a_crop_never_reaches_beyond_its_image(index: int, rotation: float, crop: tuple[int, int]) -> None:
    config = dataclasses.replace(STRONG, crop=crop, rotation=rotation)
    back = torch.linalg.inv(sample_depth_parameters(config, (1, 2, index), SIZE).geometry.matrix)
    high, wide = crop
    # Corners are those of the outer pixels, half a pixel beyond their centers.
    corners = torch.tensor([[x, y, 1.0] for x in (-0.5, wide - 0.5) for y in (-0.5, high - 0.5)], dtype=torch.float64)
    x, y, _ = (back @ corners.T).unbind()
    assert x.min() > -0.5 - 1e-6 and x.max() < SIZE[1] - 0.5 + 1e-6
    assert y.min() > -0.5 - 1e-6 and y.max() < SIZE[0] - 0.5 + 1e-6


def test_depths_are_never_mixed_and_unknown_ones_stay_unknown() -> None:
    changed = augment_depth(wall(), SHAPES_ONLY, [(0, 0, 0)])
    assert torch.equal(changed.depth, changed.depth.round())
    assert torch.equal(changed.depth > 0, changed.valid) and changed.valid.dtype == torch.bool
    assert 0.6 < float(changed.valid.float().mean()) < 0.95


def test_an_unchanged_image_keeps_its_intrinsics_and_one_of_twice_the_size_has_twice_the_focal_length() -> None:
    middle = (SIZE[1] - 1) / 2, (SIZE[0] - 1) / 2
    same = apply_depth(wall(), [DepthParameters(RotatedCropGeometry(SIZE, middle))])
    torch.testing.assert_close(same.image, wall().image, atol=1e-5, rtol=0)
    assert torch.equal(same.depth, wall().depth) and torch.equal(same.intrinsics, wall().intrinsics)
    double = apply_depth(wall(), [DepthParameters(RotatedCropGeometry((120, 168), middle, scale=2.0))])
    # The middle of the image stays its middle: 41.5 of 84 pixels, 83.5 of 168.
    expected = torch.tensor([[140.0, 0.0, 2 * 40.5 + 0.5], [0.0, 140.0, 2 * 31.0 + 0.5], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(double.intrinsics[0], expected)


def test_a_sample_is_the_same_alone_and_in_a_batch_and_each_key_makes_another() -> None:
    keys = [(3, 1, index) for index in range(3)]
    together = augment_depth(join([wall(seed) for seed in range(3)]), STRONG, keys)
    for index, key in enumerate(keys):
        alone = augment_depth(wall(index), STRONG, [key])
        for field in ("image", "depth", "valid", "intrinsics"):
            assert torch.equal(getattr(together, field)[index], getattr(alone, field)[0]), field
    assert together.image.shape == (3, 3, *CROP) and 0 <= together.image.min() <= together.image.max() <= 1
    assert not torch.equal(augment_depth(wall(), STRONG, [(3, 1, 7)]).depth, together.depth[:1])


def test_a_large_image_is_shrunk_before_and_its_depths_and_camera_with_it() -> None:
    """One of twice the size is the same sample, but for the pixels of its depth that are heard."""
    half = dataclasses.replace(SHAPES_ONLY, pixels=SIZE[0] * SIZE[1])
    small, camera = wall(), torch.tensor([[140.0, 0.0, 81.5], [0.0, 140.0, 62.5], [0.0, 0.0, 1.0]])
    double = {
        name: getattr(small, name).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        for name in ("image", "depth", "valid")
    }
    large = dataclasses.replace(small, **double, intrinsics=camera[None])
    one, other = (augment_depth(each, half, [(0, 0, 4)]) for each in (small, large))
    torch.testing.assert_close(one.intrinsics, other.intrinsics)
    assert torch.equal(one.depth, other.depth) and torch.equal(one.valid, other.valid)
    assert float((one.image - other.image).abs().mean()) < 0.03


@pytest.mark.parametrize("name", DEPTH_AUGMENTATIONS)
def test_every_named_augmentation_makes_its_crop_of_a_smaller_image(name: str) -> None:
    config = DEPTH_AUGMENTATIONS[name]
    changed = augment_depth(dataclasses.replace(wall(), intrinsics=None), config, [(0, 0, 0)])
    assert changed.image.shape == (1, 3, *config.crop) and changed.intrinsics is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"rotation": 1.2}, "augmentation.rotation is 1.2, but it must be a number, 0 or more and at most 1."),
        (
            {"min_scale": -1.5},
            "augmentation.min_scale is -1.5, but it must be a number, -1 or more.",
        ),
        ({"pixels": 0.5}, "augmentation.pixels is 0.5, but it must be a whole number, 1 or more."),
        ({"rotation": -0.1}, "augmentation.rotation is -0.1, but it must be a number, 0 or more and at most 1."),
        (
            {"blur_probability": 1.5},
            "augmentation.blur_probability is 1.5, but it must be a number, 0 or more and at most 1.",
        ),
        (
            {"crop": (0, 10)},
            r"augmentation.crop is \(0, 10\), but it must be a list of 2 whole numbers, each 1 or more.",
        ),
        ({"min_scale": 1.0, "max_scale": 0.5}, "the augmentation's min_scale 1.0 is above its max_scale 0.5."),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        DepthAugmentation(**fields)  # type: ignore[arg-type]
