"""Recipes that were made to do harm: whatever they say, they cost little and end in one sentence."""

import time
import tracemalloc
from pathlib import Path

import pytest

from protoformer.errors import InputError
from protoformer.io.config_reader import MAX_TEXT
from protoformer.training.recipe import MAX_BYTES, Recipe, packaged_recipes, read_recipe

LAUGHS = "a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"{name}: &{name} [{', '.join(f'*{before}' for _ in range(9))}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def refused(path: Path, text: str) -> str:
    """The message with which a recipe is refused, which comes soon and takes little memory."""
    path.write_text(text)
    began = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            read_recipe(path)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 5
    assert len(str(caught.value)) < 600
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "line 1: anchors and aliases, & and *, are not allowed"),
        ("run: &run {steps: 3}\n", "line 1: anchors and aliases"),
        ("task: flow\nrun: *run\n", "line 2: anchors and aliases"),
        ("run: {<<: {steps: 3}}\n", "line 1: merge keys, <<, are not allowed"),
        ("run: !!map {steps: 3}\n", "line 1: tags, which begin with !, are not allowed"),
        ("description: !secret x\n", "line 1: tags, which begin with !, are not allowed"),
        ("description: !!binary aGk=\n", "line 1: tags, which begin with !, are not allowed"),
        (
            "model: {overrides: " + "{a: " * 20 + "1" + "}" * 20 + "}",
            "line 1: values are nested in more than 12 levels",
        ),
        (
            "model: {overrides: {encoder: {num_prototypes: " + "[" * 4 + "]" * 4 + "}}}",
            "encoder.num_prototypes is ([[[]]],)",
        ),
        ("run: {steps: 1, steps: 2}\n", "line 1: the key 'steps' is given twice"),
        ("run: {steps: " + "9" * 5000 + "}\n", "Exceeds the limit"),
        ("run: {minutes: " + "9" * 400 + "}\n", "run.minutes is a whole number of"),
        ("run: {minutes: 0x" + "f" * 20000 + "}\n", "run.minutes is a whole number of 80000 bits"),
        ("run: {steps: [" + "1, " * 10000 + "1]}\n", "run.steps is [1, 1, 1, 1, 1, 1, 1, 1, ...]"),
        ("task: " + "x" * 30000 + "\n", "there is no task 'xxx"),
        ("x" * 900 + ": 3\n", "there is no key 'xxx"),
        ("data: {families: {" + "y" * 900 + ": 3}}\n", "there is no family of scenes 'yyy"),
        (
            "data: {batch_size: 1000000000}\n",
            "data.batch_size is 1000000000, but it must be a whole number, 1 or more and at most",
        ),
        (
            "data: {crop_size: [1000000000, 16]}\n",
            "data.crop_size is [1000000000, 16], but it must be a list of 2 whole numbers, each 16 or more and at most",
        ),
        (
            "data: {num_workers: 1000000}\n",
            "data.num_workers is 1000000, but it must be a whole number, 0 or more and at most",
        ),
        (
            "model: {overrides: {encoder: {depths: [1000000, 2]}}}\n",
            "encoder.depths is (1000000, 2), but it must be a list of 2 whole numbers",
        ),
        ("# " + "x" * MAX_TEXT + "\n", f"at most {MAX_TEXT} are read"),
    ],
)
def test_a_recipe_that_asks_for_too_much_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refused(tmp_path / "mine.yaml", text)


def test_a_long_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert f"is longer than {MAX_BYTES} bytes, too long for a recipe" in refused(path, " " * (MAX_BYTES + 1))


@pytest.mark.parametrize(
    "setting",
    [
        "run.steps=&a [1, *a]",
        "data.families=" + LAUGHS,
        "run." + "a." * 5000 + "b=3",
        "model.overrides." + "a." * 100 + "b=3",
        "x" * 100_000,
        "run.steps=" + "9" * 100_000,
        "data.crop_size=" + "[" * 50_000,
        "description.a=3",
    ],
    ids=lambda setting: setting[:16],
)
def test_a_setting_that_asks_for_too_much_is_refused(setting: str) -> None:
    began = time.perf_counter()
    with pytest.raises(InputError) as caught:
        Recipe().changed([setting])
    assert len(str(caught.value)) < 600
    assert time.perf_counter() - began < 5


def test_nesting_without_end_is_refused_in_plain_values() -> None:
    value: object = 1
    for _ in range(500):
        value = [value]
    with pytest.raises(InputError, match="nested in more than 12 levels"):
        Recipe.from_dict({"model": {"overrides": {"prototypes": value}}})


def test_recipes_of_the_package_are_far_from_the_limits() -> None:
    folder = Path(__file__).parents[2] / "src" / "protoformer" / "recipes"
    assert all(10 * (folder / f"{name}.yaml").stat().st_size < MAX_TEXT for name in packaged_recipes())
