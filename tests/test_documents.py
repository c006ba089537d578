"""What the documents tell a reader to run, runs."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import protoformer
from protoformer.datasets.clips import write_clips
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank

ROOT = Path(__file__).parents[1]


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
@pytest.mark.parametrize(
    ("document", "written"),
    [
        ("README.md", {"motion.flo", "motion.png"}),
        ("docs/index.md", {"motion.flo"}),
        ("docs/video.md", set()),
        ("docs/depth.md", {"depth.npy", "colors.png", "room.ply"}),
        ("docs/tracking.md", {"track.csv"}),
        ("docs/explain.md", {"explained"}),
        ("docs/stabilization.md", set()),
        ("docs/segmentation.md", {"masks", "overlay.mp4", "masks.json"}),
    ],
)
def test_the_example_of_a_document_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_video: Callable[..., Path],
    document: str,
    written: set[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = [np.random.default_rng(n).integers(0, 256, (70, 90, 3), dtype=np.uint8) for n in range(4)]
    for name, frame in zip(("frame1.png", "frame2.png", "room.jpg"), frames, strict=False):
        Image.fromarray(frame).save(name)
    make_video(tmp_path / "clip.mp4", frames, rate=1)
    before = {path.name for path in tmp_path.iterdir()}
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    exec(compile(example, document, "exec"), {"pf": protoformer})
    assert {path.name for path in tmp_path.iterdir()} == before | written


def benchmark_of(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A program of the folder of benchmarks, as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # as for a program that is run there
    monkeypatch.setitem(sys.modules, spec.name, benchmark)  # where its dataclasses look themselves up
    spec.loader.exec_module(benchmark)
    return benchmark


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
def test_the_table_of_flow_makes_the_folder_of_its_figures_and_refuses_a_root_without_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark, figures = benchmark_of("flow_table", monkeypatch), tmp_path / "out" / "flow_table.json"
    arguments = ["--root", str(tmp_path), "--model", "tiny", "--num-updates", "1", "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", ["flow_table.py", *arguments])
    with pytest.raises(SystemExit):
        benchmark.main()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("has none of the folders Sintel, Middlebury, KITTI-2012, FlyingChairs; give one that does.")

    world = SyntheticScenes("objects", seed=5, size=(64, 64), bank=procedural_bank(side=64, each=2))
    write_clips(world, 1, tmp_path / "Sintel", "sintel", 2)
    benchmark.main()
    assert capsys.readouterr().err.splitlines()[0] == "sintel: 2 pairs"
    found = json.loads(figures.read_text())
    assert found.keys() == {"sintel"} and found["sintel"]["pairs"] == 2 and found["sintel"]["tiny"] > 0


def test_the_benchmark_shows_that_prototyping_is_linear_and_attention_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = benchmark_of("prototyping", monkeypatch)
    growth = {}
    for mixer, build in (("CAP", lambda: benchmark.Prototyping(128, 4)), ("self-attention", benchmark.SelfAttention)):
        small, large = (benchmark.operations(build, size) for size in ((54, 120), (108, 240)))
        growth[mixer] = large / small
    assert growth["CAP"] == pytest.approx(4.0, abs=0.1)
    assert growth["self-attention"] == pytest.approx(16.0, abs=1.0)

    monkeypatch.setattr(benchmark, "SIZES", ((4, 5), (8, 10)))
    monkeypatch.setattr(benchmark, "STEPS", 4)
    monkeypatch.setattr(benchmark, "WORKLOADS", {"cpu": ((1, 8, 10, 64),)})
    arguments = ["--device", "cpu", "--repeats", "1", "--json", str(tmp_path / "figures.json")]
    monkeypatch.setattr(sys, "argv", ["prototyping.py", *arguments])
    benchmark.main()
    printed = capsys.readouterr().out
    assert "CAP grows" in printed and "CAP + LS, floor" in printed
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["costs"]) == 4
    assert [each["version"] for each in figures["versions"]] == [
        "CAP + LS, plain",
        "CAP + LS, fused",
        "MLP of the block",
        "self-attention",
    ]
    assert len(figures["convergence"]) == 3
