"""`protoformer synth`: clips that others can read, a run that goes on, and one sentence for what cannot be."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.cli import synth as world_command
from protoformer.datasets.registry import check_dataset, open_dataset
from protoformer.io.image import read_image
from protoformer.synthetic import generator as world_module
from protoformer.synthetic.texture_bank import bank_from_folder, procedural_bank

SMALL = ("--size", "24x32", "--frames", "2", "--device", "cpu")


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few textures, and the handler of signals as it was."""
    monkeypatch.setattr(world_module, "procedural_bank", lambda: procedural_bank(side=64, each=2))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("family", "layout", "names"),
    [
        ("objects", "sintel", ["objects_0_000000", "objects_0_000001"]),
        ("chase", "otb", ["chase_0_000000", "chase_0_000001"]),
        ("handheld", "deepstab", ["1", "2"]),
    ],
)
def test_clips_are_written_in_the_layout_of_their_family(
    protoformer, family: str, layout: str, names: list[str]
) -> None:
    outcome = protoformer("synth", family, "--count", "2", "-o", "out/clips", *SMALL)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("wrote 2 clips to out/clips in ")
    assert f"the layout of {layout}" in outcome.out and "see out/clips/contact_sheet.png" in outcome.out
    assert check_dataset(open_dataset(layout, "out/clips")).broken == ()
    assert read_image("out/clips/contact_sheet.png").shape[1] == 1600
    again = protoformer("synth", family, "--count", "2", "-o", "out/clips", *SMALL, "--json")
    summary = json.loads(again.out)
    assert (summary["written"], summary["there"], summary["left_out"]) == ([], names, [])
    assert summary["contact_sheet"] == "out/clips/contact_sheet.png"
    assert (summary["layout"], summary["size"], summary["folder"]) == (layout, [24, 32], "out/clips")


def test_a_run_goes_on_with_what_is_missing(protoformer) -> None:
    protoformer("synth", "objects", "--count", "2", "-o", "out", *SMALL)
    Path("out/training/flow/objects_0_000001/frame_0001.flo").unlink()
    outcome = protoformer("synth", "objects", "--count", "3", "-o", "out", *SMALL)
    assert outcome.out.startswith("wrote 2 clips to out in ") and "(1 existed)" in outcome.out
    assert len(open_dataset("sintel", "out", "train", render_pass="clean")) == 3


def test_your_own_images_cover_the_scenes(protoformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_command, "bank_from_folder", partial(bank_from_folder, side=64))
    Path("photos").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save("photos/a.png")
    outcome = protoformer("synth", "objects", "--count", "1", "-o", "out", *SMALL, "--textures", "photos")
    assert outcome.code == 0
    assert json.loads(Path("out/world.json").read_text())["textures"].startswith("photos ")


def test_scenes_without_a_target_are_told(protoformer) -> None:
    outcome = protoformer("synth", "room", "--count", "1", "-o", "out", *SMALL, "--layout", "otb")
    assert outcome.code == 0
    assert outcome.out.splitlines()[1] == "skipped, because nothing in them can be tracked: room_0_000000"
    summary = json.loads(
        protoformer("synth", "room", "--count", "1", "-o", "out", *SMALL, "--layout", "otb", "--json").out
    )
    assert (summary["left_out"], summary["contact_sheet"]) == (["room_0_000000"], None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("objcts", "-o", "out"), "there is no family of scenes called 'objcts'; did you mean objects?"),
        (("objects", "-o", "out", "--count", "0"), "--count is 0; give 1 or more clips."),
        (("objects", "-o", "out", "--count", "-3"), "--count is -3; give 1 or more clips."),
        (("objects", "-o", "out", "--seed", "-1"), "--seed is -1; give a whole number, 0 or more."),
        (("objects", "-o", "out", "--frames", "1"), "--frames is 1, which shows no motion; give 2 or more."),
        (("objects", "-o", "out", "--size", "-4x10"), "--size is '-4x10', but a size is HEIGHTxWIDTH in pixels; "),
        (("objects", "-o", "out", "--size", "640"), "--size is '640', but a size is HEIGHTxWIDTH in pixels; "),
        (("objects", "-o", "out", "--size", "8x64"), "images of 8x64 are too small; make both sides at least 16"),
        (("objects", "-o", "out", "--size", "99999x99999"), "--size 99999x99999 is over the limit of "),
        (("objects", "-o", "out", "--layout", "kitti"), "--layout is 'kitti'; choose one of sintel, otb, deepstab."),
        (("objects", "-o", "out", "--device", "warp"), "the device 'warp' is not there; choose cpu, "),
        (("objects", "-o", "out", "--textures", "none"), "none is not a folder; give the path of a folder"),
        (("objects", "-o", "file/out"), "the folder file/out cannot be made (Not a directory); choose another."),
        (("objects", "-o", "file"), "the folder file cannot be made (File exists); choose another."),
    ],
)
def test_what_cannot_be_is_one_sentence(protoformer, arguments: tuple[str, ...], message: str) -> None:
    Path("file").touch()
    outcome = protoformer("synth", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.errors
    assert line.startswith(f"protoformer: {message}") and "Traceback" not in outcome.err
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_a_folder_of_other_settings_is_refused(protoformer) -> None:
    protoformer("synth", "objects", "--count", "1", "-o", "out", *SMALL)
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    outcome = protoformer("synth", "objects", "--count", "1", "--seed", "7", "-o", "out", *SMALL)
    assert outcome.code == 2
    assert outcome.errors == [
        "protoformer: out holds clips whose seed is 0, not 7; choose another folder, or the same settings."
    ]
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before


@pytest.mark.skipif(os.name != "posix", reason="signals are those of posix")
def test_a_run_that_is_stopped_leaves_whole_files(tmp_path: Path) -> None:
    command = ("synth", "handheld", "--count", "50", "--size", "64x64", "--frames", "300", "-o", "out")
    with subprocess.Popen([sys.executable, "-m", "protoformer", *command], stderr=subprocess.PIPE) as run:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("out/unstable/.*.part")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(tmp_path.glob("out/unstable/.*.part"))
        run.terminate()
        _, errors = run.communicate(timeout=30)
    assert run.returncode == 143
    assert b"Traceback" not in errors
    assert errors.decode().endswith("\nprotoformer: stopped; the same command continues from here.\n")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["out/paths/1.csv", "out/world.json"]
