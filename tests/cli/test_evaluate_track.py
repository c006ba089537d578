"""`protoformer evaluate track`: a benchmark's tree in, its table and files out."""

import csv
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protoformer.io.image import write_image

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Run = Callable[..., Any]
FRAMES = 4


@pytest.fixture
def otb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moving_pattern: Callable[..., list[np.ndarray]]) -> Path:
    """OTB, in the current folder, with a clip in which a pattern goes right and one in which it goes down."""
    monkeypatch.chdir(tmp_path)
    for name, (right, down) in {"Across": (3, 0), "Down": (0, 3)}.items():
        folder = Path("OTB") / name / "img"
        folder.mkdir(parents=True)
        for number, frame in enumerate(moving_pattern(FRAMES, right, down), 1):
            write_image(folder / f"{number:04d}.png", frame)
        lines = "".join(f"{21 + right * n}\t{31 + down * n}\t24\t24\n" for n in range(FRAMES))
        (folder.parent / "groundtruth_rect.txt").write_text(lines)
    return Path("OTB")


@pytest.fixture
def trackingnet(otb: Path) -> Path:
    """TrackingNet's test split, in the current folder, with one video."""
    root = Path("TrackingNet")
    (root / "TEST/frames").mkdir(parents=True)
    (otb / "Across/img").rename(root / "TEST/frames/video-1")
    (root / "TEST/anno").mkdir()
    (root / "TEST/anno/video-1.txt").write_text("20,30,24,24\n")
    return root


@pytest.fixture
def evaluate(protoformer: Run) -> Run:
    def run(dataset: str, *options: str) -> Any:
        root = {"otb": "OTB", "trackingnet": "TrackingNet"}.get(dataset, "OTB")
        return protoformer("evaluate", "track", "--dataset", dataset, "--root", root, *options)

    return run


def test_the_table_has_a_row_a_method_and_those_of_others(otb: Path, evaluate: Run) -> None:
    names = {"Across": {"success": 0.4, "precision": 0.5}, "Down": {"success": 0.5, "precision": 0.7}}
    Path("peers.json").write_text(json.dumps({"tracking": {"Peer": names}}))
    outcome = evaluate("otb", "--method", "correlation", "--method", "mil")
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[:3] == [
        "tracking on otb",
        "norm. norm.",
        "method measured on success precision precision precision AUC frames/s",
    ]
    assert lines[3].startswith("correlation 2 sequences ") and lines[4].startswith("mil 2 sequences ")
    assert max(len(line) for line in outcome.out.splitlines()) <= 100
    assert lines[5] == "Peer 2 of these 45.0 60.0"


def test_files_hold_every_score_and_every_box(otb: Path, evaluate: Run) -> None:
    outcome = evaluate("otb", "--method", "correlation", "--json", "-o", "new/scores")
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    found = json.loads(outcome.out)
    assert found == json.loads(Path("new/scores/scores.json").read_text())
    assert list(found) == ["dataset", "methods", "sequences", "others", "without_truth", "unusable"]
    scores = found["methods"]["correlation"]["scores"]
    assert scores["precision"] == 1 and scores["success"] > 0.7
    assert len(scores["success_curve"]) == 21 and len(scores["precision_curve"]) == 51
    rows = list(csv.DictReader(Path("new/scores/sequences.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["Across", "Down"] and rows[0]["frames"] == str(FRAMES)
    boxes = Path("new/scores/boxes/correlation/Down.txt").read_text().splitlines()
    assert len(boxes) == FRAMES and boxes[0] == "20.00,30.00,24.00,24.00"
    assert "<svg" in Path("new/scores/curves.html").read_text()
    assert sorted(path.name for path in Path("new/scores").iterdir()) == [
        *("boxes", "curves.html", "scores.json", "sequences.csv"),
    ]


def test_the_model_is_evaluated_unless_a_method_is_named(otb: Path, evaluate: Run) -> None:
    outcome = evaluate("otb", "--model", "tiny", "--precision", "full", "--json")
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    assert list(json.loads(outcome.out)["methods"]) == ["tiny (untrained)"] and len(outcome.notes) == 1


def test_what_cannot_be_used_is_passed_over_and_named(otb: Path, evaluate: Run) -> None:
    broken = otb / "Across/img/0002.png"
    broken.write_bytes(broken.read_bytes()[:100])
    outcome = evaluate("otb", "--method", "correlation")
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    assert "1 sequence could not be used and are in no score:\n  Across: Across cannot be" in outcome.out
    outcome = evaluate("otb", "--method", "correlation", "--json")
    assert [each["name"] for each in json.loads(outcome.out)["unusable"]] == ["Across"]


def test_a_submission_is_what_the_server_takes(trackingnet: Path, evaluate: Run) -> None:
    outcome = evaluate("trackingnet", "--method", "correlation", "--submission", "boxes.zip")
    assert (outcome.code, outcome.out) == (0, "wrote the boxes of 1 sequence to boxes.zip\n"), outcome.err
    with zipfile.ZipFile("boxes.zip") as archive:
        assert archive.namelist() == ["video-1.txt"]
        assert len(archive.read("video-1.txt").splitlines()) == FRAMES


def test_what_cannot_be_evaluated(otb: Path, trackingnet: Path, evaluate: Run) -> None:
    def refused(dataset: str, *options: str) -> str:
        outcome = evaluate(dataset, *options)
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        (sentence,) = outcome.errors
        return str(sentence)

    filtered = ("--method", "correlation")
    assert "sintel is a dataset of flow, not of track" in refused("sintel")
    assert "there is no method 'magic'" in refused("otb", "--method", "magic")
    assert "correlation takes no --model" in refused("otb", *filtered, "--model", "tiny")
    assert "no true boxes to compare with; write its boxes with --submission" in refused("trackingnet", *filtered)
    assert "otb has no upload format" in refused("otb", *filtered, "--submission", "a.zip")
    assert "a submission has one method" in refused(
        "trackingnet", *filtered, "--method", "mil", "--submission", "a.zip"
    )
    assert "leave out --output or --submission" in refused("trackingnet", *filtered, "-o", "o", "--submission", "a.zip")
    assert "the folder nowhere does not exist" in refused("trackingnet", *filtered, "--submission", "nowhere/a.zip")
    assert "Across/img" in refused("otb", *filtered)  # where its frames were
    assert not Path("a.zip").exists()


def test_a_trackers_name_is_safe_as_a_folder(otb: Path, evaluate: Run) -> None:
    outcome = evaluate("otb", "--model", "tiny", "-o", "scores")
    assert outcome.code == 0, outcome.err
    assert [path.name for path in Path("scores/boxes").iterdir()] == ["tiny-untrained"]
