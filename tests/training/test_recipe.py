"""Recipes: those of the package, those of a person, and what is wrong with them."""

from pathlib import Path

import pytest

from protoformer.datasets.augmentation.depth import DEPTH_AUGMENTATIONS
from protoformer.datasets.augmentation.flow import AUGMENTATIONS
from protoformer.datasets.augmentation.photometric import Light
from protoformer.errors import InputError
from protoformer.models.config import PRESETS, TASKS
from protoformer.training.recipe import Recipe, packaged_recipes, read_recipe

PUBLISHED = {
    "flow-chairs": (120_000, 2.5e-4, (368, 496)),
    "flow-things": (120_000, 1.25e-4, (432, 960)),
    "flow-mix": (120_000, 1.25e-4, (432, 960)),
    "flow-kitti": (50_000, 1.25e-4, (432, 960)),
    # Of depth the paper names the rate; steps are those of flow's stages. Its crop, that of flow, leaves no
    # room to show images smaller than they are used.
    "depth-vkitti2": (120_000, 1.25e-4, (320, 960)),
    "depth-kitti": (50_000, 1.25e-4, (320, 960)),
    "depth-sintel": (50_000, 1.25e-4, (352, 832)),
}


def test_packaged_recipes_are_the_published_stages_and_the_synthetic_ones() -> None:
    others = {"flow-synthetic", "depth-synthetic", "depth-nyu", "track-lasot", "track-synthetic"}
    assert {*PUBLISHED, *others} <= set(packaged_recipes())


@pytest.mark.parametrize("name", packaged_recipes())
def test_a_packaged_recipe_is_read_and_says_what_it_is(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.task == name.partition("-")[0]
    assert recipe.description
    assert Recipe.from_dict(recipe.as_dict()) == recipe


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_stage_is_the_papers(name: str) -> None:
    recipe, (steps, rate, crop) = read_recipe(name), PUBLISHED[name]
    assert (recipe.run.steps, recipe.optimizer.lr, recipe.data.crop_size) == (steps, rate, crop)
    pixels = {"depth": {"max_pixels": 376 * 1242}} if recipe.task == "depth" else {}
    assert recipe.model.config() == PRESETS["paper"].changed(**pixels)
    assert (recipe.schedule.kind, recipe.schedule.warm_up, recipe.schedule.floor) == ("one_cycle", 0.05, 0.0)
    assert (recipe.optimizer.max_grad_norm, recipe.loss.gamma, recipe.data.source) == (1.0, 0.8, "dataset")


def test_the_mix_has_rafts_weights_and_scales() -> None:
    data = read_recipe("flow-mix").data
    weights = {name: section.weight for name, section in data.datasets.items()}
    assert weights == {"flyingthings3d": 1, "sintel": 100, "kitti-2015": 200, "hd1k": 5}
    kitti, hd1k = (data.datasets[name].build_augmentation(data.crop_size) for name in ("kitti-2015", "hd1k"))
    assert (kitti.min_scale, kitti.max_scale, kitti.flip_horizontal, kitti.sparse) == (-0.3, 0.5, 0.5, True)
    assert (hd1k.min_scale, hd1k.max_scale, hd1k.flip_vertical, hd1k.sparse) == (-0.5, 0.2, 0.0, True)


@pytest.mark.parametrize("name", ["flow-synthetic", "depth-synthetic", "depth-nyu"])
def test_synthetic_recipes_decay_only_if_it_is_set(name: str) -> None:
    recipe = read_recipe(name)
    assert (recipe.schedule.kind, recipe.schedule.decay) == ("constant", 0)
    assert recipe.run.steps is None  # so that another go can always follow
    assert sum(recipe.data.families.values()) == pytest.approx(1)
    assert recipe.changed(["schedule.decay=0.2"]).schedule.decay == 0.2


def test_keys_are_set_as_they_are_typed() -> None:
    recipe = Recipe().changed(
        [
            "optimizer.lr=1e-4",
            "data.crop_size=[64, 96]",
            "data.families={drive: 1}",
            "data.families.room=0.5",
            "data.zoom={drive: [1, 2.5]}",
            "data.relighting.gamma=0.5",
            "data.relighting.erase_size=[5, 9]",
            "data.datasets.kitti-2015.root=2015",
            "data.datasets.kitti-2015.overrides.erase_size=[5, 9]",
            "data.texture_bank=on",
            "model.overrides.encoder.embed_dims=[32, 64]",
            "model.init_weights=null",
            "run.steps=1e3",
            "run.minutes = 2.5",
        ]
    )
    assert recipe.optimizer.lr == 1e-4
    assert recipe.data.crop_size == (64, 96)
    assert recipe.data.families == {"drive": 1.0, "room": 0.5}
    assert recipe.data.zoom == {"drive": (1.0, 2.5)}
    assert recipe.data.relighting == Light(gamma=0.5, erase_size=(5, 9))
    assert recipe.data.datasets["kitti-2015"].root == "2015"
    assert recipe.data.datasets["kitti-2015"].build_augmentation((64, 96)).erase_size == (5, 9)
    assert recipe.data.texture_bank == "on"
    assert recipe.model.config().encoder.embed_dims == (32, 64)
    assert recipe.model.init_weights is None
    assert (recipe.run.steps, recipe.run.minutes) == (1000, 2.5)
    assert Recipe.from_dict(recipe.as_dict()) == recipe


def test_a_later_setting_wins_and_the_first_recipe_stays_as_it_was() -> None:
    recipe = Recipe()
    assert recipe.changed(["data.batch_size=4", "data.batch_size=6"]).data.batch_size == 6
    assert recipe == Recipe()


def test_two_recipes_differ_under_the_keys_that_were_set() -> None:
    recipe = Recipe()
    other = recipe.changed(["model.overrides.encoder.num_prototypes=50", "data.families.drive=1", "run.steps=10"])
    assert recipe.differences(other) == ("model.overrides.encoder", "data.families.drive", "run.steps")
    assert recipe.differences(Recipe()) == ()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("optimizer.rat=1", "there is no key optimizer.rat; the nearest one is optimizer.lr."),
        ("optimizer.decay=1", "there is no key optimizer.decay; the nearest one is optimizer.ema_decay."),
        ("modell.preset=tiny", "there is no key modell; the nearest one is model."),
        (
            "data.datasets.sintel.wieght=2",
            "there is no key data.datasets.sintel.wieght; the nearest one is data.datasets.sintel.weight.",
        ),
        (
            "model.overrides.encoder.num_prototype=3",
            "there is no field of encoder 'num_prototype'; the nearest one is 'num_prototypes'.",
        ),
        ("model.preset=big", "there is no preset 'big'; choose one of paper, fast, tiny."),
        ("data.families.objets=1", "there is no family of scenes 'objets'; the nearest one is 'objects'."),
        ("data.motion_scale.objets=[1, 2]", "there is no family of scenes 'objets'; the nearest one is 'objects'."),
        ("data.zoom.drives=[1, 2]", "there is no family of scenes 'drives'; the nearest one is 'drive'."),
        (
            "data.zoom.drive=[0.5, 2]",
            "data.zoom.drive is [0.5, 2], but it must be a list of 2 numbers, each 1 or more.",
        ),
        (
            "data.zoom.drive=[3, 2]",
            "data.zoom.drive is [3.0, 2.0], but the greater number must be the last.",
        ),
        ("data.relighting.gama=1", "there is no key data.relighting.gama; the nearest one is data.relighting.gamma."),
        ("data.relighting.gamma=-1", "data.relighting.gamma is -1, but it must be a number, 0 or more."),
        ("data.relighting.shade=2", "data.relighting.shade is 2, but it must be a number, 0 or more and at most 1."),
        ("data.datasets.sintle.root=x", "there is no dataset of flow 'sintle'; the nearest one is 'sintel'."),
        (
            "data.datasets.sintel.augmentation=chair",
            f"there is no augmentation 'chair'; choose one of {', '.join((*AUGMENTATIONS, *DEPTH_AUGMENTATIONS))}.",
        ),
        (
            "data.datasets.sintel.augmentation=rooms",
            "data.datasets.sintel.augmentation is 'rooms', but it must be one of flow, such as chairs.",
        ),
        ("data.synthetic_fraction=1", "data.synthetic_fraction is 1, but it must be a number, above 0 and below 1."),
        ("data.source=mix", "data.datasets gives no dataset a weight; name one, such as sintel: {weight: 1}."),
        ("loss.edges=-1", "loss.edges is -1, but it must be a number, 0 or more."),
        ("loss.min_depth=90", "loss.min_depth is 90.0, but it must be below loss.max_depth."),
        (
            "data.datasets.sintel.overrides.crop=[4, 4]",
            "the crop of an augmentation is data.crop_size; leave it out of the overrides.",
        ),
        ("optimizer.lr=fast", "optimizer.lr is 'fast', but it must be a number, above 0."),
        ("optimizer.lr=nan", "optimizer.lr is 'nan', but it must be a number, above 0."),
        ("optimizer.lr=true", "optimizer.lr is True, but it must be a number, above 0."),
        ("optimizer.lr=-1", "optimizer.lr is -1, but it must be a number, above 0."),
        ("data.batch_size=1.5", "data.batch_size is 1.5, but it must be a whole number, 1 or more and at most 65536."),
        (
            "data.crop_size=64",
            "data.crop_size is 64, but it must be a list of 2 whole numbers, each 16 or more and at most 16384.",
        ),
        (
            "data.crop_size=[64, 8]",
            "data.crop_size is [64, 8], but it must be a list of 2 whole numbers, each 16 or more and at most 16384.",
        ),
        ("model.activation_checkpointing=1", "model.activation_checkpointing is 1, but it must be true or false."),
        ("run.execution=fast", "run.execution is 'fast', but it must be one of eager, compile, graph, both."),
        ("optimizer=3", "optimizer is 3, but it must be a section of keys and values."),
        ("data.families=drive", "data.families is 'drive', but it must be a section of keys and values."),
        ("optimizer.lr.x=1", "optimizer.lr holds no keys, so optimizer.lr.x cannot be set."),
        ("optimizer.lr", "'optimizer.lr' is not a setting; write it as key=value, such as optimizer.lr=1e-4."),
        ("schedule.warm_up=1.5", "schedule.warm_up is 1.5, but it must be a fraction below 1, or a number of steps."),
        (
            "schedule.kind=one_cycle",
            "a schedule of one_cycle needs the total number of steps; give run.steps a number.",
        ),
        ("data.families.objects=0", "data.families gives no family a weight; give one, such as objects: 1."),
        (
            "data.source=dataset",
            "data.datasets gives no dataset a weight; name one, such as sintel: {weight: 1}.",
        ),
        ("task=dept", f"there is no task 'dept'; choose one of {', '.join(TASKS)}."),
    ],
)
def test_a_wrong_setting_is_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Recipe().changed([setting])
    assert str(caught.value) == sentence


def test_a_recipe_of_your_own_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("task: flow\nmodel: {preset: tiny}\noptimizer:\n  lr: 1e-3\nrun: {steps: 5}\ndata:\n")
    recipe = read_recipe(path)
    assert recipe == Recipe().changed(["model.preset=tiny", "optimizer.lr=0.001", "run.steps=5"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model: {preset: tiny", "line 1: expected ',' or '}', but got '<stream end>'"),
        ("run: {steps: 1}\nrun: {steps: 2}\n", "line 2: the key 'run' is given twice"),
        ("- 3\n", "it holds no sections"),
        ("model: !!python/object/apply:os.system [ls]\n", "line 1: tags, which begin with !, are not allowed"),
        ("optimizer: {rat: 1}\n", "there is no key optimizer.rat; the nearest one is optimizer.lr"),
        ("[" * 5000, "line 1: values are nested in more than 12 levels"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path} is not a recipe: {reason}")
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"there is no recipe 'flow-chair'; the nearest known one is 'flow-chairs'"):
        read_recipe("flow-chair")
    with pytest.raises(InputError, match=r"nowhere\.yaml does not exist"):
        read_recipe("nowhere.yaml")
