"""Explanations as images, JSON and a page."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.explain.drawing import (
    draw_em_iterations,
    draw_groups,
    draw_parts,
    draw_prototype_frame,
    draw_values,
    part_colors,
    prototype_colors,
    tint_image,
    value_colors,
)
from protoformer.explain.page import explanation_page
from protoformer.explain.record import explanation_record
from protoformer.explain.video import PrototypeFrame
from protoformer.geometry.regions import boundaries
from protoformer.io.image import image_size
from protoformer.synthetic.layers import random_scene
from protoformer.viz.colormaps import distinct_colors, flow_to_color, label_colors

pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
SIZE = (44, 60)


@pytest.fixture(scope="module")
def model() -> pf.FlowPredictor:
    return pf.load("tiny", "cpu")


@pytest.fixture(scope="module")
def explanation(model: pf.FlowPredictor) -> pf.Explanation:
    scene = random_scene(SIZE, seed=1, motion=3.0).render()
    return model.explain(scene.first, scene.second)


def decode_runs(runs: list[int]) -> list[int]:
    """Decode run-length encoded values."""
    return [number for number, times in zip(runs[::2], runs[1::2], strict=True) for _ in range(times)]


def test_colors_are_the_same_in_every_run(model: pf.FlowPredictor, explanation: pf.Explanation) -> None:
    again = model.explain(explanation.images[0].image, explanation.images[1].image)
    for one, other in zip(draw_groups(explanation), draw_groups(again), strict=True):
        assert one.shape == (*SIZE, 3) and np.array_equal(one, other)


@pytest.mark.parametrize("families", [None, 4])
def test_matched_prototypes_share_a_color_and_others_are_gray(
    explanation: pf.Explanation, families: int | None
) -> None:
    first_colors, second_colors = prototype_colors(explanation, "1.1", families)
    matches = explanation.matches("1.1")
    assert matches
    for match in matches:
        assert torch.equal(first_colors[match.first], second_colors[match.second])
    alone = sorted(set(range(16)) - {match.second for match in matches})
    assert (second_colors[alone] == second_colors[alone][:, :1]).all()
    used = explanation.first.layer("1.1").used
    assert len(first_colors[used].unique(dim=0)) == (len(used) if families is None else families)


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (5, 10), (10, 10), (10, 20)])
def test_prototypes_beside_one_another_have_different_colors(rows: int, columns: int) -> None:
    colors = distinct_colors(rows * columns).view(rows, columns, 3)
    for down, across in ((0, 1), (1, 0)):
        gaps = (colors[down:, across:] - colors[: rows - down, : columns - across]).norm(dim=-1)
        assert gaps.min() > 0.15


def test_tint_strength_ranges_from_color_to_gray() -> None:
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    labels = torch.arange(20).view(4, 5) % 2
    shown = tint_image(image, labels, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), 1.0)
    assert shown[0, 0].tolist() == [255, 0, 0] and shown[0, 1].tolist() == [0, 0, 255]
    pale = tint_image(image, labels, torch.rand(2, 3), 0.0)
    assert (np.ptp(pale, axis=2) == 0).all()


def test_a_group_keeps_its_color_along_a_clip(model: pf.FlowPredictor) -> None:
    image = random_scene(SIZE, seed=2, motion=0.0).render().first[0]
    frames = [draw_prototype_frame(step) for step in model.explain_video([image] * 3)]
    assert all(np.array_equal(frames[0], each) for each in frames[1:])


def test_colors_depend_on_the_family_index_of_any_size() -> None:
    names = torch.tensor([[3, 3, 1_000_000_000]])
    frame = draw_prototype_frame(PrototypeFrame(0, Fraction(0), np.zeros((1, 3, 3), np.float32), names, names, 1.0))
    expected = 0.6 * 255 * label_colors([3, 1_000_000_000])
    assert np.abs(frame[0, [0, 2]] - expected.numpy()).max() <= 1
    assert np.abs(frame[0, 1] - expected[0].numpy() / 3).max() <= 1  # the outline
    assert torch.equal(label_colors([3])[0], distinct_colors(4)[3])


def test_em_steps_are_side_by_side_and_end_with_the_groups(explanation: pf.Explanation) -> None:
    shown = draw_em_iterations(explanation, "1.1")
    steps = explanation.first.layer("1.1").num_iterations
    assert shown.shape == (44, 60 * (steps + 1), 3)
    assert np.array_equal(shown[:, -60:], draw_groups(explanation, "1.1")[0])
    assert not np.array_equal(shown[:, :60], shown[:, -60:])


def test_files_contain_the_explanation(explanation: pf.Explanation, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    written = pf.save_explanation(
        tmp_path / "new" / "out", explanation, layer="2.1", prototypes=(3,), progress=lambda *each: calls.append(each)
    )
    assert calls == [(1, 2), (2, 2)]
    assert {path.name for path in written} == {path.name for path in (tmp_path / "new" / "out").iterdir()}
    sizes = {path.name: image_size(path)[::-1] for path in written if path.suffix == ".png"}
    assert sizes == {
        "2.1-groups.png": (120, 44),
        "2.1-motion.png": (120, 44),
        "2.1-parts.png": (120, 44),
        "2.1-families.png": (120, 44),
        "2.1-steps.png": (60 * (explanation.first.layer().num_iterations + 1), 44),
        "2.1-prototype-3.png": (60, 44),
    }
    record = json.loads((tmp_path / "new" / "out" / "explanation.json").read_text())
    assert set(record) == {"task", "trained", "unit", "width", "height", "layers"}
    assert (record["task"], record["unit"], record["width"], record["height"]) == ("flow", "px", 60, 44)
    (layer,) = record["layers"]
    assert set(layer) == {
        *("name", "stride", "prototypes", "steps", "log_likelihood", "changed", "moved", "contraction", "drift"),
        *("matches", "images", "removals", "parts"),
    }
    first, second = layer["images"]
    assert first["assignment"] == explanation.first.layer("2.1").assignment.tolist()
    assert set(first["groups"][0]) == {"prototype", "pixels", "share", "center", "mean", "spread", "nearest"}
    assert (
        sum(group["pixels"] for group in first["groups"])
        == sum(group["pixels"] for group in second["groups"])
        == 44 * 60
    )
    assert len(first["groups"][0]["mean"]) == 2 and second["groups"][0]["mean"] == []
    assert {match["first"] for match in layer["matches"]} <= {group["prototype"] for group in first["groups"]}


def test_the_record_contains_the_part_of_every_pixel(explanation: pf.Explanation) -> None:
    moving = explanation.parts("1.1")
    record = explanation_record(explanation, ("1.1",))["layers"][0]["parts"]
    assert moving is not None and set(record) == {"maps", "parts"}
    for runs, labels in zip(record["maps"], (moving.labels, moving.second), strict=True):
        assert [decode_runs(row) for row in runs] == labels.tolist()
    assert [each["part"] for each in record["parts"]] == list(range(len(moving.parts)))
    assert set(record["parts"][0]) == {"part", "pixels", "share", "center", "mean", "spread", "prototypes"}
    assert sum(each["pixels"] for each in record["parts"]) == 44 * 60
    largest = record["parts"][0]
    assert sum(pixels for _, pixels in largest["prototypes"]) == largest["pixels"]


def test_a_part_has_one_color_in_both_images_and_in_every_run(
    model: pf.FlowPredictor, explanation: pf.Explanation
) -> None:
    again = model.explain(explanation.images[0].image, explanation.images[1].image)
    shown = draw_parts(explanation)
    assert all(np.array_equal(one, other) for one, other in zip(shown, draw_parts(again), strict=True))
    black = pf.Explanation("flow", *(replace(each, image=0 * each.image) for each in explanation.images))
    moving = black.parts()
    assert moving is not None
    colors = (0.6 * 255 * part_colors(len(moving.parts))).round()
    for tinted, labels in zip(draw_parts(black), (moving.labels, moving.second), strict=True):
        inside = ~boundaries(labels)
        assert (torch.from_numpy(tinted)[inside] - colors[labels[inside]]).abs().max() <= 1


def test_without_motion_there_are_no_parts(model: pf.FlowPredictor, tmp_path: Path) -> None:
    alone = model.explain(random_scene(SIZE, seed=1).render().first)
    assert draw_parts(alone) == draw_values(alone) == [] and alone.removals() == ()
    written = pf.save_explanation(tmp_path, alone)
    assert not [path for path in written if path.name.endswith(("-parts.png", "-motion.png"))]
    assert json.loads((tmp_path / "explanation.json").read_text())["layers"][0]["parts"] is None


def test_regions_have_the_color_of_their_mean_motion(explanation: pf.Explanation) -> None:
    layer, (first_colors, second_colors) = explanation.first.layer("1.1"), value_colors(explanation, "1.1")
    means = torch.zeros(1, 16, 2)
    for group in explanation.first.groups("1.1"):
        means[0, group.prototype] = torch.tensor(group.mean)
    assert torch.equal((255 * first_colors).round().byte(), torch.from_numpy(flow_to_color(means.numpy())[0]))
    for match in explanation.matches("1.1"):
        assert torch.equal(first_colors[match.first], second_colors[match.second])
    black = replace(explanation, first=replace(explanation.first, image=0 * explanation.first.image))
    drawn, labels = torch.from_numpy(draw_values(black, "1.1")[0]), layer.labels()
    inside = ~boundaries(labels)
    assert (drawn[inside] - 0.75 * 255 * first_colors[labels[inside]]).abs().max() <= 1


def test_the_record_and_the_page_contain_removals(explanation: pf.Explanation) -> None:
    (layer,) = explanation_record(explanation, ("1.1",), removals=2)["layers"]
    effects = explanation.removals("1.1", 2)
    assert [each["prototype"] for each in layer["removals"]] == [effect.prototype for effect in effects]
    assert [each["inside"] for each in layer["removals"]] == [round(effect.inside, 6) for effect in effects]
    data = json.loads(re.search(r'id="data">(.*?)</script>', explanation_page(explanation, removals=2), re.DOTALL)[1])  # type: ignore[index]
    expected = {str(effect.prototype): [effect.inside, effect.outside] for effect in effects}
    assert data["layers"][0]["removals"] == expected


def test_the_page_is_self_contained(explanation: pf.Explanation) -> None:
    page = explanation_page(explanation)
    assert "http" not in page.lower() and "@import" not in page and "url(" not in page
    assert re.findall(r'(?:src|href)="(.{5})', page) == ["data:"]
    assert "untrained network" in page and page.count("<script") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1].replace("<\\/", "</"))  # type: ignore[index]
    assert [layer["name"] for layer in data["layers"]] == ["1.1", "2.1"]
    assert all(image["address"].startswith("data:image/jpeg;base64,") for image in data["images"])
    for layer in data["layers"]:
        assert len(layer["images"][0]["maps"]) == len(layer["images"][0]["groups"]) == layer["steps"] + 1
        moving, parts = explanation.parts(layer["name"]), layer["parts"]
        assert moving is not None and (parts["rows"], parts["columns"]) == SIZE
        assert decode_runs(parts["maps"][0]) == moving.labels.flatten().tolist()
        assert len(parts["colors"]) == len(parts["groups"]) + 1 == len(moving.parts) + 1


def test_a_network_without_steps_has_a_page_too(model: pf.FlowPredictor, tmp_path: Path) -> None:
    pooled = pf.load("tiny", "cpu", task="flow", encoder={"components": "ls"})
    explained = pooled.explain(random_scene(SIZE, seed=1).render().first)
    pf.save_explanation(tmp_path, explained, prototypes=(0,))
    (first, _) = json.loads((tmp_path / "explanation.json").read_text())["layers"]
    assert first["steps"] == 0 and first["contraction"] is None and first["log_likelihood"] == []
    assert "there are no iterations" in (tmp_path / "index.html").read_text()
