"""`protoformer batch flow`: many videos in, the motion of each out, done once."""

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protoformer as pf
from protoformer.batch import tasks as batch_module
from protoformer.batch.running import BatchResult
from protoformer.errors import install_command
from protoformer.io.formats import read_flo
from protoformer.training.checkpoint import lock_folder
from protoformer.video.reader import open_video

pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

Make = Callable[..., Path]
Run = Callable[..., Any]
QUICK = ("--model", "tiny", "--num-updates", "1", "--scale", "2", "--workers", "1")


def noise(number: int) -> np.ndarray:
    coarse = np.random.default_rng(number).integers(0, 256, (8, 12, 3))
    return np.kron(coarse, np.ones((8, 8, 1))).astype(np.uint8)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_video: Make) -> Path:
    """The current folder, with videos/clip1, clip2 and clip10.mp4 of 3, 4 and 3 frames of 64x96."""
    monkeypatch.chdir(tmp_path)
    Path("videos").mkdir()
    for number, frames in ((1, 3), (2, 4), (10, 3)):
        make_video(tmp_path / f"videos/clip{number}.mp4", [noise(n) for n in range(frames)])
    return tmp_path


def rows() -> list[dict[str, str]]:
    with Path("out/summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def statuses() -> dict[str, str]:
    return {row["output"]: row["status"] for row in rows()}


def records() -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in Path("out/.batch/ledger").rglob("*.json")}


def written() -> dict[str, int]:
    """When each output was written."""
    found = (path for path in Path("out").rglob("*") if path.is_file() and path.name != "summary.csv")
    return {str(path): path.stat().st_mtime_ns for path in found}


def done(outcome: Any) -> Any:
    assert (outcome.code, outcome.errors) == (0, []), outcome.err
    return outcome


def test_every_video_gives_a_video_of_its_motion(place: Path, protoformer: Run) -> None:
    outcome = done(protoformer("batch", "flow", "videos/*.mp4", "-o", "out", *QUICK))
    assert outcome.out.startswith("3 videos: 3 done, 0 finished before, 0 failed; 7 frames in ")
    assert len(outcome.notes) == 1 and "random" in outcome.notes[0]
    names = ["clip1.mp4", "clip2.mp4", "clip10.mp4"]
    assert [(row["video"], row["output"], row["frames"], row["status"], row["reason"]) for row in rows()] == [
        (str(place / "videos" / n), n, f, "done", "") for n, f in zip(names, "232", strict=True)
    ]
    assert all(float(row["seconds"]) > 0 for row in rows())
    for name, frames in zip(names, (2, 3, 2), strict=True):
        video = open_video(f"out/{name}")
        assert video.info.size == (64, 96) and len(list(video.frames())) == frames
    assert sorted(records()) == sorted(f"{name}.json" for name in names)
    assert sorted(path.name for path in Path("out").iterdir()) == sorted([".batch", "summary.csv", *names])
    assert [path.name for path in Path("out/.batch").iterdir()] == ["ledger"]


def test_what_is_finished_is_not_done_again(place: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done(protoformer("batch", "flow", "videos/*.mp4", "-o", "out", *QUICK, "--save-flo"))
    before, frames = written(), [row["frames"] for row in rows()]
    monkeypatch.setattr(batch_module, "load", None)  # nothing is left to do, so no model is needed
    outcome = done(protoformer("batch", "flow", "videos/*.mp4", "-o", "out", *QUICK, "--save-flo", "--json"))
    assert written() == before and [row["frames"] for row in rows()] == frames
    assert set(statuses().values()) == {"skipped"}
    summary = json.loads(outcome.out)
    assert (summary["videos"], summary["skipped"], summary["done"], summary["failures"]) == (3, 3, 0, {})


def test_a_broken_video_does_not_stop_the_others(place: Path, protoformer: Run, make_video: Make) -> None:
    Path("videos/clip0.mp4").write_bytes(b"no video" * 100)
    outcome = protoformer("batch", "flow", "videos/*.mp4", "-o", "out", *QUICK)
    assert outcome.code == 1 and outcome.errors == [] and "Traceback" not in outcome.err
    assert outcome.out.startswith("4 videos: 3 done, 0 finished before, 1 failed; ")
    assert any(note.startswith("note: clip0.mp4 failed: ") for note in outcome.notes)
    assert list(statuses().values()) == ["failed", "done", "done", "done"]
    assert rows()[0]["reason"].startswith(f"{place}/videos/clip0.mp4 is not a video") and rows()[0]["frames"] == "0"
    assert not Path("out/clip0.mp4").exists()
    make_video(place / "videos/clip0.mp4", [noise(n) for n in range(3)])
    done(protoformer("batch", "flow", "videos/*.mp4", "-o", "out", *QUICK))
    assert list(statuses().values()) == ["done", "skipped", "skipped", "skipped"]


def test_what_changed_is_done_anew(place: Path, protoformer: Run, make_video: Make) -> None:
    command = ("batch", "flow", "videos/*.mp4", "-o", "out", *QUICK)
    done(protoformer(*command, "--save-flo"))
    assert read_flo("out/clip1.flo/000001.flo").shape == (64, 96, 2)
    done(protoformer(*command, "--side-by-side"))
    assert set(statuses().values()) == {"done"}
    assert open_video("out/clip1.mp4").info.size == (64, 192)
    assert not Path("out/clip1.flo").exists()  # it was of other options
    before = written()
    os.utime("videos/clip1.mp4", ns=(1, 1))
    Path("out/clip10.mp4").write_bytes(b"cut")
    done(protoformer(*command, "--side-by-side"))
    assert statuses() == {"clip1.mp4": "done", "clip2.mp4": "skipped", "clip10.mp4": "done"}
    assert written()["out/clip2.mp4"] == before["out/clip2.mp4"]
    Path("out/.batch/ledger/clip2.mp4.json").write_text("{")
    done(protoformer(*command, "--side-by-side"))
    assert statuses() == {"clip1.mp4": "skipped", "clip2.mp4": "done", "clip10.mp4": "skipped"}


def test_other_weights_of_the_same_name_are_another_option(place: Path, protoformer: Run) -> None:
    options = ("--model", "mine.safetensors", *QUICK[2:])
    for fields in ({}, {"encoder": {"num_prototypes": 9}}):
        with pytest.warns(pf.UntrainedWarning):
            pf.load("tiny", **fields).save("mine.safetensors")
        done(protoformer("batch", "flow", "videos/clip1.mp4", "-o", "out", *options))
        assert statuses() == {"clip1.mp4": "done"}
    done(protoformer("batch", "flow", "videos/clip1.mp4", "-o", "out", *options))
    assert statuses() == {"clip1.mp4": "skipped"}


def test_videos_of_one_name_do_not_meet(place: Path, protoformer: Run, make_video: Make) -> None:
    for folder, frames in (("a", 2), ("b", 3)):
        Path(folder).mkdir()
        make_video(place / folder / "clip.mp4", [noise(n) for n in range(frames)])
    make_video(place / "b/clip.mkv", [noise(n) for n in range(4)])
    done(protoformer("batch", "flow", "a/*.mp4", "b/*", "-o", "out", *QUICK))
    names = {row["video"]: row["output"] for row in rows()}
    assert len(set(names.values())) == 3 and names[f"{place}/a/clip.mp4"] == "clip.mp4"
    assert sorted(len(list(open_video(f"out/{name}").frames())) for name in names.values()) == [1, 2, 3]
    before = written()
    # Whatever comes along, and in whatever order: each keeps its name, and nobody takes one of a video not named now.
    done(protoformer("batch", "flow", "b/clip.mp4", "-o", "out", *QUICK))
    done(protoformer("batch", "flow", "b/*", "a/clip.mp4", "-o", "out", *QUICK))
    assert {row["video"]: row["output"] for row in rows()} == names
    assert written() == before


def test_folders_below_a_pattern_are_kept(place: Path, protoformer: Run, make_video: Make) -> None:
    Path("videos/deep").mkdir()
    make_video(place / "videos/deep/clip1.mp4", [noise(n) for n in range(2)])
    done(protoformer("batch", "flow", "videos/**/*clip1.mp4", "videos/clip1.mp4", "-o", "out", *QUICK, "--save-flo"))
    assert statuses() == {"clip1.mp4": "done", "deep/clip1.mp4": "done"}
    assert Path("out/deep/clip1.flo/000000.flo").is_file()


def test_outputs_are_not_taken_for_videos(place: Path, protoformer: Run) -> None:
    for _ in range(2):
        done(protoformer("batch", "flow", "**/*.mp4", "-o", "out", *QUICK))
        assert list(statuses()) == ["videos/clip1.mp4", "videos/clip2.mp4", "videos/clip10.mp4"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("none/*.mp4",), "no file matches none/*.mp4; check the folder and the pattern."),
        (("videos/none.mp4",), "videos/none.mp4 does not exist; check the path."),
        (("videos/*", "--workers", "0"), "a batch cannot have 0 workers; give 1 or more."),
        (
            ("videos/*", "--max-minutes-per-video", "0"),
            "a time limit of 0 minutes is not possible; give a ",
        ),
        (("videos/*", "--frame-step", "0"), "a frame step of 0 is not possible; "),
        (("videos/*", "--scale", "-1"), "colors cannot be saturated at -1 pixels; "),
        (("videos/*", "--num-updates", "0"), "0 updates cannot be run; "),
        (("videos/*", "--model", "huge"), "there is no model 'huge'; choose one of "),
        (("videos/*", "--model", "no.safetensors"), "no.safetensors does not exist; "),
        (("videos/*", "--cluster", "http://x"), "a cluster is auto, ray://HOST:PORT or HOST:PORT, not 'http://x'; "),
        (("videos/*", "-o", "videos"), "all of these videos are in "),
    ],
)
def test_bad_usage_is_one_sentence(place: Path, protoformer: Run, arguments: tuple[str, ...], sentence: str) -> None:
    if "--cluster" in arguments:
        pytest.importorskip("ray", reason="ray is not installed")
    outcome = protoformer("batch", "flow", "-o", "out", *arguments)
    assert outcome.code == 2 and len(outcome.errors) == 1 and sentence in outcome.errors[0]
    assert not list(Path().glob("out/*.mp4"))


def test_a_cluster_without_ray_is_one_sentence(place: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = protoformer("batch", "flow", "videos/*", "-o", "out", *QUICK, "--cluster", "auto")
    assert outcome.code == 2
    assert outcome.errors == [
        f"protoformer: a cluster needs the package ray; install it with: {install_command('cluster')}."
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names or files")
def test_odd_files_and_names_are_no_trouble_for_the_others(place: Path, protoformer: Run) -> None:
    odd = [os.fsdecode(b"\xff.mp4"), f"{'é' * 125}.mp4"]
    for number, name in zip((2, 10), odd, strict=True):
        Path(f"videos/clip{number}.mp4").rename(f"videos/{name}")
    os.mkfifo("videos/pipe.mp4")
    Path("videos/gone.mp4").symlink_to("nothing.mp4")
    Path("out/.batch/ledger").mkdir(parents=True)
    Path("out/.batch/ledger/clip1.mp4.json").write_text("{}")
    outcome = protoformer("batch", "flow", "videos/*.mp4", "-o", "out", *QUICK)
    assert outcome.code == 1 and outcome.errors == []
    assert outcome.out.startswith("5 videos: 3 done, 0 finished before, 2 failed; 7 frames in ")
    assert sum("clip1.mp4.json is ignored, because its content is not " in note for note in outcome.notes) == 1
    with Path("out/summary.csv").open(newline="", errors="surrogateescape") as file:
        found = {Path(row["video"]).name: row for row in csv.DictReader(file)}
    assert {name: row["status"] for name, row in found.items()} == {
        **dict.fromkeys(("clip1.mp4", *odd), "done"),
        **dict.fromkeys(("gone.mp4", "pipe.mp4"), "failed"),
    }
    assert found["pipe.mp4"]["reason"].startswith("videos/pipe.mp4 was not read, because it is a named pipe; ")
    assert all((Path("out") / found[name]["output"]).is_file() for name in odd)


def test_two_batches_do_not_share_a_folder(place: Path, protoformer: Run) -> None:
    Path("out").mkdir()
    with lock_folder(Path("out")):
        outcome = protoformer("batch", "flow", "videos/*", "-o", "out", *QUICK)
    assert outcome.code == 2 and "another batch is writing to " in outcome.errors[0]


def test_the_library_does_the_same(place: Path) -> None:
    Path("videos/clip0.mp4").write_bytes(b"no video")
    with pytest.warns(pf.UntrainedWarning):
        result = pf.batch_flow("videos/*", "out", model="tiny", num_updates=1, arrows=True, workers=1, device="cpu")
    assert [(result.count(status)) for status in ("done", "failed", "skipped")] == [3, 1, 0]
    assert list(result.failures) == [place / "videos/clip0.mp4"]
    assert [job.name for job in result.jobs] == [row["output"] for row in rows()]
    again = pf.batch_flow(["videos/clip1.mp4"], "out", model="tiny", num_updates=1, arrows=True)
    assert again.count("skipped") == 1 and again.summary == place / "out/summary.csv"


def test_a_video_without_boxes_does_not_stop_the_others(place: Path, protoformer: Run) -> None:
    command = ("batch", "track", "videos/*.mp4", "-o", "out", "--method", "correlation", "--workers", "1")
    Path("videos/clip2.boxes.csv").write_text("20,16,24,24\n")
    outcome = protoformer(*command)
    assert outcome.code == 1 and outcome.errors == []
    assert outcome.out.startswith("3 videos: 1 done, 0 finished before, 2 failed; 4 frames in ")
    assert statuses() == {"clip1.mp4": "failed", "clip2.mp4": "done", "clip10.mp4": "failed"}
    assert "write x,y,w,h of each target in its first frame to clip1.boxes.csv beside it" in rows()[0]["reason"]
    Path("boxes.json").write_text(json.dumps({f"clip{number}.mp4": [20, 16, 24, 24] for number in (1, 2, 10)}))
    done(protoformer(*command, "--boxes", "boxes.json"))
    # The boxes of clip2 are the same, wherever they are written.
    assert statuses() == {"clip1.mp4": "done", "clip2.mp4": "skipped", "clip10.mp4": "done"}


def test_every_task_has_a_command(place: Path, protoformer: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[batch_module.BatchTask] = []

    def run(folder: Path, list_jobs: Any, setup: batch_module.TaskSetup, *_: Any) -> BatchResult:
        asked.append(setup.options)
        return BatchResult((), (), folder / "summary.csv")

    monkeypatch.setattr(batch_module, "run_batch", run)
    for task, arguments in {
        "flow": ("--tile", "96x128", "--memory", "1GB", "--zoom", "2", "--save-flo"),
        "depth": ("--range", "indoor", "--colors", "1,5", "--no-steady", "--save-npy"),
        "track": ("--boxes", "boxes.csv", "--method", "correlation", "--frame-step", "2"),
        "stabilize": ("--crop", "0.9", "--delay", "5", "--save-path"),
        "explain": ("--layer", "1.1", "--families", "0"),
        "segment": ("--method", "threshold", "--save-masks"),
    }.items():
        done(protoformer("batch", task, "videos/*.mp4", "-o", "out", *arguments))
    assert asked == [
        batch_module.FlowBatch(tile=(96, 128), memory=10**9, zoom=2.0, save_flo=True),
        batch_module.DepthBatch(range="indoor", colors=(1.0, 5.0), steady=False, save_npy=True),
        batch_module.TrackBatch(boxes=str(place / "boxes.csv"), method="correlation", frame_step=2),
        batch_module.StabilizeBatch(crop=0.9, delay=5, save_path=True),
        batch_module.ExplainBatch(layer="1.1", families=0),
        batch_module.SegmentBatch(method="threshold", save_masks=True),
    ]
