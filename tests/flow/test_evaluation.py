"""Methods are scored by the benchmarks' rules and compared with published results."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.datasets.base import Dataset
from protoformer.datasets.registry import PublishedFlow, peer_results
from protoformer.errors import InputError
from protoformer.flow.evaluation import (
    FlowEvaluation,
    FlowMethod,
    evaluate_flow,
    predictor_method,
    sample_group,
    scores_csv,
    write_submission,
)
from protoformer.flow.metrics import FlowScores, flow_scores
from protoformer.geometry.warps import resize, resize_flow
from protoformer.io.formats import read_flo, read_kitti_flow
from protoformer.synthetic.samples import FlowPair, FlowSample

SIZE = (8, 10)


class InMemory(Dataset[FlowPair]):
    """Samples that were made before."""

    name = "in memory"

    def __init__(self, samples: Sequence[FlowPair]) -> None:
        super().__init__("nowhere", "all")
        self.samples = samples
        self.names = tuple(sample.names[0] for sample in samples)

    def _read(self, index: int) -> FlowPair:
        return self.samples[index]


def images(seed: int) -> dict[str, torch.Tensor]:
    first, second = torch.rand(2, 1, 3, *SIZE, generator=torch.Generator().manual_seed(seed))
    return {"first": first, "second": second}


def sample(name: str, seed: int = 0, valid: torch.Tensor | None = None) -> FlowSample:
    """Two random images and a motion of (seed + 1, 0) pixels."""
    flow = torch.zeros(1, 2, *SIZE)
    flow[:, 0] = seed + 1
    known = torch.ones(1, 1, *SIZE, dtype=torch.bool) if valid is None else valid
    return FlowSample(**images(seed), names=(name,), flow=flow, valid=known)


def truth_of(data: InMemory, *offsets: tuple[float, float]) -> FlowMethod:
    """A method that knows each sample's truth by its images, and adds that sample's offset to it."""

    def method(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        for place, each in enumerate(data.samples):
            if torch.equal(first, each.first[0]) and torch.equal(second, each.second[0]):
                assert isinstance(each, FlowSample)
                return each.flow[0] + torch.tensor(offsets[place % len(offsets)]).view(2, 1, 1)
        raise AssertionError("the images of no sample")

    return method


def evaluated(
    data: InMemory, *offsets: tuple[float, float], dataset: str = "middlebury", root: Path = Path("nowhere")
) -> FlowEvaluation:
    return evaluate_flow(data, truth_of(data, *offsets), names=(dataset, "ours"), root=root)


def test_the_truth_itself_has_no_error() -> None:
    result = evaluated(InMemory([sample("a"), sample("b", 1)]), (0, 0))
    assert (result.dataset, result.method) == ("middlebury", "ours")
    assert list(result.groups) == ["all"]
    scores = result.groups["all"]
    assert (scores.epe, scores.epe_per_image, scores.fl, scores.fl_per_image) == (0, 0, 0, 0)
    assert (scores.px1, scores.px3, scores.px5, scores.s0_10) == (0, 0, 0, 0)
    assert math.isnan(scores.s10_40) and math.isnan(scores.s40_plus)
    assert (scores.samples, scores.pixels) == (2, 160)


def test_three_to_the_right_and_four_down_is_an_error_of_five() -> None:
    result = evaluated(InMemory([sample("a"), sample("b", 1)]), (3, 4))
    for scores in (result.groups["all"], *(each.scores for each in result.samples)):
        assert (scores.epe, scores.epe_per_image, scores.s0_10) == (5, 5, 5)
        assert (scores.fl, scores.fl_per_image, scores.px1, scores.px3, scores.px5) == (100, 100, 100, 100, 0)


def test_a_mean_over_pixels_weighs_images_by_what_is_known_of_them() -> None:
    """One sample known at all 80 pixels and wrong by 5, one known at 20 and right."""
    quarter = torch.zeros(1, 1, *SIZE, dtype=torch.bool)
    quarter[..., :2, :] = True
    result = evaluated(InMemory([sample("a"), sample("b", 1, quarter)]), (3, 4), (0, 0))
    scores = result.groups["all"]
    assert (scores.epe, scores.fl) == (4, 80)
    assert (scores.epe_per_image, scores.fl_per_image) == (2.5, 50)
    assert (scores.samples, scores.pixels) == (2, 100)
    assert [(each.name, each.group, each.scores.epe) for each in result.samples] == [("a", "all", 5), ("b", "all", 0)]


def test_occluded_pixels_are_counted_apart() -> None:
    whole = sample("a")
    hidden = torch.zeros(1, 1, *SIZE, dtype=torch.bool)
    hidden[..., :4, :] = True
    flow = whole.flow[0].clone()
    flow[1, :4] += 7
    one = InMemory([FlowSample(**images(0), names=("a",), flow=whole.flow, valid=whole.valid, occlusion=hidden)])
    result = evaluate_flow(one, lambda first, second: flow, names=("middlebury", "ours"), root=Path("nowhere"))
    for scores in (result.groups["all"], result.samples[0].scores):
        assert (scores.matched, scores.unmatched, scores.epe) == (0, 7, 3.5)


def test_the_passes_of_sintel_are_two_benchmarks() -> None:
    names = ("clean/alley_1/frame_0001", "final/alley_1/frame_0001", "clean/cave_2/frame_0001")
    data = InMemory([sample(name, seed) for seed, name in enumerate(names)])
    result = evaluated(data, (1, 0), (0, 2), (3, 0), dataset="sintel")
    assert {group: scores.epe for group, scores in result.groups.items()} == {"clean": 2, "final": 2}
    assert {group: scores.samples for group, scores in result.groups.items()} == {"clean": 2, "final": 1}
    assert [(each.name, each.group) for each in result.samples] == list(
        zip(names, ("clean", "final", "clean"), strict=True)
    )


@pytest.mark.parametrize("dataset", ["flyingthings3d", "kitti-2015", "own"])
def test_any_other_dataset_is_one_group_whatever_its_names(dataset: str) -> None:
    assert sample_group(dataset, "clean/A/0000/left/0006-0007") == "all"
    assert sample_group("sintel", "final/alley_1/frame_0001") == "final"


def test_whoever_asks_is_handed_every_sample_and_told_how_far_it_is() -> None:
    data = InMemory([sample("a"), sample("b", 1), sample("c", 2)])
    kept: list[tuple[FlowSample, torch.Tensor, FlowScores]] = []
    calls: list[tuple[int, int]] = []
    result = evaluate_flow(
        data,
        truth_of(data, (0, 1), (0, 2), (0, 3)),
        names=("middlebury", "ours"),
        root=Path("nowhere"),
        keep=lambda *one: kept.append(one),
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert [one.names for one, _, _ in kept] == [("a",), ("b",), ("c",)]
    assert [scores.epe for _, _, scores in kept] == [1, 2, 3] == [each.scores.epe for each in result.samples]
    for one, flow, scores in kept:
        assert flow.shape == (2, *SIZE)
        assert scores.epe == flow_scores(flow[None], one.flow, one.valid).epe


@pytest.mark.parametrize(
    ("dataset", "advice"),
    [("sintel", "write its flow with --submission"), ("hd1k", "choose a split that has")],
)
def test_a_split_without_truth_can_at_most_be_written_out(dataset: str, advice: str) -> None:
    data = InMemory([FlowPair(**images(0), names=("a",))])
    with pytest.raises(InputError, match=rf"^this split of {dataset} has no true flow to compare with; {advice}\.$"):
        evaluate_flow(data, lambda first, second: first[:2], names=(dataset, "ours"), root=Path("nowhere"))


def test_pairs_without_truth_among_others_are_passed_over_and_counted() -> None:
    data = InMemory([FlowPair(**images(7), names=("a",)), sample("b", 1), FlowPair(**images(8), names=("c",))])
    calls: list[int] = []
    result = evaluate_flow(
        data,
        lambda first, second: torch.tensor((5.0, 4.0)).view(2, 1, 1).expand(2, *SIZE),
        names=("own", "ours"),
        root=Path("nowhere"),
        progress=lambda done, total: calls.append(done),
    )
    assert (result.without_truth, calls) == (2, [1, 2, 3])
    assert [(each.name, each.scores.epe) for each in result.samples] == [("b", 5)]
    assert evaluated(InMemory([sample("b")]), (0, 0)).without_truth == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_estimate_that_failed_is_not_scored(value: float) -> None:
    data = InMemory([sample("b")])
    with pytest.raises(InputError, match=r"^the flow of b cannot be scored \(.*not finite.*\); try another method\.$"):
        evaluated(data, (value, 0))


PEERS = {
    "A": {
        "Set/clean/x": {"epe": 1.0, "fl": 10.0},
        "Set/clean/y": {"epe": 2.5, "fl": 20.0},
        "Set/clean/not ours": {"epe": 100.0, "fl": 100.0},
        "Other/clean/x": {"epe": 100.0, "fl": 100.0},
        "Set/final/x": {"epe": 4.0, "fl": 40.0},
    },
    "B": {"Set/clean/y": {"epe": 0.5, "fl": 0.0}},
    "C": {"Other/clean/x": {"epe": 0.0, "fl": 0.0}},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "Set"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("place", [".", ".."])
def test_peers_stand_with_their_mean_over_the_samples_that_are_ours_too(root: Path, place: str) -> None:
    (root / place / "peers.json").write_text(json.dumps({"flow": PEERS}))
    names = ("clean/x", "clean/y", "clean/z", "final/x")
    data = InMemory([sample(name, seed) for seed, name in enumerate(names)])
    others = evaluated(data, (3, 4), (0, 1), dataset="sintel", root=root).others
    assert list(others) == ["clean", "final"]
    assert others["clean"][:3] == (
        PublishedFlow("ours", "2 of these", epe_per_image=3.0, fl_per_image=50.0),
        PublishedFlow("A", "2 of these", epe_per_image=1.75, fl_per_image=15.0),
        PublishedFlow("B", "1 of these", epe_per_image=0.5, fl_per_image=0.0),
    )
    assert others["final"][0] == PublishedFlow("A", "1 of these", epe_per_image=4.0, fl_per_image=40.0)
    assert {row.measured_on for row in (*others["clean"][3:], *others["final"][1:])} == {"whole set"}


def test_peers_in_the_folder_are_preferred_to_those_beside_it(root: Path) -> None:
    (root / "peers.json").write_text('{"flow": {"in": {}}}')
    (root.parent / "peers.json").write_text('{"flow": {"beside": {}}}')
    assert peer_results(root) == {"in": {}}


def test_the_folder_may_be_named_from_inside(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.parent / "peers.json").write_text(json.dumps({"flow": PEERS}))
    monkeypatch.chdir(root)
    rows = evaluated(InMemory([sample("clean/y")]), (0, 0), root=Path()).others
    assert [(row.label, row.epe_per_image) for row in rows["all"]] == [("A", 2.5), ("B", 0.5)]


def test_others_stand_aside_where_they_were_measured_on_another_truth(root: Path) -> None:
    (root / "peers.json").write_text(json.dumps({"flow": PEERS}))
    data = InMemory([sample("clean/x")])
    names = ("sintel", "ours")
    assert evaluate_flow(data, truth_of(data, (0, 0)), names=names, root=root).others["clean"]
    apart = evaluate_flow(data, truth_of(data, (0, 0)), names=names, root=root, compare=False)
    assert apart.others == {"clean": ()}


def test_without_peers_there_are_none(root: Path) -> None:
    assert peer_results(root) == {}
    (root / "peers.json").write_text('{"tracking": {}}')
    assert peer_results(root) == {}
    assert evaluated(InMemory([sample("x")]), (0, 0), root=root).others == {"all": ()}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"flow": 3}', "\x00", '["flow"]'])
def test_a_damaged_table_of_peers_is_refused_by_its_name(root: Path, text: str) -> None:
    (root / "peers.json").write_text(text)
    with pytest.raises(InputError, match=r"Set/peers\.json is not a table of peers; correct or remove it\.$"):
        evaluated(InMemory([sample("x")]), (0, 0), root=root)


def test_peers_in_no_known_encoding_are_refused(root: Path) -> None:
    (root / "peers.json").write_bytes(b'{"flow": "\xff\xfe"}')
    with pytest.raises(InputError, match="is not a table of peers"):
        peer_results(root)


@pytest.mark.parametrize(
    "flow",
    [[], 3, {"A": 3}, {"A": {"Set/x": 3}}, {"A": {"Set/x": {"epe": 1}}}, {"A": {"Set/x": {"epe": "low", "fl": 2}}}],
)
def test_a_table_of_peers_of_another_shape_is_refused(root: Path, flow: object) -> None:
    (root / "peers.json").write_text(json.dumps({"flow": flow}))
    with pytest.raises(InputError, match="is not a table of peers"):
        evaluated(InMemory([sample("x")]), (0, 0), root=root)


def test_published_rows_stand_with_their_own_dataset_and_pass_only(root: Path) -> None:
    both = InMemory([sample("clean/x"), sample("final/x", 1)])
    others = evaluated(both, (0, 0), dataset="sintel", root=root).others
    assert [row.epe for row in others["clean"]] == [1.04, 0.48, 1.01, 1.43]
    assert [row.epe for row in others["final"]] == [2.43, 0.69, 2.40, 2.71]
    final = evaluated(InMemory([sample("final/x")]), (0, 0), dataset="sintel", root=root).others
    assert final == {"final": others["final"]}
    assert final["final"][0] == PublishedFlow("ProtoFormer, published (C+T)", "whole set", epe=2.43)


def test_kitti_publishes_outliers_over_all_pixels_and_errors_per_image(root: Path) -> None:
    others = evaluated(InMemory([sample("000000")]), (0, 0), dataset="kitti-2015", root=root).others
    assert [(row.label, row.epe_per_image, row.fl) for row in others["all"]] == [
        ("ProtoFormer, published (C+T)", 4.08, 14.6),
        ("ProtoFormer, published (mix, trained on these)", 0.50, 1.09),
        ("FlowFormer, published (C+T)", 4.09, 14.7),
        ("RAFT, published (C+T)", 5.04, 17.4),
    ]
    assert {(row.epe, row.fl_per_image) for row in others["all"]} == {(None, None)}


@pytest.mark.parametrize("dataset", ["kitti-2012", "middlebury", "flyingchairs"])
def test_nothing_was_published_of_other_datasets(root: Path, dataset: str) -> None:
    assert evaluated(InMemory([sample("x")]), (0, 0), dataset=dataset, root=root).others == {"all": ()}


def test_the_csv_holds_every_score_of_every_sample() -> None:
    result = evaluated(InMemory([sample("clean/a, b"), sample('clean/"c"', 1)]), (3, 4), (0.1, 0), dataset="sintel")
    text = scores_csv(result)
    assert text.count("\n") == 3 and "\r" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["name", "group", *FlowScores.__dataclass_fields__]
    assert [(row.pop("name"), row.pop("group")) for row in rows] == [("clean/a, b", "clean"), ('clean/"c"', "clean")]
    for row, each in zip(rows, result.samples, strict=True):
        for field, value in row.items():
            assert float(value) == pytest.approx(getattr(each.scores, field), rel=0, abs=0, nan_ok=True)


class Mirror:
    """In place of a model: says of every pixel the red of the first image and the green of the second."""

    def __init__(self) -> None:
        self.network, self.device = SimpleNamespace(config=pf.PRESETS["tiny"]), torch.device("cpu")
        self.asked: list[tuple[tuple[int, ...], int | None]] = []

    def flow(
        self, first: torch.Tensor, second: torch.Tensor, num_updates: int | None = None, zoom: float | None = None
    ) -> SimpleNamespace:
        self.asked.append((tuple(first.shape), num_updates))
        return SimpleNamespace(flow=torch.stack((first[0], second[1])))


def test_tiles_show_the_model_the_same_window_of_both_images() -> None:
    first, second = torch.rand(2, 3, 50, 70, generator=torch.Generator().manual_seed(0))
    mirror = Mirror()
    flow = predictor_method(mirror, num_updates=3, tile=(32, 48))(first, second)  # type: ignore[arg-type]
    assert torch.equal(flow, torch.stack((first[0], second[1])))
    assert mirror.asked == [((3, 32, 48), 3)] * 6


def test_tiles_are_of_images_as_the_network_sees_them(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    first, second = scene.first[0], scene.second[0]
    enlarged = (resize(scene.first, (74, 122))[0], resize(scene.second, (74, 122))[0])
    flow = predictor_method(tiny, num_updates=1, tile=(48, 64), zoom=2)(first, second)
    expected = predictor_method(tiny, num_updates=1, tile=(48, 64))(*enlarged)
    assert torch.equal(flow, resize_flow(expected[None], (37, 61))[0])


def test_without_tiles_the_model_sees_whole_images() -> None:
    first, second = torch.rand(2, 3, 50, 70, generator=torch.Generator().manual_seed(0))
    mirror = Mirror()
    assert torch.equal(
        predictor_method(mirror, num_updates=2)(first, second),  # type: ignore[arg-type]
        torch.stack((first[0], second[1])),
    )
    assert mirror.asked == [((3, 50, 70), 2)]


def test_an_image_that_fits_in_one_tile_has_the_flow_of_the_whole(tiny: pf.FlowPredictor, scene: FlowSample) -> None:
    first, second = scene.first[0], scene.second[0]
    whole = predictor_method(tiny, num_updates=2)(first, second)
    assert torch.equal(whole, tiny.flow(first, second, num_updates=2).flow)
    assert torch.equal(predictor_method(tiny, num_updates=2, tile=(37, 61))(first, second), whole)
    assert torch.equal(predictor_method(tiny, num_updates=2, tile=(432, 960))(first, second), whole)


def test_tiles_of_a_model_give_its_own_flow_where_only_one_window_looks(
    tiny: pf.FlowPredictor, scene: FlowSample
) -> None:
    first, second = scene.first[0], scene.second[0]
    flow = predictor_method(tiny, num_updates=2, tile=(37, 45))(first, second)
    left = tiny.flow(first[..., :45], second[..., :45], num_updates=2).flow
    right = tiny.flow(first[..., 16:], second[..., 16:], num_updates=2).flow
    assert torch.equal(flow[..., :16], left[..., :16])
    assert torch.equal(flow[..., 45:], right[..., 29:])


Submit = Callable[[InMemory, str], tuple[FlowMethod, int, list[tuple[int, int]]]]


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    """Write a submission to "upload" with a method whose flow is told from the first image."""

    def submitted(data: InMemory, benchmark: str) -> tuple[FlowMethod, int, list[tuple[int, int]]]:
        def method(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return 300 * (first[:2] - second[1:])

        calls: list[tuple[int, int]] = []
        count = write_submission(
            data, method, benchmark, tmp_path / "upload", lambda done, total: calls.append((done, total))
        )
        return method, count, calls

    return submitted


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_sintel_is_uploaded_as_flo_files_by_pass_and_scene(submit: Submit, tmp_path: Path) -> None:
    names = ("clean/market_1/frame_0001", "clean/market_1/frame_0002", "final/cave_3/frame_0001")
    data = InMemory([FlowPair(**images(seed), names=(name,)) for seed, name in enumerate(names)])
    method, count, calls = submit(data, "sintel")
    assert count == 3 and calls == [(1, 3), (2, 3), (3, 3)]
    paths = sorted((tmp_path / "upload").rglob("*.*"))
    places = [path.relative_to(tmp_path / "upload").parent.as_posix() for path in paths]
    assert places == ["clean/market_1", "clean/market_1", "final/cave_3"]
    for path, pair in zip(paths, data, strict=True):
        flow = method(pair.first[0], pair.second[0])
        np.testing.assert_array_equal(read_flo(path), flow.permute(1, 2, 0).numpy())


def test_the_bundler_of_sintel_wants_frame0001_without_a_stroke(submit: Submit, tmp_path: Path) -> None:
    submit(InMemory([FlowPair(**images(0), names=("clean/ambush_1/frame_0001",))]), "sintel")
    assert files_of(tmp_path / "upload") == ["clean/ambush_1/frame0001.flo"]


@pytest.mark.parametrize("benchmark", ["kitti-2012", "kitti-2015"])
def test_kitti_is_uploaded_as_pngs_of_64ths_of_a_pixel(submit: Submit, tmp_path: Path, benchmark: str) -> None:
    data = InMemory([FlowPair(**images(seed), names=(f"{seed:06d}",)) for seed in range(2)])
    method, count, _ = submit(data, benchmark)
    assert count == 2
    paths = sorted((tmp_path / "upload").rglob("*.png"))
    assert [path.name for path in paths] == ["000000_10.png", "000001_10.png"]
    for path, pair in zip(paths, data, strict=True):
        stored = read_kitti_flow(path)
        expected = method(pair.first[0], pair.second[0]).permute(1, 2, 0).numpy()
        assert stored.valid.all()
        np.testing.assert_array_equal(stored.flow, np.rint(expected * 64) / 64)


def test_kitti_2015_wants_its_pngs_in_a_folder_named_flow(submit: Submit, tmp_path: Path) -> None:
    submit(InMemory([FlowPair(**images(0), names=("000000",))]), "kitti-2015")
    assert files_of(tmp_path / "upload") == ["flow/000000_10.png"]


def test_kitti_2012_wants_its_pngs_in_the_root(submit: Submit, tmp_path: Path) -> None:
    submit(InMemory([FlowPair(**images(0), names=("000000",))]), "kitti-2012")
    assert files_of(tmp_path / "upload") == ["000000_10.png"]


def test_a_dataset_without_server_has_no_upload_format(submit: Submit, tmp_path: Path) -> None:
    sentence = r"^middlebury has no upload format; choose sintel, kitti-2012, kitti-2015\.$"
    with pytest.raises(InputError, match=sentence):
        submit(InMemory([FlowPair(**images(0), names=("a",))]), "middlebury")
    assert not (tmp_path / "upload").exists()
