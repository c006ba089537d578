"""A batch of each task writes what its command writes for a single video."""

import csv
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.batch.jobs import Job, JobFunction
from protoformer.batch.ledger import Ledger
from protoformer.batch.tasks import BATCH_TASKS, BatchTask, read_boxes_file
from protoformer.batch.workers import run_job
from protoformer.errors import InputError
from protoformer.video.reader import open_video

pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
Make = Callable[..., Path]
OPTIONS: dict[str, dict[str, Any]] = {
    "flow": {"model": "tiny", "num_updates": 1, "scale": 2.0, "save_flo": True},
    "depth": {"model": "tiny", "num_updates": 3, "colors": (1.0, 5.0), "save_npy": True, "side_by_side": True},
    "track": {"method": "correlation"},
    "stabilize": {"model": "tiny", "save_path": True, "side_by_side": True},
    "explain": {"model": "tiny", "num_updates": 1},
    "segment": {"model": "tiny", "save_masks": True, "side_by_side": True},
}
OUTPUTS = {
    "flow": ("clip.mp4", "clip.flo"),
    "depth": ("clip.mp4", "clip.npy"),
    "track": ("clip.mp4", "clip.csv"),
    "stabilize": ("clip.mp4", "clip.html"),
    "explain": ("clip.mp4",),
    "segment": ("clip.mp4", "clip.png"),
}


@pytest.fixture
def clip(tmp_path: Path, make_video: Make) -> Path:
    """A clip of 4 frames of 64x96: a texture that moves to the right by 2 pixels per frame."""
    coarse = np.random.default_rng(0).integers(0, 256, (10, 16, 3))
    texture = np.kron(coarse, np.ones((8, 8, 1))).astype(np.uint8)
    (tmp_path / "clip.boxes.csv").write_text("20,16,24,24\n50,20,20,24\n")
    frames = [texture[:64, 16 - 2 * n : 112 - 2 * n].copy() for n in range(4)]
    return make_video(tmp_path / "clip.mp4", frames)


def prepared(task: str, clip: Path, **changes: Any) -> tuple[BatchTask, JobFunction, Job]:
    options = BATCH_TASKS[task](**{**OPTIONS[task], **changes})
    outputs = tuple(f"clip{suffix}" for suffix in options.suffixes)
    (job,) = options.complete([Job(clip, clip.parent / "out", outputs, {"task": task, **options.recorded()})])
    return options, options.prepare("cpu" if task != "track" else None, 1), job


@pytest.mark.parametrize("task", BATCH_TASKS)
def test_each_task_writes_its_outputs(task: str, clip: Path) -> None:
    _, function, job = prepared(task, clip)
    assert job.outputs == OUTPUTS[task] and not job.unread
    report = run_job(function, job)
    assert (report.status, report.reason) == ("done", "")
    assert report.frames == (3 if task == "flow" else 4)
    width = 192 if OPTIONS[task].get("side_by_side") else 96
    video = open_video(job.folder / "clip.mp4")
    assert video.info.size == (64, width) and len(list(video.frames())) == report.frames
    # The record survives json: a second batch with the same options finds the video finished.
    finished = Ledger(job.folder).finished(job)
    assert finished is not None and finished.status == "skipped"


def test_depth_maps_are_those_of_the_predictor(clip: Path) -> None:
    _, function, job = prepared("depth", clip, steady=False, fov=70.0)
    run_job(function, job)
    model = pf.load("tiny", "cpu", task="depth")
    expected = [each.depth for each in model.depth_video(clip, steady=False, fov=70.0, num_updates=3)]
    written = [np.load(path) for path in sorted((job.folder / "clip.npy").iterdir())]
    torch.testing.assert_close(torch.from_numpy(np.stack(written)), torch.cat(expected), check_dtype=False)


def test_a_table_has_the_boxes_of_the_file(clip: Path) -> None:
    boxes = clip.parent / "boxes.csv"
    boxes.write_text("video,x,y,w,h\nclip.mp4,30,20,20,20\n")
    _, function, job = prepared("track", clip, boxes=str(boxes))
    assert run_job(function, job).status == "done"
    with (job.folder / "clip.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(rows[0][name]) for name in "xywh"] == [*read_boxes_file(boxes)["clip.mp4"][0]] == [30, 20, 20, 20]
    assert [row["frame"] for row in rows] == ["0", "1", "2", "3"]
    assert Fraction(rows[1]["time"]) > 0
    # Other boxes are another job.
    boxes.write_text("video,x,y,w,h\nclip.mp4,31,20,20,20\n")
    assert Ledger(job.folder).finished(prepared("track", clip, boxes=str(boxes))[2]) is None


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        ("walk", {}, "there is no batch of 'walk'; choose one of flow, depth, track, stabilize, explain, segment"),
        ("flow", {"steady": True}, "a batch of flow has no option 'steady'; its options are model, "),
        ("depth", {"fov": 200.0}, "a field of view is between 0 and 180 degrees"),
        ("depth", {"range": "outdoor"}, "there is no range 'outdoor'"),
        ("depth", {"frame_step": 0}, "a frame step of 0 is not possible"),
        ("track", {"method": "guess"}, "there is no method 'guess'; choose one of model, "),
        ("track", {"boxes": "none.csv"}, "none.csv does not exist"),
        ("stabilize", {"strength": 2.0}, "a strength of 2 is out of range"),
        ("explain", {"families": -1}, "prototypes cannot be sorted into -1 families"),
        ("segment", {"method": "guess"}, "there is no method 'guess'; choose one of model, threshold"),
    ],
)
def test_bad_options_are_one_sentence(clip: Path, task: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        pf.batch_videos(task, clip, clip.parent / "out", **options)


def test_the_record_of_a_stabilization_names_the_weights_of_its_regressor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protoformer.batch.tasks._hash_weights", lambda model: f"hash of {model}")
    models = [
        BATCH_TASKS["stabilize"](**options).recorded()["model"]
        for options in ({}, {"delay": 5}, {"regressor": "grid"}, {"delay": 5, "regressor": "field"})
    ]
    assert models == [f"hash of stabilize{ending}" for ending in ("", "-grid", "-grid", "")]
