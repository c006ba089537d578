"""Exported files compute what the network computes and describe themselves; invalid exports are refused."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.errors import InputError
from protoformer.export import exporter as export_module
from protoformer.export import graphs as graph_module
from protoformer.export.exporter import DESCRIPTION, MAX_DIFFERENCE
from protoformer.export.graphs import FlowGraph, make_graphs
from protoformer.io.image_input import as_image
from protoformer.models.heads import cost_memory
from protoformer.models.heads import cost_memory as attention
from protoformer.synthetic.layers import random_scene

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
SIZES = [(97, 130), (64, 200), (104, 136)]
Pair = tuple[torch.Tensor, torch.Tensor]


def rendered(size: tuple[int, int], seed: int = 5) -> Pair:
    sample = random_scene(size, seed=seed).render()
    return sample.first, sample.second


def assert_agrees(
    run: export_module.Runner, model: pf.FlowPredictor, first: torch.Tensor, second: torch.Tensor
) -> None:
    """Every pair of a batch has the output of the model on that pair alone."""
    flow, confidence = run(first, second)
    for index in range(len(first)):
        expected = model.flow(first[index], second[index], num_updates=1)
        torch.testing.assert_close(flow[index], expected.flow, atol=MAX_DIFFERENCE, rtol=0)
        torch.testing.assert_close(confidence[index], expected.confidence, atol=MAX_DIFFERENCE, rtol=0)


def assert_agrees_at_any_size(run: export_module.Runner, model: pf.FlowPredictor) -> None:
    for size in SIZES:
        assert_agrees(run, model, *rendered(size))
    pairs = [rendered((73, 88), seed) for seed in (1, 2)]
    assert_agrees(run, model, *(torch.cat(images) for images in zip(*pairs, strict=True)))


@pytest.mark.long
def test_onnxruntime_computes_the_flow_of_the_network_at_any_size(moving: pf.FlowPredictor, onnx_file: Path) -> None:
    assert moving.flow(*rendered(SIZES[0]), num_updates=1).flow.abs().max() > 1
    run = export_module._onnx_runner(onnx_file.read_bytes())
    assert_agrees_at_any_size(run, moving)


@pytest.mark.long
def test_onnxruntime_computes_the_flow_of_the_network_on_real_images(moving: pf.FlowPredictor, onnx_file: Path) -> None:
    frames = Path(__file__).parents[2].parent / "shared" / "data" / "Middlebury" / "other-data" / "RubberWhale"
    if not frames.is_dir():
        pytest.skip("the benchmark samples are not beside this checkout")
    first, second = (as_image(frames / f"frame{number}.png") for number in (10, 11))
    assert_agrees(export_module._onnx_runner(onnx_file.read_bytes()), moving, first, second)


@pytest.mark.long
def test_an_onnx_file_has_metadata(moving: pf.FlowPredictor, onnx_file: Path) -> None:
    import onnx

    proto = onnx.load(onnx_file)
    onnx.checker.check_model(proto)
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert (about["task"], about["model"], about["updates"], about["size"]) == ("flow", "custom", "1", "dynamic")
    assert about["protoformer"] == pf.__version__ and about["trained"] == "false"
    assert pf.ModelConfig.from_dict(json.loads(about["config"])) == moving.network.config
    (graph,) = make_graphs("flow", moving.network, None, 1)
    assert json.loads(about["inputs"]) == graph.inputs and json.loads(about["outputs"]) == graph.outputs
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 20)]
    assert b".py" not in onnx_file.read_bytes()  # no source lines with local paths
    axes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.input, *proto.graph.output)
    }
    images = ["batch", 3, "height", "width"]
    assert axes == {
        "first": images,
        "second": images,
        "flow": ["batch", 2, "height", "width"],
        "confidence": ["batch", 1, "height", "width"],
    }


@pytest.mark.long
def test_the_example_of_the_docs_runs(
    onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flow.onnx").write_bytes(onnx_file.read_bytes())
    for name in ("frame1.png", "frame2.png"):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(name)
    example = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    exec(compile(example, "export.md", "exec"), {})
    assert np.load("motion.npy").shape == (2, 70, 90)
    assert capsys.readouterr().out.startswith("flow by custom, 1 updates, size dynamic\nmean motion ")


@pytest.mark.long
def test_torch_computes_the_flow_of_the_network_at_any_size(moving: pf.FlowPredictor, exported: Path) -> None:
    entries = {DESCRIPTION: ""}
    run = torch.no_grad()(torch.export.load(exported / "flow.pt2", extra_files=entries).module())
    assert_agrees_at_any_size(run, moving)
    with pytest.raises(AssertionError, match="Guard failed"):
        run(*rendered((63, 80)))
    about = json.loads(entries[DESCRIPTION])
    assert (about["model"], about["updates"], about["size"]) == ("custom", "1", "dynamic")


def test_a_cost_memory_in_one_part_equals_that_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", flow={"decoder": "memory", "aggregation": "pixels"})
    pair = rendered((64, 72))
    monkeypatch.setattr(cost_memory, "MAPS_AT_ONCE", 7)
    in_parts = model.flow(*pair, num_updates=1).flow
    for module in (cost_memory, attention):
        monkeypatch.setattr(module, "is_exporting", lambda: True)
    torch.testing.assert_close(model.flow(*pair, num_updates=1).flow, in_parts, atol=1e-4, rtol=0)


class TestRefusals:
    @pytest.mark.parametrize("size", [(63, 200), (64, 0), (-64, 64)])
    def test_a_size_too_small(self, tiny: pf.FlowPredictor, tmp_path: Path, size: tuple[int, int]) -> None:
        with pytest.raises(InputError, match="is too small; give a height and a width of 64 pixels or more"):
            pf.export_model(tiny, tmp_path / "flow.onnx", size=size)

    @pytest.mark.parametrize("size", [(64,), (64, 64, 3), (64.0, 64.0)])
    def test_an_invalid_size(self, tiny: pf.FlowPredictor, tmp_path: Path, size: tuple[int, int]) -> None:
        with pytest.raises(InputError, match="is not a height and a width in pixels; give two whole numbers"):
            pf.export_model(tiny, tmp_path / "flow.onnx", size=size)

    def test_a_size_too_large(self, tiny: pf.FlowPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InputError, match=r"over the limit of .* pixels; choose a smaller one"):
            pf.export_model(tiny, tmp_path / "flow.onnx", size=(100_000, 100_000))
        monkeypatch.setattr(graph_module, "free_bytes", lambda _: 2**20)
        with pytest.raises(InputError, match=r"for 440x1024 stores .* MiB of costs .* choose a smaller size"):
            pf.export_model(tiny, tmp_path / "flow.onnx", size=(440, 1024))

    @pytest.mark.parametrize("updates", [0, -1, 2.5])
    def test_an_invalid_number_of_updates(self, tiny: pf.FlowPredictor, tmp_path: Path, updates: int) -> None:
        with pytest.raises(InputError, match=f"{updates!r} updates cannot be run"):
            pf.export_model(tiny, tmp_path / "flow.onnx", num_updates=updates)

    @pytest.mark.parametrize(("name", "format"), [("flow.pb", None), ("flow", None), ("flow.pt2", "onnx")])
    def test_a_wrong_suffix(self, tiny: pf.FlowPredictor, tmp_path: Path, name: str, format: str | None) -> None:
        with pytest.raises(InputError, match=r"by that suffix; give \.onnx"):
            pf.export_model(tiny, tmp_path / name, format=format)

    @pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
    def test_a_missing_package(
        self, tiny: pf.FlowPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(InputError, match=rf"needs {missing}, not installed here: pip install .*\[export\]"):
            pf.export_model(tiny, tmp_path / "flow.onnx")

    def test_an_unknown_model(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no model 'none'"):
            pf.export_model("none", tmp_path / "flow.onnx")


@pytest.mark.parametrize("wrong", [0.02, float("nan")])
def test_a_graph_that_differs_is_not_written(
    tiny: pf.FlowPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    graph = FlowGraph(tiny.network, 1)

    def wrong_graph(first: torch.Tensor, second: torch.Tensor) -> Pair:
        with torch.no_grad():
            flow, confidence = graph(first, second)
        return flow + wrong, confidence

    monkeypatch.setattr(export_module, "_trace", lambda *_: None)
    monkeypatch.setattr(export_module, "_pt2_bytes", lambda *_: b"")
    monkeypatch.setattr(export_module, "_pt2_runner", lambda _: wrong_graph)
    (tmp_path / "flow.pt2").write_bytes(b"before")
    with pytest.raises(
        pf.ExportError, match=r"differs from the model by .* in flow .* images of 97x130, .* nothing was"
    ):
        pf.export_model(tiny, tmp_path / "flow.pt2", num_updates=1)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("flow.pt2", b"before")]
