"""`protoformer evaluate depth`: tables, files, and one sentence for what cannot be done."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protoformer.cli.train import TOOLS
from protoformer.datasets.registry import open_dataset
from protoformer.errors import UntrainedWarning
from protoformer.io.formats import write_kitti_depth
from protoformer.loading import load
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network

Run = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")
REAL = Path(__file__).parents[3] / "shared" / "data" / "NYUv2"


@pytest.fixture
def kitti(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two frames of KITTI by an Eigen list whose third line has no truth: depth is 10 m in one, 20 m in the other."""
    monkeypatch.chdir(tmp_path)
    drive, lines = "2011_09_26/2011_09_26_drive_0002_sync", []
    for number, meters in ((1, 10.0), (2, 20.0), (3, None)):
        image = Path("KITTI") / drive / "image_02" / "data" / f"{number:010d}.png"
        truth = f"2011_09_26_drive_0002_sync/proj_depth/groundtruth/image_02/{number:010d}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (124, 37), (50 * number, 9, 9)).save(image)
        if meters is not None:
            path = Path("KITTI/train") / truth
            path.parent.mkdir(parents=True, exist_ok=True)
            write_kitti_depth(path, np.full((37, 124), meters))
        lines.append(f"{image.relative_to('KITTI')} {truth if meters else 'None'} 72.1")
    Path("KITTI/eigen_test_files_with_gt.txt").write_text("\n".join(lines))
    return tmp_path


def evaluate(protoformer: Run, *arguments: str) -> Any:
    return protoformer("evaluate", "depth", "--dataset", "kitti-eigen", "--root", "KITTI", *arguments)


def test_a_table_says_what_each_row_is_and_passes_over_what_has_no_truth(kitti: Path, protoformer: Run) -> None:
    outcome = evaluate(protoformer, "--method", "mean")
    assert (outcome.code, outcome.errors) == (0, [])
    for word in ("metric", "median-scaled", "aligned", "AbsRel", "ProtoFormer, published", "Garg's crop"):
        assert word in outcome.out
    assert "1 images without ground truth were skipped" in outcome.out


def test_scores_are_written_for_programs(kitti: Path, protoformer: Run) -> None:
    outcome = evaluate(protoformer, "--method", "mean", "-o", "scores", "--json", "--worst", "1")
    found = json.loads(outcome.out)
    assert found == json.loads(Path("scores/scores.json").read_text())
    assert found["without_truth"] == 1 and found["rules"]["crop"] == "garg"
    assert found["table"]["metric"]["abs_rel"] == pytest.approx((0.5 + 0.25) / 2)  # 15 m for 10 and for 20
    assert found["table"]["median_scaled"]["abs_rel"] == pytest.approx(0)
    rows = list(csv.DictReader(Path("scores/samples.csv").read_text().splitlines()))
    assert len(rows) == 6 and float(rows[0]["abs_rel"]) == pytest.approx(0.5)
    assert [path.name for path in Path("scores").glob("*.png")] == [
        "worst-01-2011_09_26_drive_0002_sync-image_02-0000000001.png"
    ]


def test_a_model_is_evaluated(kitti: Path, protoformer: Run) -> None:
    outcome = evaluate(protoformer, "--model", "tiny", "--num-updates", "1", "--json")
    found = json.loads(outcome.out)
    assert found["method"] == "tiny (untrained)" and found["table"]["samples"] == 2
    assert found["table"]["metric"]["abs_rel"] > 0
    alone = json.loads(evaluate(protoformer, "--model", "tiny", "--num-updates", "1", "--json", "--no-mirrored").out)
    assert alone["method"] == "tiny (untrained), not mirrored" and alone["table"] != found["table"]


def test_training_scores_a_network_as_evaluation_does(kitti: Path, protoformer: Run) -> None:
    found = json.loads(evaluate(protoformer, "--model", "tiny", "--no-mirrored", "--json").out)["table"]["metric"]
    network = build_network(preset("tiny"), "depth")
    with pytest.warns(UntrainedWarning):
        network.load_state_dict(load("tiny", "cpu", task="depth").network.state_dict())
    scores = TOOLS["depth"].score(network, open_dataset("kitti-eigen", "KITTI"), "kitti-eigen", Path("KITTI"))
    assert scores == pytest.approx({name: found[name] for name in ("abs_rel", "rmse", "delta1")}, rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--dataset", "sintel"), "sintel is a dataset of flow, not of depth; choose one of "),
        (("--split", "none"), "kitti-eigen has no split 'none'; choose one of train, val, test."),
        (("--method", "median"), "there is no method 'median'; choose model or mean."),
        (
            ("--method", "mean", "--num-updates", "2"),
            "mean takes no --model, --num-updates, --mirrored or --device; leave them out.",
        ),
        (("--root", "nowhere"), ""),
    ],
)
def test_bad_input_is_one_sentence(kitti: Path, protoformer: Run, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = evaluate(protoformer, *arguments)
    assert outcome.code == 2 and outcome.out == "" and "Traceback" not in outcome.err
    (told,) = outcome.errors
    assert told.startswith("protoformer: ") and sentence in told


@pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not beside the checkout")
def test_the_mean_of_real_rooms_scores_what_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protoformer: Run
) -> None:
    """A constant is wrong by about a third in meters, and every network should be better than that."""
    monkeypatch.chdir(tmp_path)
    for kind, suffix in (("rgb", "jpg"), ("depth", "png")):
        (tmp_path / "val" / kind).mkdir(parents=True)
        for path in sorted((REAL / "val" / kind).iterdir())[:6]:
            (tmp_path / "val" / kind / f"{path.stem}.{suffix}").symlink_to(path)
    outcome = protoformer(
        *("evaluate", "depth", "--dataset", "nyuv2", "--root", ".", "--split", "val", "--method", "mean", "--json")
    )
    table = json.loads(outcome.out)["table"]
    assert table["samples"] == 6 and 0.2 < table["metric"]["abs_rel"] < 0.6
    assert table["aligned"]["rmse"] < table["metric"]["rmse"]
