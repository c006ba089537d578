"""`protoformer ablate`: tables from the first step to a page, and one sentence for what cannot be."""

import csv
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

import protoformer as pf
from protoformer.ablation.plan import TABLES, AblationTable
from protoformer.ablation.report import BEGIN, END
from protoformer.datasets.clips import write_clips
from protoformer.io.image import read_image
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.run_folder import read_log

SMALL = [
    *(
        "--preset",
        "tiny",
        "--device",
        "cpu",
        "--size",
        "64x64",
        "--set",
        "data.num_workers=0",
        "--set",
        "data.batch_size=1",
    ),
    *("--set", "data.crop_size=[64, 64]", "--set", "run.precision=fp32", "--set", "run.validation_scenes=1"),
    *("--set", "data.families={objects: 1}"),
    *("--set", "model.overrides.flow.num_train_updates=1", "--set", "model.overrides.flow.num_updates=1"),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_textures: tuple[int, int]) -> None:
    monkeypatch.chdir(tmp_path)


def ablated(protoformer, *arguments: str) -> Any:
    return protoformer("ablate", *arguments, *SMALL)


def test_a_table_is_trained_scored_drawn_and_put_into_a_page(
    protoformer, monkeypatch: pytest.MonkeyPatch, few_textures: tuple[int, int]
) -> None:
    table = TABLES["components"]
    ends = dataclasses.replace(table, variants=(table.variants[0], table.variants[-1]))  # which are soon trained
    monkeypatch.setitem(cast("dict[str, AblationTable]", TABLES), "components", ends)
    write_clips(
        SyntheticScenes("objects", seed=5, size=(64, 64), bank=procedural_bank(*few_textures)),
        1,
        Path("data/Sintel"),
        "sintel",
        2,
    )
    Path("page.md").write_text(f"# Page\n\n{BEGIN}\n{END}\n")
    options = ("--steps", "1", "-o", "out", "--data", "data")
    outcome = ablated(protoformer, "components", *options, "--keep-weights")
    assert outcome.code == 0, outcome.err
    assert [line.split(":")[0] for line in outcome.errors] == ["run 1 of 2", "run 2 of 2"]
    assert "wrote out/flow-components.md, flow-components.csv" in outcome.out and "synthetic EPE" in outcome.out

    found = json.loads(Path("out/flow-components.json").read_text())
    assert [row["label"] for row in found["rows"]] == ["base", "CAP and LS"]
    assert found["columns"] == ["synthetic epe", "synthetic fl", "sintel clean epe", "sintel final epe"]
    assert all(row["milliseconds"] > 0 and row["gflops"] > 0 and row["steps"] == 1 for row in found["rows"])
    assert found["recipe"]["data"]["crop_size"] == [64, 64]
    rows = list(csv.DictReader(Path("out/flow-components.csv").read_text().splitlines()))
    assert [float(each["synthetic epe mean"]) for each in rows] == [
        row["scores"]["synthetic epe"]["mean"] for row in found["rows"]
    ]
    assert read_image("out/flow-components.png").shape[1] == 1600
    (weights,) = Path("out/runs").glob("flow-components-base-*/weights.safetensors")
    assert pf.load(str(weights), device="cpu").network.config.encoder.components == "base"

    weights.unlink()
    again = ablated(protoformer, "components", *options, "--page", "page.md", "--json", "--keep-weights")
    assert again.code == 0 and again.errors == []  # nothing was trained
    assert again.notes == [
        f"note: runs that were finished without --keep-weights have no weights: {weights.parent.name}; remove a "
        "run's folder in out/runs to train it again."
    ]
    assert json.loads(again.out)[0]["rows"] == found["rows"]
    page = Path("page.md").read_text()
    assert "## Flow: components of the encoder" in page and "](ablation-flow-components.png)" in page
    assert Path("ablation-flow-components.png").read_bytes() == Path("out/flow-components.png").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("component", "--steps", "1"), "the nearest one is 'components'"),
        (("all",), "runs need a budget"),
        (("all", "--steps", "1", "--minutes", "1"), "and only one of them"),
        (("all", "--minutes-each", "1", "--minutes", "1"), "and only one of them"),
        (("all", "--minutes", "0.1"), "seconds for each of 26 runs; give at least 2.2"),
        (("all", "--steps", "1", "--seeds", "0"), "--seeds is 0"),
        (("all", "--steps", "1", "--task", "track"), "choose one of flow, depth"),
        (("all", "--steps", "1", "--data", "."), "it has none of the folders Sintel, Middlebury"),
        (("all", "--steps", "1", "--page", "page.md"), "the page page.md cannot be read"),
        (("all", "--steps", "1", "--page", "empty.md"), "empty.md has no markers for tables"),
        (("all", "--steps", "1", "--set", "run.execution=graph"), "needs one process on a GPU"),
        (("all", "--steps", "1", "--size", "64"), "--size is '64'"),
    ],
)
def test_what_cannot_be_is_one_sentence(protoformer, arguments: tuple[str, ...], sentence: str) -> None:
    Path("empty.md").write_text("nothing\n")
    outcome = protoformer("ablate", *SMALL, *arguments, "-o", "new")
    assert outcome.code == 2 and outcome.out == "" and sentence in outcome.errors[-1], outcome.err
    assert not list(Path().glob("new/*.json"))


@pytest.mark.long
def test_after_sigkill_the_same_command_goes_on_and_does_nothing_twice(
    protoformer, few_textures: tuple[int, int]
) -> None:
    code = (
        "from protoformer.training import sources; from protoformer.synthetic.texture_bank import procedural_bank\n"
        f"sources._bank = lambda name, device: procedural_bank(*{few_textures})\n"
        "from protoformer.cli.main import main; main()"
    )
    command = ["ablate", "iterations", "--steps", "6", "--set", "run.checkpoint_every=2", "-o", "out", *SMALL]
    process = subprocess.Popen([sys.executable, "-c", code, *command], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while not list(Path().glob("out/runs/flow-num_iterations-2-*/checkpoints/step-00000002")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()  # SIGKILL
        process.wait()
    (first,) = Path("out/runs").glob("flow-num_iterations-1-*")
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert {path.name for path in before} == {"log.jsonl", "result.json"}

    outcome = protoformer(*command)
    assert outcome.code == 0, outcome.err
    assert [line.split(":")[0] for line in outcome.errors] == [f"run {n} of 4" for n in (2, 3, 4)]
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    (second,) = Path("out/runs").glob("flow-num_iterations-2-*")
    starts = [each["step"] for each in read_log(second / "log.jsonl") if each["event"] == "start"]
    assert starts[0] == 0 and len(starts) == 2 and starts[1] >= 2
    assert len(list(Path("out/runs").glob("*/result.json"))) == 4
