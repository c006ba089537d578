"""`protoformer export`: a file that was checked, or one sentence."""

import json
from pathlib import Path

import pytest
import torch

import protoformer as pf
from protoformer.export import exporter as export_module
from protoformer.export.exporter import MAX_DIFFERENCE
from protoformer.synthetic.layers import random_scene

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network itself in the place of a graph."""
    graphs = []
    monkeypatch.setattr(export_module, "_trace", lambda graph: graphs.append(graph.module))
    monkeypatch.setattr(export_module, "_pt2_bytes", lambda *_: b"a graph")
    monkeypatch.setattr(export_module, "_pt2_runner", lambda _: torch.no_grad()(graphs[-1]))


@pytest.mark.long
def test_a_graph_of_one_size_does_what_the_library_does(protoformer) -> None:
    outcome = protoformer(
        *("export", "flow", "--format", "pt2", "--size", "70x84", "-o", "flow.pt2"),
        *("--model", "tiny", "--num-updates", "1", "--json"),
    )
    assert outcome.code == 0 and outcome.errors == [] and len(outcome.notes) == 1
    summary = json.loads(outcome.out)
    assert summary["difference"] <= MAX_DIFFERENCE
    assert summary == {
        "path": "flow.pt2",
        "format": "pt2",
        "size": [70, 84],
        "model": "tiny",
        "num_updates": 1,
        "checked": [[70, 84]],
        "difference": summary["difference"],
        "bytes": Path("flow.pt2").stat().st_size,
        "template": None,
    }
    assert [path.name for path in Path().iterdir()] == ["flow.pt2"]
    assert b".py" not in Path("flow.pt2").read_bytes()  # no lines of the checkout that it was made in
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu")
    pair = random_scene((70, 84), seed=3).render()
    run = torch.export.load("flow.pt2").module()
    flow, _ = run(torch.cat((pair.first, pair.second)), torch.cat((pair.second, pair.first)))
    expected = model.flow(pair.first, pair.second, num_updates=1).flow
    torch.testing.assert_close(flow[0], expected, atol=MAX_DIFFERENCE, rtol=0)


@pytest.mark.usefixtures("at_once")
def test_the_difference_is_printed(protoformer) -> None:
    outcome = protoformer("export", "flow", "-o", "flow.pt2", "--model", "tiny", "--num-updates", "1")
    assert outcome.code == 0 and outcome.errors == []
    assert outcome.out.startswith(
        "wrote flow.pt2 (0.0 MiB), tiny with 1 updates for images of any size of at least 64x64; "
    )
    assert outcome.out.endswith(" px, at 97x130 and 128x192\n")
    assert Path("flow.pt2").read_bytes() == b"a graph"


@pytest.mark.usefixtures("at_once")
def test_a_graph_that_differs_ends_with_code_1_and_no_file(protoformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "MAX_DIFFERENCE", -1.0)
    outcome = protoformer("export", "flow", "-o", "flow.pt2", "--model", "tiny", "--num-updates", "1")
    assert (outcome.code, outcome.out) == (1, "")
    assert len(outcome.errors) == 1
    assert outcome.errors[0].startswith("protoformer: the graph differs from the model by ")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("flow", "-o", "flow.onnx", "--size", "big"), "--size is 'big', but a size is HEIGHTxWIDTH"),
        (("flow", "-o", "flow.onnx", "--size", "32x640"), "the size 32x640 is too small"),
        (("flow", "-o", "flow.onnx", "--size", "99999x99999"), "--size 99999x99999 is over the limit"),
        (("flow", "-o", "nowhere/flow.onnx"), "the folder nowhere does not exist"),
        (("flow", "-o", "flow.bin"), "flow.bin by that suffix; give .onnx or .pt2"),
        (("flow", "-o", "flow.onnx", "--format", "tflite"), "there is no export format 'tflite'"),
        (("flow", "-o", "flow.onnx", "--num-updates", "0"), "0 updates cannot be run"),
        (("flow", "-o", "flow.onnx", "--model", "none"), "there is no model 'none'"),
        (("walk", "-o", "walk.onnx"), "'walk' cannot be exported; choose one of flow, depth, track, stabilize"),
        (("track", "-o", "t.onnx", "--size", "96x96"), "the crops of tracking have the size of the model; leave"),
        (("track", "-o", "t.onnx", "--num-updates", "3"), "a graph of track has no updates; leave"),
        (
            ("stabilize", "-o", "s.onnx", "--size", "100x200"),
            "sides of stabilized frames are multiples of 8 pixels; give a size such as 96x200",
        ),
        (("depth", "-o", "d.onnx", "--model", "flow"), "flow is a model for flow, not for depth"),
    ],
)
def test_what_cannot_be_is_one_sentence(protoformer, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = protoformer("export", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.errors) == 1 and sentence in outcome.errors[0]
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("at_once")
def test_tracking_has_two_files(protoformer) -> None:
    outcome = protoformer("export", "track", "-o", "track.pt2", "--model", "tiny")
    assert outcome.code == 0 and outcome.errors == []
    template, search = outcome.out.splitlines()
    assert template.startswith("wrote track-template.pt2 (0.0 MiB), tiny for crops of 96x96; largest difference ")
    assert search.startswith("wrote track.pt2 (0.0 MiB), tiny for crops of 128x128; largest difference to the model ")
    assert search.endswith(" px, at 128x128")
    assert sorted(path.name for path in Path().iterdir()) == ["track-template.pt2", "track.pt2"]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("task", "size"), [("depth", "any size of at least 64x64"), ("stabilize", "96x168")])
def test_other_tasks_have_one_file(protoformer, task: str, size: str) -> None:
    outcome = protoformer("export", task, "-o", "graph.pt2", "--model", "tiny")
    assert outcome.code == 0 and outcome.errors == []
    assert f"tiny{' with 3 updates' if task == 'depth' else ''} for images of {size}; largest" in outcome.out
    assert Path("graph.pt2").read_bytes() == b"a graph"
