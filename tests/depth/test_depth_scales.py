"""A depth network runs at the scales that it was trained at."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from protoformer.datasets.augmentation.depth import DepthAugmentation, augment_depth, sample_depth_parameters
from protoformer.datasets.base import pinhole
from protoformer.datasets.depth import kinect
from protoformer.depth.camera import CameraHint, resolve_camera
from protoformer.depth.engine import DepthEngine
from protoformer.errors import InputError
from protoformer.geometry.warps import limited_size
from protoformer.models.config import preset
from protoformer.models.heads.depth import focal_length
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.synthetic.families.room import FOCAL
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.samples import DepthSample
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.recipe import Recipe, packaged_recipes, read_recipe

IMAGES: dict[str, list[tuple[tuple[int, int], torch.Tensor]]] = {
    "nyuv2": [((480, 640), kinect(640, 480)), ((240, 320), kinect(320, 240))],
    "rgbd": [((480, 640), pinhole(585.0, 585.0, 320.0, 240.0)), ((240, 320), pinhole(262.5, 262.5, 159.5, 119.5))],
    "kitti-eigen": [((375, 1242), pinhole(721.5, 721.5, 609.6, 172.9)), ((370, 1224), pinhole(707.1, 707.1, 602, 183))],
    "vkitti2-depth": [((375, 1242), pinhole(725.0, 725.0, 620.5, 187.0))],
    "sintel-depth": [((436, 1024), pinhole(1120.0, 1120.0, 511.5, 217.5))],
    "own-depth": [((480, 640), pinhole(554.3, 554.3, 320.0, 240.0))],  # the field of view without intrinsics
}
"""Sizes and cameras of the datasets' images."""
CASES = [
    (recipe, dataset, *image)
    for recipe in packaged_recipes()
    if recipe.startswith("depth-")
    for dataset in read_recipe(recipe).data.datasets
    for image in IMAGES[dataset]
]


def network(recipe: Recipe) -> ProtoFormer:
    """A small one that is used as that of the recipe."""
    return build_network(preset("tiny", depth={"max_pixels": recipe.model.config().depth.max_pixels}), "depth")


def in_use(recipe: Recipe, size: tuple[int, int], camera: torch.Tensor) -> float:
    """The focal length of what a network sees of an image, pixels."""
    taken = resolve_camera(size, CameraHint(intrinsics=camera))
    return DepthEngine(network(recipe), torch.device("cpu"), size, taken).focal


def varied(recipe: Recipe, dataset: str) -> DepthAugmentation:
    config = recipe.data.datasets[dataset].build_augmentation(recipe.data.crop_size)
    assert isinstance(config, DepthAugmentation)
    return config


@pytest.mark.parametrize(("name", "dataset", "size", "camera"), CASES)
def test_the_scale_of_use_lies_well_inside_those_of_training(
    name: str, dataset: str, size: tuple[int, int], camera: torch.Tensor
) -> None:
    recipe = read_recipe(name)
    config = varied(recipe, dataset)
    shown = limited_size(size, config.pixels)
    focal = float(focal_length(camera[None])) * math.sqrt(shown[0] / size[0] * shown[1] / size[1])
    drawn = [focal * sample_depth_parameters(config, (0, 0, index), shown).geometry.scale for index in range(500)]
    low, high = np.percentile(drawn, (10, 90))
    assert low < in_use(recipe, size, camera) < high
    assert max(drawn) / min(drawn) > 1.4


@pytest.mark.parametrize("size", [(480, 640), (240, 320)])
def test_the_camera_of_a_varied_image_is_that_of_the_scale_it_was_drawn_at(size: tuple[int, int]) -> None:
    recipe = read_recipe("depth-nyu")
    config = varied(recipe, "nyuv2")
    camera = kinect(size[1], size[0])
    depth = torch.ones(1, 1, *size)
    sample = DepthSample(image=torch.rand(1, 3, *size), depth=depth, valid=depth > 0, intrinsics=camera[None])
    changed = augment_depth(sample, config, [(0, 0, 3)])
    scale = sample_depth_parameters(config, (0, 0, 3), (240, 320)).geometry.scale
    assert changed.intrinsics is not None and changed.image.shape[-2:] == recipe.data.crop_size
    assert float(focal_length(changed.intrinsics)) == pytest.approx(scale * in_use(recipe, size, camera), rel=1e-5)
    # Images of any resolution train alike: a thing is where, and as large as, that of half the size has it.
    half = dataclasses.replace(
        sample,
        **{name: getattr(sample, name)[..., :240, :320] for name in ("image", "depth", "valid")},
        intrinsics=kinect(320, 240)[None],
    )
    torch.testing.assert_close(changed.intrinsics, augment_depth(half, config, [(0, 0, 3)]).intrinsics)


def test_synthetic_scenes_are_rendered_at_the_inference_size_with_the_lens_of_a_depth_camera() -> None:
    recipe = read_recipe("depth-synthetic")
    assert math.prod(recipe.data.crop_size) == recipe.model.config().depth.max_pixels
    world = SyntheticScenes("room", size=(24, 32), bank=procedural_bank(16, 2))
    drawn = 10 * world.renderer(list(range(60))).scenes.camera.focal[:, 0].numpy()  # as of 320 pixels across
    low, high = np.percentile(drawn, (10, 90))
    assert low < in_use(recipe, (480, 640), kinect(640, 480)) < high and low < 320 * FOCAL < high


@pytest.mark.parametrize("name", ["depth-kitti", "depth-vkitti2", "depth-sintel"])
def test_a_published_stage_is_scored_in_meters_where_possible_and_starts_the_next(name: str) -> None:
    recipe = read_recipe(name)
    assert dict(recipe.data.families) == {"drive": 1.0}
    assert recipe.model.config() == read_recipe("depth-vkitti2").model.config()


def test_another_size_of_use_needs_images_of_that_size() -> None:
    recipe = read_recipe("depth-kitti")
    with pytest.raises(
        InputError, match="kitti-eigen is shown at up to 466992 pixels, but the model is used at up to 9;"
    ):
        recipe.changed(["model.overrides.depth.max_pixels=9"])
    fields = {"pixels": 90_000}
    section = dataclasses.replace(recipe.data.datasets["kitti-eigen"], overrides=fields)
    data = dataclasses.replace(recipe.data, datasets={"kitti-eigen": section})
    model = dataclasses.replace(recipe.model, overrides={"depth": {"max_pixels": 90_000}})
    assert varied(dataclasses.replace(recipe, data=data, model=model), "kitti-eigen").pixels == 90_000
