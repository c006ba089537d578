"""What the documents tell a reader to run, runs."""

import itertools
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import protoformer
from protoformer.cli.main import COMMANDS, load_command
from protoformer.datasets.clips import write_clips
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.recipe import read_recipe

ROOT = Path(__file__).parents[1]


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
@pytest.mark.parametrize(
    ("document", "written"),
    [
        ("README.md", {"motion.flo", "motion.png", "depth.npy", "track.mp4", "overlay.mp4", "steady.mp4"}),
        ("docs/index.md", {"motion.flo"}),
        ("docs/video.md", {"motion.mp4"}),
        ("docs/depth.md", {"depth.npy", "colors.png", "room.ply", "depth.mp4"}),
        ("docs/tracking.md", {"track.csv"}),
        ("docs/explain.md", {"explained", "explained.mp4"}),
        ("docs/stabilization.md", {"stable.mp4"}),
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
    for name, frame in zip(("frame1.png", "frame2.png", "room.jpg", "frame3.png"), frames, strict=True):
        Image.fromarray(frame).save(name)
    make_video(tmp_path / "clip.mp4", frames, rate=1)
    before = {path.name for path in tmp_path.iterdir()}
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    exec(compile(example, document, "exec"), {"pf": protoformer})
    assert {path.name for path in tmp_path.iterdir()} == before | written


@pytest.mark.filterwarnings("ignore::protoformer.UntrainedWarning")
def test_the_table_of_flow_makes_the_folder_of_its_figures_and_refuses_a_root_without_datasets(
    load_benchmark: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benchmark, figures = load_benchmark("flow_table"), tmp_path / "out" / "flow_table.json"
    arguments = ["--root", str(tmp_path), "--model", "tiny", "--num-updates", "1", "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", ["flow_table.py", *arguments])
    with pytest.raises(SystemExit):
        benchmark.main()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("has none of the folders Sintel, Middlebury, KITTI-2012, FlyingChairs; give one that does.")

    scenes = SyntheticScenes("objects", seed=5, size=(64, 64), bank=procedural_bank(side=64, each=2))
    write_clips(scenes, 1, tmp_path / "Sintel", "sintel", 2)
    benchmark.main()
    assert capsys.readouterr().err.splitlines()[0] == "sintel: 2 pairs"
    found = json.loads(figures.read_text())
    assert found.keys() == {"sintel"} and found["sintel"]["pairs"] == 2 and found["sintel"]["tiny"] > 0


def test_the_benchmark_shows_that_prototyping_is_linear_and_attention_is_not(
    load_benchmark: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benchmark = load_benchmark("prototyping")
    growth = {}
    for mixer, build in (("CAP", lambda: benchmark.Prototyping(128, 4)), ("self-attention", benchmark.SelfAttention)):
        small, large = (benchmark.count_flops(build, size) for size in ((54, 120), (108, 240)))
        growth[mixer] = large / small
    assert growth["CAP"] == pytest.approx(4.0, abs=0.1)
    assert growth["self-attention"] == pytest.approx(16.0, abs=1.0)

    monkeypatch.setattr(benchmark, "SIZES", ((4, 5), (8, 10)))
    monkeypatch.setattr(benchmark, "NUM_ITERATIONS", 4)
    monkeypatch.setattr(benchmark, "WORKLOADS", {"cpu": ((1, 8, 10, 64),)})
    arguments = ["--device", "cpu", "--repeats", "1", "--json", str(tmp_path / "figures.json")]
    monkeypatch.setattr(sys, "argv", ["prototyping.py", *arguments])
    benchmark.main()
    printed = capsys.readouterr().out
    assert "CAP, ratio" in printed and "CAP + LS, lower bound" in printed
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["costs"]) == 4
    assert [each["version"] for each in figures["versions"]] == [
        "CAP + LS, plain",
        "CAP + LS, fused",
        "CAP + LS with prior, fused",
        "CAP + LS with prior, K=49, fused",
        "MLP of the block",
        "self-attention",
    ]
    assert len(figures["convergence"]) == 3


DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("README.md", "docs/*.md", "src/protoformer/weights/*.md")
    for path in ROOT.glob(pattern)
)


def commands_of(document: Path) -> list[tuple[list[str], bool]]:
    """The words after `protoformer` of each command of a document, and whether it is a whole one from a console."""
    text = (ROOT / document).read_text().replace("\\\n", " ")
    whole = re.findall(r"^\s*\$ (?:torchrun .* -m )?protoformer (.*)$", text, re.MULTILINE)
    mentioned = re.findall(r"`protoformer ([^`]*)`", text)
    lines = [(line, True) for line in whole] + [(line, False) for line in mentioned]
    return [(shlex.split(re.split(r"\s[|>&]", line)[0], comments=True), is_whole) for line, is_whole in lines]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_the_commands_of_a_document_are_those_of_the_command_line(document: Path) -> None:
    for words, is_whole in commands_of(document):
        if words[0] not in COMMANDS:  # --help, or a word for any of them
            assert not is_whole or words[0].startswith("-"), words
            continue
        command, arguments = load_command(words[0]), words[1:]
        if hasattr(command, "resolve_command") and arguments and not arguments[0].startswith("-"):
            _, command, arguments = command.resolve_command(command.context_class(command), arguments)
        try:
            command.make_context(words[0], list(arguments))  # parses, but runs nothing
        except RuntimeError as error:  # what click raises to end a program, as --help does
            assert type(error).__name__ == "Exit"
            continue
        except Exception as error:  # typer brings a click of its own, or uses the installed one
            assert hasattr(error, "format_message"), words
            if is_whole or type(error).__name__ == "NoSuchOption":
                pytest.fail(f"protoformer {' '.join(words)}: {error}")
        if words[0] == "train" and arguments and re.fullmatch("[a-z]+-[a-z0-9]+", arguments[0]):
            settings = [value for flag, value in itertools.pairwise(arguments) if flag == "--set"]
            read_recipe(arguments[0]).changed(settings)
