"""Each script in examples/ runs on small inputs and writes what it says."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"
MAX_LINES = 30
ARGUMENTS = {
    "flow_pair": (),
    "flow_video": ("clip.mp4", "motion.mp4"),
    "depth_point_cloud": ("frame0.png", "room"),
    "track_video": ("clip.mp4", "20", "30", "24", "24", "track.mp4"),
    "segment_video": ("clip.mp4", "masks", "overlay.mp4"),
    "stabilize_video": ("clip.mp4", "steady.mp4"),
    "explain_prototypes": ("frame0.png", "frame1.png", "explained"),
}
"""Arguments of each script; `clip.mp4` and the frames are made by the test."""
OUTPUTS = {
    "flow_pair": ["motion.flo", "motion.png"],
    "flow_video": ["motion.mp4"],
    "depth_point_cloud": ["room.npy", "room.ply", "room.png"],
    "track_video": ["track.mp4"],
    "segment_video": ["masks/000000.png", "overlay.mp4"],
    "stabilize_video": ["steady.mp4"],
    "explain_prototypes": ["explained/explanation.json", "explained/index.html"],
}


def test_every_example_is_tested_and_short() -> None:
    scripts = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert scripts.keys() == ARGUMENTS.keys()
    assert {name for name, text in scripts.items() if len(text.splitlines()) > MAX_LINES} == set()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_example_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make_video: Callable[..., Path],
    moving_pattern: Callable[..., list[np.ndarray]],
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = moving_pattern(4)
    for number in range(2):
        Image.fromarray(frames[number]).save(f"frame{number}.png")
    make_video(tmp_path / "clip.mp4", frames)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *ARGUMENTS[name]])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
    assert [path for path in OUTPUTS[name] if not (tmp_path / path).stat().st_size] == []


def test_flow_example_is_accurate_on_its_synthetic_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["flow_pair.py"])
    runpy.run_path(str(EXAMPLES / "flow_pair.py"), run_name="__main__")
    error = float(capsys.readouterr().out.split()[2])
    assert error < 1.0
