"""Exported graphs of depth, tracking and stabilization compute what the networks do, as do the scripts of the docs."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.export.exporter import MAX_DIFFERENCE, _onnx_runner
from protoformer.export.graphs import make_graphs
from protoformer.io.image import read_image
from protoformer.synthetic.layers import random_scene

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
SCRIPTS = [
    each for each in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if "onnxruntime" in each
]
pytestmark = pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")


def run_script(marker: str) -> dict[str, Any]:
    """Run the script of the docs that has some text, and return its variables."""
    (script,) = (each for each in SCRIPTS if marker in each)
    variables: dict[str, Any] = {}
    exec(compile(script, "export.md", "exec"), variables)
    return variables


def rendered(size: tuple[int, int], seed: int) -> torch.Tensor:
    return random_scene(size, seed=seed).render().first


def save_frames(folder: Path, count: int) -> list[np.ndarray]:
    """Write frames of a texture that moves to the right by 2 pixels per frame."""
    folder.mkdir()
    coarse = np.random.default_rng(0).integers(0, 256, (10, 24, 3))
    texture = np.kron(coarse, np.ones((8, 8, 1))).astype(np.uint8)
    frames = [texture[:72, 32 - 2 * number : 144 - 2 * number].copy() for number in range(count)]
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"{number}.png")
    return frames


def test_scripts_are_short() -> None:
    assert len(SCRIPTS) == 4
    assert max(len(script.splitlines()) for script in SCRIPTS) <= 40


@pytest.mark.parametrize("task", ["flow", "depth", "track", "stabilize"])
def test_a_graph_has_what_it_describes(task: str) -> None:
    network = pf.load("tiny", "cpu", task=task).network
    for graph in make_graphs(task, network, None, None):
        for size, inputs in graph.checks:
            assert len(inputs) == len(graph.inputs) == len(graph.axes) == len(graph.examples)
            assert tuple(inputs[0].shape[2:]) == size
            with torch.no_grad():
                outputs = graph.module(*inputs)
            assert len(outputs) == len(graph.outputs)
            if graph.reference is not None:
                for output, expected in zip(outputs, graph.reference(*inputs), strict=True):
                    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_depth_at_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    model = pf.load("tiny", "cpu", task="depth")
    written = pf.export_model(model, "depth.onnx", num_updates=3)
    assert (written.size, written.num_updates, written.template) == (None, 3, None)
    assert written.difference <= MAX_DIFFERENCE and written.checked == ((97, 130), (128, 192))
    run = _onnx_runner(Path("depth.onnx").read_bytes())
    image = torch.cat([rendered((70, 84), seed) for seed in (1, 2)])
    depth, confidence = run(image, torch.tensor([80.0, 160.0]))
    for index, focal in enumerate((80.0, 160.0)):
        expected = model.depth(image[index], focal=focal, num_updates=3, mirrored=False, precision="full")
        torch.testing.assert_close(depth[index], expected.depth, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(confidence[index], expected.confidence, atol=1e-3, rtol=0)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)).save("room.jpg")
    assert run_script("depth.onnx")["depth"].shape == (480, 640)
    assert np.load("depth.npy").min() > 0 and " m, mean confidence " in capsys.readouterr().out


@pytest.mark.long
def test_tracking_with_two_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = pf.load("tiny", "cpu", task="track", tracking={"num_layers": 1})
    written = pf.export_model(model, "track.onnx")
    assert written.template is not None and written.template.path == Path("track-template.onnx")
    assert max(written.difference, written.template.difference) <= MAX_DIFFERENCE
    template = _onnx_runner(Path("track-template.onnx").read_bytes())
    search = _onnx_runner(Path("track.onnx").read_bytes())
    box, prior = torch.tensor([[30.0, 20.0, 30.0, 40.0]]), torch.tensor([[50.0, 40.0, 30.0, 40.0]])
    reference, crop = rendered((96, 96), 1), rendered((128, 128), 2)
    found, score = search(crop, prior, torch.tensor([30.0]), *template(reference, box))
    with torch.no_grad():
        embedded = model.network.embed_target(2 * reference - 1, box)
        expected = model.network.locate_target(embedded, 2 * crop - 1, prior, torch.tensor([30.0]))
    torch.testing.assert_close(found, expected.boxes[-1], atol=MAX_DIFFERENCE, rtol=0)
    torch.testing.assert_close(score, expected.score_logits.sigmoid(), atol=1e-3, rtol=0)
    save_frames(tmp_path / "frames", 3)
    assert run_script("track.onnx")["box"].shape == (4,)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1.png", "2.png"]


@pytest.mark.long
def test_stabilization_of_a_folder(
    onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = pf.load("tiny", "cpu", task="stabilize", stabilization={"field_window": 2, "num_stages": 1})
    written = pf.export_model(model, "stabilize.onnx", size=(64, 96))
    assert written.size == (64, 96) and written.num_updates is None and written.difference <= MAX_DIFFERENCE
    Path("flow.onnx").write_bytes(onnx_file.read_bytes())
    save_frames(tmp_path / "frames", 4)
    variables = run_script("stabilize.onnx")
    assert sorted(path.name for path in tmp_path.glob("stable-*.png")) == [f"stable-{n}.png" for n in range(4)]
    assert read_image("stable-0.png").shape == (72, 112, 3)
    # The window of the last frame ends with the pairs that do not exist.
    assert variables["inputs"]["forward"].shape == (1, 4, 3, 8, 12) and not variables["inputs"]["forward"][0, 2:].any()
    import onnx

    about = {entry.key: entry.value for entry in onnx.load("stabilize.onnx").metadata_props}
    assert (about["task"], about["size"]) == ("stabilize", "64x96")
    assert json.loads(about["config"])["stabilization"]["field_window"] == 2
    assert "wrote 4 frames" in capsys.readouterr().out
