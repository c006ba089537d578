"""A run is refused before its first step if it cannot fit into memory, or its data cannot be trained on."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protoformer.errors import InputError
from protoformer.io.formats import write_flo
from protoformer.io.image import write_image
from protoformer.training import preflight
from protoformer.training.preflight import check_own_samples, check_step_memory, fitting_settings, step_bytes
from protoformer.training.recipe import packaged_recipes, read_recipe

GIB = 2**30


@pytest.fixture
def with_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the free memory in GiB."""
    return lambda gib: monkeypatch.setattr(preflight, "free_bytes", lambda _: int(gib * GIB))


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_recipe_has_an_estimate_that_grows_with_the_batch(name: str) -> None:
    recipe = read_recipe(name)
    smaller = recipe.changed([f"data.batch_size={recipe.data.batch_size // 2}"])
    assert preflight.FIXED_BYTES < step_bytes(smaller) < step_bytes(recipe)


@pytest.mark.parametrize("name", ["flow-own", "depth-own", "track-own", "flow-synthetic", "flow-things"])
@pytest.mark.parametrize("gib", [1.5, 2, 4, 8, 12])
def test_the_settings_that_are_offered_fit(name: str, gib: float) -> None:
    recipe = read_recipe(name)
    settings = fitting_settings(recipe, int(gib * GIB))
    if settings:
        offered = recipe.changed(settings)
        assert step_bytes(offered) <= gib * GIB
        assert math.prod(offered.data.crop_size) <= math.prod(recipe.data.crop_size)
        assert min(offered.data.crop_size) >= preflight.MIN_CROP


def test_a_step_that_does_not_fit_is_refused_with_settings_that_do(with_free: Callable[[float], None]) -> None:
    recipe = read_recipe("flow-synthetic")
    with_free(64)
    check_step_memory(recipe, "flow-synthetic")
    with_free(6)
    with pytest.raises(
        InputError,
        match=r"a step of flow-synthetic, 16 samples of 640x352 pixels, takes about .* GiB of memory and 6.0 GiB are "
        r"free; add --set data.batch_size=[124].$",
    ):
        check_step_memory(recipe, "flow-synthetic")
    with_free(1.5)
    with pytest.raises(InputError, match=r'add --set data.batch_size=1 --set "data.crop_size=\[\d+, \d+\]".$'):
        check_step_memory(recipe, "flow-synthetic")
    with_free(0.5)
    with pytest.raises(InputError, match="close other programs"):
        check_step_memory(recipe, "flow-synthetic")


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)


def test_pairs_without_flow_are_refused(tmp_path: Path) -> None:
    for kind in ("first", "second"):
        (tmp_path / kind).mkdir()
        write_image(tmp_path / kind / "a.png", image())
    recipe = read_recipe("flow-own").with_data(tmp_path)
    with pytest.raises(InputError, match=rf"first/a.png in {tmp_path} cannot be trained on: it has no flow; add"):
        check_own_samples(recipe)
    (tmp_path / "flow").mkdir()
    write_flo(tmp_path / "flow/a.flo", np.ones((16, 24, 2), dtype=np.float32))
    check_own_samples(recipe)
    (tmp_path / "second/a.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"second/a.png is not an image"):
        check_own_samples(recipe)


def test_depths_in_another_unit_are_refused(tmp_path: Path) -> None:
    for kind in ("image", "depth"):
        (tmp_path / kind).mkdir()
    write_image(tmp_path / "image/a.png", image())
    np.save(tmp_path / "depth/a.npy", np.full((16, 24), 1500.0))
    recipe = read_recipe("depth-own").with_data(tmp_path)
    with pytest.raises(InputError, match=r"no depth is between 0.1 and 80 m; check the unit of the files"):
        check_own_samples(recipe)
    np.save(tmp_path / "depth/a.npy", np.full((16, 24), 1.5))
    check_own_samples(recipe)
    with pytest.raises(InputError, match=r"its camera is not known; write fx fy cx cy to camera.txt, or"):
        check_own_samples(recipe.changed(["data.datasets.own-depth.options={}"]))


def test_clips_without_a_box_are_refused(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    for number in range(2):
        write_image(tmp_path / f"clip/{number}.png", image())
    (tmp_path / "clip/groundtruth.txt").write_text("nan,nan,nan,nan\n" * 2)
    with pytest.raises(InputError, match="no frame has a box; add boxes, or remove the clip"):
        check_own_samples(read_recipe("track-own").with_data(tmp_path))


def test_a_folder_is_given_to_a_recipe_with_one_dataset(tmp_path: Path) -> None:
    assert read_recipe("flow-own").with_data(tmp_path).data.datasets["own"].root == str(tmp_path)
    for name, count in (("flow-synthetic", 0), ("flow-mix", 4)):
        with pytest.raises(InputError, match=f"the recipe has {count} datasets, and a folder can be given to a recipe"):
            read_recipe(name).with_data(tmp_path)
