"""`protoformer datasets`: which datasets there are, and whether one of them is whole."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.datasets.registry import DATASETS
from protoformer.io.formats import write_flo

CLEAN = "clean/alley_1/frame_0001"


@pytest.fixture
def sintel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sintel with three frames in each pass, in the current folder."""
    monkeypatch.chdir(tmp_path)
    root = Path("Sintel")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for each in ("clean", "final"):
        (root / "training" / each / "alley_1").mkdir(parents=True)
        for frame in (1, 2, 3):
            Image.fromarray(pixels).save(root / "training" / each / "alley_1" / f"frame_{frame:04d}.png")
    (root / "training/flow/alley_1").mkdir(parents=True)
    for frame in (1, 2):
        write_flo(root / "training/flow/alley_1" / f"frame_{frame:04d}.flo", np.zeros((20, 30, 2)))
    return root


@pytest.fixture
def damaged(sintel: Path) -> Path:
    """The same with its first clean image cut short, and the flow from the second frame gone."""
    path = sintel / "training/clean/alley_1/frame_0001.png"
    path.write_bytes(path.read_bytes()[:-100])
    (sintel / "training/flow/alley_1/frame_0002.flo").unlink()
    return sintel


def test_the_list_names_every_dataset_with_its_task_and_splits(protoformer) -> None:
    outcome = protoformer("datasets", "list")
    assert outcome.code == 0 and outcome.err == ""
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "name task splits description"
    for entry in DATASETS.values():
        assert [line for line in lines if line.startswith(f"{entry.name} {entry.task} {', '.join(entry.splits)} ")]


def test_a_whole_dataset_passes_the_check(sintel: Path, protoformer) -> None:
    outcome = protoformer("datasets", "check", "sintel", "--root", str(sintel))
    assert (outcome.code, outcome.err) == (0, "")
    there, missing = outcome.out.splitlines()
    assert there == "sintel, train: 4 samples found, 4 read, 0 broken"
    assert missing.startswith("sintel, test: missing (Sintel/test/clean does not exist, but ")


def test_every_split_that_is_there_is_checked(sintel: Path, protoformer) -> None:
    shutil.copytree(sintel / "training", sintel / "test")
    outcome = protoformer("datasets", "check", "sintel", "--root", str(sintel))
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "sintel, train: 4 samples found, 4 read, 0 broken",
        "sintel, test: 4 samples found, 4 read, 0 broken",
    ]


def test_one_split_may_be_checked_alone(sintel: Path, protoformer) -> None:
    outcome = protoformer("datasets", "check", "sintel", "--root", str(sintel), "--split", "train")
    assert (outcome.code, outcome.out) == (0, "sintel, train: 4 samples found, 4 read, 0 broken\n")


def test_a_check_goes_on_after_what_is_broken_and_names_it(damaged: Path, protoformer) -> None:
    outcome = protoformer("datasets", "check", "sintel", "--root", str(damaged))
    assert (outcome.code, outcome.err) == (2, "")
    head, *lines, _ = outcome.out.splitlines()
    assert head == "sintel, train: 4 samples found, 1 read, 3 broken"
    assert [line.split(": ")[0] for line in lines] == [
        f"  {name}" for name in (CLEAN, "clean/alley_1/frame_0002", "final/alley_1/frame_0002")
    ]
    assert f"{damaged}/training/clean/alley_1/frame_0001.png is a png cut short" in lines[0]
    for line in lines[1:]:
        assert f"{damaged}/training/flow/alley_1/frame_0002.flo does not exist, but the flow of " in line


def test_programs_read_the_same_report(damaged: Path, protoformer) -> None:
    outcome = protoformer("datasets", "check", "sintel", "--root", str(damaged), "--json")
    assert (outcome.code, outcome.err) == (2, "")
    whole = json.loads(outcome.out)
    assert list(whole["splits"]) == ["train"] and list(whole["missing"]) == ["test"]
    report = whole["splits"]["train"]
    assert list(report) == ["num_samples", "read", "broken"]
    assert (report["num_samples"], report["read"], len(report["broken"])) == (4, 1, 3)
    name, why = report["broken"][0]
    assert name == CLEAN and "frame_0001.png is a png cut short" in why


def test_programs_read_that_nothing_is_broken(sintel: Path, protoformer) -> None:
    outcome = protoformer("datasets", "check", "sintel", "--root", str(sintel), "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["splits"] == {"train": {"num_samples": 4, "read": 4, "broken": []}}


def test_options_leave_out_what_is_not_asked_for(damaged: Path, protoformer) -> None:
    outcome = protoformer("datasets", "check", "sintel", "--root", str(damaged), "--option", "render_pass=final")
    assert outcome.code == 2
    assert outcome.out.startswith("sintel, train: 2 samples found, 1 read, 1 broken\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("sintell", "--root", "Sintel"), "there is no dataset 'sintell'; the nearest known one is 'sintel'."),
        (("sintel", "--root", "Sintel", "--split", "all"), "sintel has no split 'all'; choose one of train, test."),
        (("sintel", "--root", "Sintel", "--option", "x=1"), "Sintel has no option 'x'; known ones are render_pass."),
        (
            ("sintel", "--root", "Sintel", "--option", "final"),
            "an option of a dataset is key=value, not 'final'; write it like that.",
        ),
        (
            ("sintel", "--root", "nowhere"),
            "nowhere does not exist; point --root at the folder where the dataset was unpacked, which holds "
            "training/clean/ (the folder of clean frames).",
        ),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(
    sintel: Path, protoformer, arguments: tuple[str, ...], sentence: str
) -> None:
    outcome = protoformer("datasets", "check", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.errors == [f"protoformer: {sentence}"]
