"""Each script in examples/ runs on small inputs and writes what it says."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protoformer.io.formats import write_flo
from protoformer.io.image import write_image
from protoformer.synthetic.layers import random_scene
from protoformer.viz.colormaps import to_uint8

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
    "track_live": ("clip.mp4", "20", "30", "24", "24", "track.mp4", "--seconds", "0.05"),
    "fine_tune_flow": ("pairs", "tuned.safetensors", "--steps", "2"),
    "video_point_clouds": ("clip.mp4", "clouds", "--every", "3"),
    "batch_folder": ("videos", "results"),
    "match_features": ("frame0.png", "frame1.png"),
    "compare_opencv": ("--scenes", "2"),
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
    "track_live": ["track.mp4"],
    "fine_tune_flow": ["tuned.safetensors"],
    "video_point_clouds": ["clouds/000000.ply", "clouds/000003.ply"],
    "batch_folder": ["results/flow/clip.mp4", "results/depth/clip.mp4"],
    "match_features": [],
    "compare_opencv": [],
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
    Path("videos").mkdir()
    make_video(tmp_path / "videos" / "clip.mp4", frames)
    pair = random_scene((96, 128), seed=0).render()
    for folder, image in (("first", pair.first), ("second", pair.second), ("flow", None)):
        Path("pairs", folder).mkdir(parents=True)
        if image is not None:
            write_image(f"pairs/{folder}/1.png", to_uint8(image[0]))
    write_flo("pairs/flow/1.flo", pair.flow[0].permute(1, 2, 0).numpy())
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


@pytest.mark.long
def test_the_notebook_runs_and_has_no_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert names["after"] < names["before"]  # stabilization
    assert {path.name for path in tmp_path.iterdir()} == {"motion.flo", "depth.npy", "steady.mp4"}
    for shown in ("flow", "depth", "frame"):
        assert names[shown]._repr_png_().startswith(b"\x89PNG")
