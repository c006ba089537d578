"""`protoformer explain`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import protoformer as pf
from protoformer.video.reader import open_video

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")
MODEL = ("--model", "tiny", "--device", "cpu")


def test_two_images_become_a_page_pictures_and_numbers(folder: Path, protoformer: Callable[..., Any]) -> None:
    ended = protoformer("explain", "a.png", "b.png", *MODEL, "-o", "out", "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert (summary["task"], summary["layers"], summary["trained"]) == ("flow", ["1.1", "2.1"], False)
    told = json.loads((folder / "out" / "explanation.json").read_text())["layers"][-1]["parts"]
    first = json.loads((folder / "out" / "explanation.json").read_text())["layers"][0]
    assert len(first["removals"]) == 3 and all(effect["inside"] > 0 for effect in first["removals"])
    assert summary["parts"] == len(told["parts"]) and (folder / "out" / "2.1-parts.png").exists()
    assert summary["prototypes"] == 16 and 0 < summary["matched"] <= summary["with_pixels"] <= 16
    assert sorted(summary["written"]) == sorted(str(path) for path in Path("out").iterdir())
    assert (folder / "out" / "index.html").read_text().startswith("<!doctype html>")


def test_depth_is_explained_in_meters_and_for_people(folder: Path, protoformer: Callable[..., Any]) -> None:
    ended = protoformer(
        "explain", "a.png", "--task", "depth", *MODEL, "--layer", "1.1", "--prototype", "2", "--removals", "1"
    )
    assert ended.code == 0, ended.err
    assert ended.out.startswith("30x20 pixels; ") and "open explained/index.html in a browser" in ended.out
    record = json.loads((folder / "explained" / "explanation.json").read_text())
    assert record["unit"] == "m" and len(record["layers"][0]["removals"]) == 1
    assert (folder / "explained" / "1.1-depth.png").exists()
    assert (folder / "explained" / "1.1-prototype-2.png").exists()


def test_a_clip_becomes_a_video_of_its_groups(
    folder: Path,
    protoformer: Callable[..., Any],
    make_video: Callable[..., Path],
    moving_pattern: Callable[..., Any],
) -> None:
    make_video(folder / "clip.mp4", moving_pattern(4))
    ended = protoformer("explain", "clip.mp4", *MODEL, "-o", "groups.mp4", "--layer", "1.1", "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert (summary["frames"], summary["layer"], summary["written"]) == (4, "1.1", ["groups.mp4"])
    steps = list(pf.load("tiny", "cpu").explain_video(folder / "clip.mp4", layer="1.1"))
    assert summary["prototypes"] == len(torch.cat([step.identities for step in steps]).unique())
    assert summary["kept"] == pytest.approx(sum(step.kept for step in steps[1:]) / 3, abs=1e-4)
    video = open_video(folder / "groups.mp4")
    assert (video.info.size, len(list(video.frames()))) == ((96, 128), 4)
    ended = protoformer("explain", "clip.mp4", *MODEL, "-o", "one.mp4", "--end", "0.1", "--families", "3")
    assert ended.code == 0 and "prototypes of layer 2.1 in all" in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("a.png", "b.png", "a.png"),
            "3 images cannot be explained together; give one or two, or a video: quote a pattern",
        ),
        (("a.png", "--task", "track"), "the task 'track' cannot be explained; choose one of flow, depth."),
        (("a.png", "--layer", "5.5"), "there is no layer '5.5'; choose one of 1.1, 2.1."),
        (("a.png", "--prototype", "99"), "layer 1.1 has no prototype 99; give a number from 0 to 15."),
        (
            ("a.png", "--num-updates", "3"),
            "--num-updates is for flow, which one image does not have; leave it out or give two",
        ),
        (("a.png", "b.png", "--num-updates", "0"), "0 updates cannot be run; give a whole number, 1 or more."),
        (
            ("a.png", "--task", "depth", "--num-updates", "-1"),
            "-1 updates cannot be run; give a whole number, 1 or more.",
        ),
        (("a.png", "--frame-step", "2"), "--frame-step is for videos; leave it out for images."),
        (("a.png", "--families", "3"), "--families is for videos; leave it out for images."),
        *(
            (
                ("a.png", "-o", name),
                f"{name} is the name of a file, but images are explained in a folder; give one, such as x.",
            )
            for name in ("x.mp4", "x.png", "x.html")
        ),
        (("a.png", "-o", "b.png/x"), "the folder b.png/x cannot be made (Not a directory); choose another."),
        ((".", "--removals", "2"), "--removals is for images; leave it out for a video."),
        ((".", "--task", "depth"), "--task depth is for images; leave it out for a video."),
        ((".", "-o", "out.txt"), "out.txt does not end in .avi, .gif, .mkv, .mov, .mp4 or .webm; choose one of these"),
    ],
    ids=lambda each: each[-1] if isinstance(each, tuple) else "",
)
def test_bad_input_is_one_sentence(
    folder: Path, protoformer: Callable[..., Any], arguments: tuple[str, ...], says: str
) -> None:
    before = sorted(folder.iterdir())
    ended = protoformer("explain", *arguments, *MODEL)
    assert ended.code == 2 and len(ended.errors) == 1 and says in ended.errors[0]
    left = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(left) == before
