"""`protoformer evaluate`: a benchmark's tree in, its table and files out."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import protoformer as pf
from protoformer.flow.baselines import baseline_flow
from protoformer.flow.metrics import FlowScores, flow_scores
from protoformer.io.formats import read_flo, read_kitti_flow, write_flo, write_kitti_flow
from protoformer.io.image import read_image

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

SIZE = (48, 64)
MOTION = (2, 1)
NAMES = [f"{each}/{scene}/frame_0001" for each in ("clean", "final") for scene in ("alley_1", "cave_2")]


def paint(path: Path, seed: int, shift: tuple[int, int] = (0, 0)) -> None:
    """Write a view of a texture; with a shift of (u, v), everything in it is that much further right and down."""
    height, width = SIZE
    blocks = np.random.default_rng(seed).integers(0, 256, (height // 4 + 4, width // 4 + 4, 3), dtype=np.uint8)
    texture = Image.fromarray(blocks).resize((width + 16, height + 16), Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    texture.crop((8 - shift[0], 8 - shift[1], 8 - shift[0] + width, 8 - shift[1] + height)).save(path)


@pytest.fixture
def sintel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sintel with two scenes of two frames in each pass, in the current folder; the test split has one."""
    monkeypatch.chdir(tmp_path)
    root = Path("Sintel")
    for seed, scene in enumerate(("alley_1", "cave_2")):
        for each in ("clean", "final"):
            paint(root / "training" / each / scene / "frame_0001.png", seed)
            paint(root / "training" / each / scene / "frame_0002.png", seed, MOTION)
        (root / "training/flow" / scene).mkdir(parents=True)
        write_flo(root / "training/flow" / scene / "frame_0001.flo", np.full((*SIZE, 2), MOTION, np.float32))
    for each in ("clean", "final"):
        for frame in (1, 2):
            paint(root / "test" / each / "market_1" / f"frame_{frame:04d}.png", 5 + frame)
    return root


@pytest.fixture
def kitti(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """KITTI 2015 with one pair in each split, in the current folder; its truth is known on the lower half."""
    monkeypatch.chdir(tmp_path)
    root = Path("KITTI-2015")
    for split in ("training", "testing"):
        paint(root / split / "image_2/000000_10.png", 3)
        paint(root / split / "image_2/000000_11.png", 3, MOTION)
    (root / "training/flow_occ").mkdir()
    known = np.arange(SIZE[0])[:, None].repeat(SIZE[1], axis=1) >= SIZE[0] // 2
    write_kitti_flow(root / "training/flow_occ/000000_10.png", np.full((*SIZE, 2), MOTION, np.float32), known)
    return root


def strictly(text: str) -> Any:
    """Read json that holds no NaN or Infinity, which are no json."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} in json")

    return json.loads(text, parse_constant=refuse)


def evaluated(protoformer, root: Path, *options: str, dataset: str = "sintel") -> Any:
    """What the command prints for programs."""
    outcome = protoformer("evaluate", "flow", "--dataset", dataset, "--root", str(root), "--json", *options)
    assert outcome.code == 0 and outcome.errors == [], outcome.err
    return strictly(outcome.out)


def image(path: Path) -> torch.Tensor:
    return torch.from_numpy(read_image(path)).permute(2, 0, 1)


def expected_scores(flow: torch.Tensor) -> FlowScores:
    """Scores of a flow, 2 x H x W, where the truth is the motion of the trees here."""
    truth = torch.tensor(MOTION).view(1, 2, 1, 1).expand(1, 2, *SIZE).float()
    return flow_scores(flow[None], truth, torch.ones(1, 1, *SIZE, dtype=torch.bool))


def test_the_table_has_both_passes_and_the_published_rows(sintel: Path, protoformer) -> None:
    outcome = protoformer("evaluate", "flow", "--dataset", "sintel", "--root", str(sintel), "--model", "tiny")
    assert outcome.code == 0 and outcome.errors == []
    assert len(outcome.notes) == 1
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "tiny (untrained) on sintel"
    assert lines[1].startswith("group method measured on EPE EPE/image Fl % Fl/image %")
    assert max(len(line) for line in outcome.out.splitlines()) <= 100
    (clean,) = (place for place, line in enumerate(lines) if line.startswith("clean tiny (untrained) 2 samples "))
    (final,) = (place for place, line in enumerate(lines) if line.startswith("final tiny (untrained) 2 samples "))
    assert lines[clean + 1 : clean + 5] == [
        "ProtoFormer, published (C+T) whole set 1.04",
        "ProtoFormer, published (mix, trained on these) whole set 0.48",
        "FlowFormer, published (C+T) whole set 1.01",
        "RAFT, published (C+T) whole set 1.43",
    ]
    assert final == clean + 5
    assert lines[final + 1] == "ProtoFormer, published (C+T) whole set 2.43"
    assert "tiny (untrained) on sintel, in detail" in lines and "wrote" not in outcome.out


def test_json_has_every_score_and_null_where_nothing_is_known(sintel: Path, protoformer) -> None:
    found = evaluated(protoformer, sintel, "--model", "tiny", "--num-updates", "2")
    assert list(found) == ["dataset", "method", "groups", "samples", "others", "without_truth"]
    assert (found["dataset"], found["method"]) == ("sintel", "tiny (untrained)")
    assert list(found["groups"]) == ["clean", "final"]
    assert [each["name"] for each in found["samples"]] == NAMES
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny")
    folder = sintel / "training/clean/alley_1"
    expected = expected_scores(model.flow(folder / "frame_0001.png", folder / "frame_0002.png", num_updates=2).flow)
    for field, value in found["samples"][0]["scores"].items():
        wanted = getattr(expected, field)
        assert value is None if math.isnan(wanted) else value == pytest.approx(wanted, rel=1e-5)
    assert found["samples"][0]["scores"]["matched"] is None
    clean = found["groups"]["clean"]
    assert (clean["samples"], clean["pixels"]) == (2, 2 * SIZE[0] * SIZE[1])
    errors = [each["scores"]["epe"] for each in found["samples"][:2]]
    assert clean["epe_per_image"] == pytest.approx(sum(errors) / 2) == pytest.approx(clean["epe"])
    assert {group: len(rows) for group, rows in found["others"].items()} == {"clean": 4, "final": 4}
    assert found["without_truth"] == 0


@pytest.mark.parametrize("method", ["dis", "dis-fast", "farneback"])
def test_a_classical_method_needs_no_weights(sintel: Path, protoformer, method: str) -> None:
    found = evaluated(protoformer, sintel, "--method", method)
    assert found["method"] == method
    folder = sintel / "training/final/cave_2"
    flow = baseline_flow(method, image(folder / "frame_0001.png"), image(folder / "frame_0002.png"))
    assert found["samples"][3]["scores"]["epe"] == pytest.approx(expected_scores(flow).epe)
    assert found["groups"]["clean"]["epe"] < 1


def test_only_pixels_with_truth_count(kitti: Path, protoformer) -> None:
    found = evaluated(protoformer, kitti, "--method", "dis", dataset="kitti-2015")
    assert list(found["groups"]) == ["all"]
    assert found["groups"]["all"]["pixels"] == SIZE[0] * SIZE[1] // 2
    published = [(row["epe_per_image"], row["fl"]) for row in found["others"]["all"]]
    assert published == [(4.08, 14.6), (0.5, 1.09), (4.09, 14.7), (5.04, 17.4)]


def test_others_are_left_out_where_occluded_pixels_are(kitti: Path, protoformer) -> None:
    (kitti / "training/flow_occ").rename(kitti / "training/flow_noc")
    found = evaluated(protoformer, kitti, "--method", "dis", "--option", "truth=noc", dataset="kitti-2015")
    assert found["others"] == {"all": []}


def test_peers_beside_the_data_stand_in_the_table(sintel: Path, protoformer) -> None:
    peers = {"Peer": {f"Sintel/{name}": {"epe": 1.5 + place, "fl": 7.0} for place, name in enumerate(NAMES)}}
    Path("peers.json").write_text(json.dumps({"flow": peers}))
    outcome = protoformer("evaluate", "flow", "--dataset", "sintel", "--root", str(sintel), "--method", "dis")
    rows = [" ".join(line.split()) for line in outcome.out.splitlines() if "Peer" in line]
    assert rows == ["Peer 2 of these 2.00 7.00", "Peer 2 of these 4.00 7.00"]


def test_options_of_the_dataset_choose_among_its_samples(sintel: Path, protoformer) -> None:
    found = evaluated(protoformer, sintel, "--method", "dis", "--option", "render_pass=final")
    assert list(found["groups"]) == ["final"]
    assert [each["name"] for each in found["samples"]] == NAMES[2:]


def test_the_output_folder_gets_scores_of_every_sample_and_the_worst_pictures(sintel: Path, protoformer) -> None:
    options = ("--method", "dis", "-o", "deep/scores", "--worst", "3")
    found = evaluated(protoformer, sintel, *options)
    folder = Path("deep/scores")
    assert strictly((folder / "scores.json").read_text()) == found
    rows = list(csv.DictReader((folder / "samples.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == NAMES
    assert [float(row["epe"]) for row in rows] == [each["scores"]["epe"] for each in found["samples"]]
    pictures = sorted(path.name for path in folder.glob("*.png"))
    assert len(list(folder.iterdir())) == 5
    ranked = sorted(found["samples"], key=lambda each: -each["scores"]["epe"])
    errors = {each["name"].replace("/", "-"): each["scores"]["epe"] for each in ranked}
    assert [name[:9] for name in pictures] == ["worst-01-", "worst-02-", "worst-03-"]
    assert [errors[name[9:-4]] for name in pictures] == [each["scores"]["epe"] for each in ranked[:3]]
    assert all(read_image(folder / name).shape == (2 * SIZE[0], 2 * SIZE[1], 3) for name in pictures)


def test_what_was_written_is_told(sintel: Path, protoformer) -> None:
    command = ("evaluate", "flow", "--dataset", "sintel", "--root", str(sintel), "--method", "dis", "-o", "scores")
    written = "wrote scores/samples.csv, scores/scores.json"
    assert protoformer(*command, "--worst", "0").out.splitlines()[-1] == written
    told = protoformer(*command, "--worst", "2").out.splitlines()[-1]
    assert told == f"{written}, 2 images of the worst samples, scores/worst-*.png"


def test_no_pictures_are_drawn_where_none_are_wanted(sintel: Path, protoformer) -> None:
    evaluated(protoformer, sintel, "--method", "dis", "-o", "scores", "--worst", "0")
    assert sorted(path.name for path in Path("scores").iterdir()) == ["samples.csv", "scores.json"]


def test_without_an_output_folder_nothing_is_written(sintel: Path, protoformer) -> None:
    evaluated(protoformer, sintel, "--method", "dis")
    assert [path.name for path in Path().iterdir()] == ["Sintel"]


def test_tiles_that_hold_the_whole_image_change_nothing_but_the_name(sintel: Path, protoformer) -> None:
    options = ("--model", "tiny", "--num-updates", "1", "--option", "render_pass=clean")
    whole = evaluated(protoformer, sintel, *options)
    for tile, name in (("paper", "432x960"), ("64x96", "64x96"), ("48X64", "48x64")):
        tiled = evaluated(protoformer, sintel, *options, "--tile", tile)
        assert tiled["method"] == f"tiny (untrained), {name} tiles"
        assert tiled["groups"] == whole["groups"]


def test_smaller_tiles_give_another_flow(sintel: Path, protoformer) -> None:
    options = ("--model", "tiny", "--num-updates", "1", "--option", "render_pass=clean")
    whole, tiled = (evaluated(protoformer, sintel, *options, *tile) for tile in ((), ("--tile", "32x40")))
    assert tiled["method"] == "tiny (untrained), 32x40 tiles"
    assert tiled["groups"]["clean"]["epe"] != whole["groups"]["clean"]["epe"]


def test_a_submission_to_sintel_holds_the_flow_of_the_test_split(sintel: Path, protoformer) -> None:
    options = ("--split", "test", "--model", "tiny", "--num-updates", "1", "--submission", "up/load")
    outcome = protoformer("evaluate", "flow", "--dataset", "sintel", "--root", str(sintel), *options)
    assert outcome.code == 0 and outcome.errors == []
    assert outcome.out == "wrote 2 flows to up/load\n"
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny")
    paths = sorted(path for path in Path("up/load").rglob("*") if path.is_file())
    assert [path.parent.as_posix() for path in paths] == ["up/load/clean/market_1", "up/load/final/market_1"]
    for path in paths:
        first, second = (sintel / "test/clean/market_1" / f"frame_000{frame}.png" for frame in (1, 2))
        np.testing.assert_array_equal(read_flo(path), model.flow(first, second, num_updates=1).numpy())


def test_a_submission_is_of_the_test_split_unless_another_is_named(sintel: Path, protoformer) -> None:
    command = ("evaluate", "flow", "--dataset", "sintel", "--root", str(sintel), "--method", "dis", "--json")
    assert strictly(protoformer(*command, "--submission", "test").out) == {"written": 2, "folder": "test"}
    train = protoformer(*command, "--submission", "train", "--split", "train")
    assert strictly(train.out) == {"written": 4, "folder": "train"}
    assert len(list(Path("test").rglob("*.flo"))) == 2 and len(list(Path("train").rglob("*.flo"))) == 4


def test_a_submission_to_kitti_holds_pngs(kitti: Path, protoformer) -> None:
    options = ("--split", "test", "--method", "dis", "--submission", "upload")
    outcome = protoformer("evaluate", "flow", "--dataset", "kitti-2015", "--root", str(kitti), *options)
    assert outcome.code == 0 and outcome.out == "wrote 1 flow to upload\n"
    assert [path for path in Path("upload").rglob("*") if path.is_file()] == [Path("upload/flow/000000_10.png")]
    stored = read_kitti_flow("upload/flow/000000_10.png")
    folder = kitti / "testing/image_2"
    flow = baseline_flow("dis", image(folder / "000000_10.png"), image(folder / "000000_11.png"))
    assert stored.valid.all()
    assert np.abs(stored.flow - flow.permute(1, 2, 0).numpy()).max() <= 1 / 128


def refused(protoformer, *arguments: str, root: str = "Sintel", dataset: str = "sintel", task: str = "flow") -> str:
    """Run an evaluation that must be refused; return its one sentence."""
    outcome = protoformer("evaluate", task, "--dataset", dataset, "--root", root, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.errors) == 1, outcome.err
    assert outcome.errors[0].startswith("protoformer: ") and outcome.errors[0].endswith(".")
    return outcome.errors[0].removeprefix("protoformer: ")


@pytest.mark.parametrize("tile", ["10x10", "axb", "20x960", "432", "432x", "x", "432x960x3", "-64x96", "6.5x96", ""])
def test_tiles_that_are_no_size_or_too_small(sintel: Path, protoformer, tile: str) -> None:
    sentence = refused(protoformer, "--model", "tiny", "--tile", tile)
    assert sentence.startswith("a tile is paper or HEIGHTxWIDTH with sides over 20 pixels, such as 432x960, not ")
    assert f"not {tile!r}; " in sentence


def test_tiles_in_digits_of_another_kind(sintel: Path, protoformer) -> None:
    assert refused(protoformer, "--model", "tiny", "--tile", "4²x96").startswith("a tile is paper or HEIGHTxWIDTH")


def test_an_unknown_method(sintel: Path, protoformer) -> None:
    sentence = refused(protoformer, "--method", "raft")
    assert sentence == "there is no method 'raft'; choose model, dis, dis-fast, farneback."


@pytest.mark.parametrize(
    "option", [("--model", "tiny"), ("--num-updates", "3"), ("--tile", "paper"), ("--zoom", "1"), ("--device", "cpu")]
)
def test_a_classical_method_takes_no_options_of_a_model(sintel: Path, protoformer, option: tuple[str, str]) -> None:
    sentence = refused(protoformer, "--method", "dis", *option)
    assert sentence == "dis takes no --model, --num-updates, --tile, --zoom or --device; leave them out."


def test_an_unknown_dataset_is_told_the_nearest(sintel: Path, protoformer) -> None:
    sentence = refused(protoformer, "--method", "dis", dataset="sintle")
    assert sentence == "there is no dataset 'sintle'; the nearest known one is 'sintel'."


def test_a_dataset_of_another_task(sintel: Path, protoformer) -> None:
    sentence = refused(protoformer, "--method", "dis", dataset="otb")
    assert sentence.startswith("otb is a dataset of track, not of flow; choose one of flyingchairs, ")


@pytest.mark.parametrize("task", ["explain", "optical-flow"])
def test_a_task_that_is_not_evaluated(sintel: Path, protoformer, task: str) -> None:
    assert refused(protoformer, task=task).startswith(f"{task!r} cannot be evaluated; evaluate one of flow, ")


def test_an_unknown_split(sintel: Path, protoformer) -> None:
    sentence = refused(protoformer, "--method", "dis", "--split", "val")
    assert sentence == "sintel has no split 'val'; choose one of train, test."


@pytest.mark.parametrize("option", ["clean", "=clean", ""])
def test_an_option_that_is_no_pair(sintel: Path, protoformer, option: str) -> None:
    sentence = refused(protoformer, "--method", "dis", "--option", option)
    assert sentence == f"an option of a dataset is key=value, not {option!r}; write it like that."


def test_an_unknown_option_and_an_unknown_value(sintel: Path, protoformer) -> None:
    sentence = refused(protoformer, "--method", "dis", "--option", "passes=clean")
    assert sentence == "Sintel has no option 'passes'; known ones are render_pass."
    assert "'dirty'" in refused(protoformer, "--method", "dis", "--option", "render_pass=dirty")


@pytest.mark.parametrize("option", ["root=elsewhere", "split=test", "name=middlebury"])
def test_what_has_an_argument_of_its_own_is_no_option(sintel: Path, protoformer, option: str) -> None:
    assert "has no option" in refused(protoformer, "--method", "dis", "--option", option)


def test_a_root_that_is_not_there(sintel: Path, protoformer) -> None:
    sentence = refused(protoformer, "--method", "dis", "-o", "scores", root="nowhere")
    assert sentence.startswith(
        "nowhere does not exist; point --root at the folder where the dataset was unpacked, which"
    )
    assert not Path("scores").exists()


def test_a_split_without_truth(sintel: Path, protoformer) -> None:
    sentence = refused(protoformer, "--method", "dis", "--split", "test")
    assert sentence == "this split of sintel has no true flow to compare with; write its flow with --submission."


def test_a_submission_to_a_benchmark_without_server(sintel: Path, protoformer) -> None:
    for name in ("other-data/Venus/frame10.png", "other-data/Venus/frame11.png"):
        paint(Path("Middlebury") / name, 0)
    Path("Middlebury/other-gt-flow/Venus").mkdir(parents=True)
    sentence = refused(
        protoformer,
        "--method",
        "dis",
        "--split",
        "all",
        "--submission",
        "upload",
        dataset="middlebury",
        root="Middlebury",
    )
    assert sentence == "middlebury has no upload format; choose sintel, kitti-2012, kitti-2015."


@pytest.mark.parametrize("option", ["-o", "--submission"])
@pytest.mark.parametrize("folder", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_made(sintel: Path, protoformer, option: str, folder: str) -> None:
    Path("taken").write_text("a file")
    sentence = refused(protoformer, "--method", "dis", option, folder)
    assert sentence.startswith(f"the folder {folder}") and sentence.endswith("); choose another.")
    assert " cannot be made (" in sentence
    assert Path("taken").read_text() == "a file"


def test_a_damaged_image_is_named(sintel: Path, protoformer) -> None:
    path = sintel / "training/final/cave_2/frame_0002.png"
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path} is a png cut short" in refused(protoformer, "--method", "dis", "-o", "scores")
    assert list(Path("scores").iterdir()) == []


def test_damaged_peers_are_named(sintel: Path, protoformer) -> None:
    Path("peers.json").write_text("{")
    assert refused(protoformer, "--method", "dis").endswith("peers.json is not a table of peers; correct or remove it.")


def test_an_unknown_model(sintel: Path, protoformer) -> None:
    assert "'huge'" in refused(protoformer, "--model", "huge")


def test_no_updates(sintel: Path, protoformer) -> None:
    assert refused(protoformer, "--model", "tiny", "--num-updates", "0").startswith("0 updates cannot be run; ")


@pytest.mark.parametrize(
    ("dataset", "folder", "options"),
    [
        ("sintel", "Sintel", ()),
        ("middlebury", "Middlebury", ()),
        ("kitti-2012", "KITTI-2012", ()),
        ("flyingchairs", "FlyingChairs", ("--split", "all")),
    ],
)
def test_dis_scores_on_real_benchmarks_what_is_known_of_it(
    protoformer, dataset: str, folder: str, options: tuple[str, ...]
) -> None:
    """Within a percent of the row "DIS-fine" of peers.json, per image, in every group."""
    benchmarks = Path(__file__).parents[2].parent / "shared" / "data"
    if not (benchmarks / "peers.json").is_file() or not (benchmarks / folder).is_dir():
        pytest.skip("the benchmark samples are not beside this checkout")
    known = json.loads((benchmarks / "peers.json").read_text())["flow"]["DIS-fine"]
    found = evaluated(protoformer, benchmarks / folder, "--method", "dis", *options, dataset=dataset)
    for group, scores in found["groups"].items():
        names = [each["name"] for each in found["samples"] if each["group"] == group]
        peer = [known[f"{folder}/{name}"] for name in names]
        (row,) = (row for row in found["others"][group] if row["label"] == "DIS-fine")
        for field in ("epe", "fl"):
            mean = sum(each[field] for each in peer) / len(peer)
            assert row[f"{field}_per_image"] == pytest.approx(mean)
            assert scores[f"{field}_per_image"] == pytest.approx(mean, rel=0.01)
