"""A flow network and its exported files, made once for all tests."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

import protoformer as pf
from protoformer.export import exporter as export_module
from protoformer.export.exporter import MAX_DIFFERENCE


@pytest.fixture(scope="session")
def moving() -> pf.FlowPredictor:
    """The smallest network with a scaled last layer, so that its flow is several pixels."""
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", flow={"global_matching": True})
    with torch.no_grad():
        model.network.flow_head.decoder.update.delta_head[-1].weight.mul_(300)
    return model


@pytest.fixture(scope="session")
def exported(moving: pf.FlowPredictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with flow.onnx and flow.pt2, the network with one update; made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exported"
    with FileLock(folder.with_suffix(".lock")), pytest.MonkeyPatch.context() as patched:
        if not folder.exists():
            made = folder.with_suffix(".made")
            made.mkdir(exist_ok=True)
            export_checked(moving, made / "flow.onnx", patched)
            # Second, from the same trace, as it is stripped of source lines before it is saved.
            export_checked(moving, made / "flow.pt2", patched)
            made.rename(folder)
    return folder


def export_checked(model: pf.FlowPredictor, path: Path, patched: pytest.MonkeyPatch) -> None:
    """Export at dynamic size and check progress and result; later exports reuse the trace, which takes long."""
    calls: list[tuple[int, int]] = []
    trace = export_module._trace

    def trace_once(*arguments: Any) -> torch.export.ExportedProgram:
        program = trace(*arguments)
        patched.setattr(export_module, "_trace", lambda *_: program)
        return program

    patched.setattr(export_module, "_trace", trace_once)
    written = pf.export_model(model, path, num_updates=1, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (written.path, written.format, written.size) == (path, path.suffix[1:], None)
    assert written.bytes == path.stat().st_size
    assert written.difference <= MAX_DIFFERENCE and len(written.checked) == 2


@pytest.fixture(scope="session")
def onnx_file(exported: Path) -> Path:
    return exported / "flow.onnx"
