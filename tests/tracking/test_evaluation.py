"""Evaluation of trackers on sequences with exact ground truth."""

import io
import json
import math
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.datasets.registry import PUBLISHED_TRACKING, PublishedTracking, open_dataset
from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.synthetic.samples import TrackSequence
from protoformer.tracking.baselines import BaselineTracker, check_tracker
from protoformer.tracking.evaluation import (
    check_track_submission,
    evaluate_track,
    format_boxes,
    run_sequence,
    track_from_first_box,
    track_page,
    track_table,
    tracks_csv,
    write_track_submission,
)
from protoformer.tracking.metrics import track_scores
from protoformer.tracking.result import TrackedBox

Clip = Callable[..., list[np.ndarray]]
FRAMES = 6


class Gliding:
    """A tracker that moves its box by the same step every frame, whatever it sees."""

    def __init__(self, step: float, frame: np.ndarray, boxes: torch.Tensor) -> None:
        self.step, self.box = step, tuple(boxes[0])

    def update(self, frame: np.ndarray) -> tuple[TrackedBox, ...]:
        x, y, width, height = self.box
        self.box = (x + self.step, y, width, height)
        return (TrackedBox(self.box, 1.0, False),)


PERFECT, STILL = partial(Gliding, 3.0), partial(Gliding, 0.0)


def write_clip(folder: Path, frames: list[np.ndarray]) -> None:
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames, 1):
        write_image(folder / f"{number:04d}.png", frame)


@pytest.fixture
def otb(tmp_path: Path, moving_pattern: Clip) -> Path:
    """OTB with two clips: in one the pattern goes right by 3 px a frame, in the other it stays."""
    for name, right in (("Moving", 3), ("Still", 0)):
        write_clip(tmp_path / "OTB" / name / "img", moving_pattern(FRAMES, right))
        lines = "".join(f"{21 + right * n},31,24,24\n" for n in range(FRAMES))  # counted from 1
        (tmp_path / "OTB" / name / "groundtruth_rect.txt").write_text(lines)
    return tmp_path / "OTB"


@pytest.fixture
def trackingnet(tmp_path: Path, moving_pattern: Clip) -> Path:
    """TrackingNet with two test videos, of which the first box is known."""
    for name in ("a-1", "b-2"):
        write_clip(tmp_path / "TrackingNet/TEST/frames" / name, moving_pattern(FRAMES))
    (tmp_path / "TrackingNet/TEST/anno").mkdir()
    for name in ("a-1", "b-2"):
        (tmp_path / f"TrackingNet/TEST/anno/{name}.txt").write_text("20,30,24,24\n")
    return tmp_path / "TrackingNet"


def test_every_method_is_scored_on_every_sequence(otb: Path) -> None:
    calls: list[tuple[int, int]] = []
    output = evaluate_track(
        open_dataset("otb", otb),
        {"right": PERFECT, "still": STILL},
        name="otb",
        root=otb,
        progress=lambda *each: calls.append(each),
    )
    assert [(each.name, each.method) for each in output.sequences] == [
        *(("Moving", "right"), ("Moving", "still")),
        *(("Still", "right"), ("Still", "still")),
    ]
    truth = torch.tensor([[20.0 + 3 * n, 30, 24, 24] for n in range(FRAMES)])
    stays, seen = truth[:1].expand(FRAMES, 4), torch.ones(FRAMES, dtype=torch.bool)
    off = track_scores(stays, truth, seen)
    assert output.sequences[0].scores.success == pytest.approx(20 / 21)
    assert output.sequences[1].scores == off and off.success < 20 / 21
    assert output.methods["still"].scores.success == pytest.approx((off.success + 20 / 21) / 2)
    assert output.methods["right"].scores.frames == 2 * FRAMES and output.methods["right"].frames_a_second > 0
    assert (output.others, output.without_truth) == ((), 0)
    assert calls == [(n + 1, 4 * FRAMES) for n in range(4 * FRAMES)]


def test_the_tracks_are_handed_on(otb: Path) -> None:
    kept: dict[tuple[str, str], torch.Tensor] = {}
    evaluate_track(
        open_dataset("otb", otb),
        {"right": PERFECT},
        name="otb",
        root=otb,
        keep=lambda sequence, label, boxes: kept.update({(sequence.name, label): boxes}),
    )
    assert kept["Still", "right"].tolist() == [[20 + 3 * n, 30, 24, 24] for n in range(FRAMES)]


def test_a_real_tracker_follows_real_pixels(otb: Path) -> None:
    output = evaluate_track(
        open_dataset("otb", otb), {"filter": partial(BaselineTracker, "correlation")}, name="otb", root=otb
    )
    assert output.methods["filter"].scores.success > 0.8


def test_published_rows_are_compared_on_their_own_sequences(otb: Path) -> None:
    (otb.parent / "peers.json").write_text(
        json.dumps({"tracking": {"Peer": {"Moving": {"success": 0.5, "precision": 0.75}, "Other": {}}}})
    )
    with pytest.raises(InputError, match=r"peers\.json is not a table of peers"):
        evaluate_track(open_dataset("otb", otb), {"right": PERFECT}, name="otb", root=otb)
    peers = {"Peer": {"Moving": {"success": 0.5, "precision": 0.75}, "Other": {"success": 0, "precision": 0}}}
    (otb.parent / "peers.json").write_text(json.dumps({"tracking": peers}))
    output = evaluate_track(open_dataset("otb", otb), {"right": PERFECT}, name="otb", root=otb)
    own, peer = output.others
    assert (own.label, own.measured_on, own.success) == ("right", "1 of these", pytest.approx(20 / 21))
    assert peer == PublishedTracking("Peer", "1 of these", success=0.5, precision=0.75)


def test_the_paper_s_rows_are_those_of_the_paper(otb: Path) -> None:
    assert [PUBLISHED_TRACKING[name][0].success for name in ("lasot", "trackingnet")] == [0.648, 0.8]
    assert [PUBLISHED_TRACKING[name][0].precision for name in ("lasot", "trackingnet")] == [0.674, 0.772]
    output = evaluate_track(open_dataset("otb", otb), {"right": PERFECT}, name="lasot", root=otb)
    assert output.others == PUBLISHED_TRACKING["lasot"]
    output = evaluate_track(open_dataset("otb", otb), {"right": PERFECT}, name="lasot", root=otb, compare=False)
    assert output.others == ()


def test_frames_without_the_object_are_left_out(otb: Path) -> None:
    path = otb / "Moving/groundtruth_rect.txt"
    lines = path.read_text().splitlines()
    lines[4] = "0,0,0,0"
    path.write_text("\n".join(lines))
    output = evaluate_track(open_dataset("otb", otb), {"right": PERFECT}, name="otb", root=otb)
    assert output.sequences[0].scores.frames == FRAMES - 1


def test_a_sequence_that_fails_is_named(otb: Path) -> None:
    broken = otb / "Moving/img/0003.png"
    broken.write_bytes(broken.read_bytes()[:100])
    calls: list[tuple[int, int]] = []
    output = evaluate_track(
        open_dataset("otb", otb),
        {"right": PERFECT},
        name="otb",
        root=otb,
        progress=lambda *each: calls.append(each),
    )
    (passed,) = output.unusable
    assert passed.name == "Moving" and "0003.png" in passed.problem
    assert [each.name for each in output.sequences] == ["Still"] and output.methods["right"].scores.sequences == 1
    assert calls[-1] == (2 * FRAMES, 2 * FRAMES) and calls == sorted(calls)
    assert tracks_csv(output).splitlines()[-1].startswith("Moving,,,,,,,,") and "0003.png" in tracks_csv(output)
    assert "0003.png" in track_page(output).html()
    broken = otb / "Still/img/0002.png"
    broken.write_bytes(b"")
    with pytest.raises(InputError, match=r"no sequence of otb can be used; of the first, Moving cannot .*0003\.png"):
        evaluate_track(open_dataset("otb", otb), {"right": PERFECT}, name="otb", root=otb)


def test_what_one_method_cannot_follow_counts_for_none(otb: Path) -> None:
    path = otb / "Moving/groundtruth_rect.txt"
    path.write_text(path.read_text().replace("21,31,24,24", "21,31,3,3"))
    methods = {"right": PERFECT, "mil": partial(BaselineTracker, "mil")}
    output = evaluate_track(open_dataset("otb", otb), methods, name="otb", root=otb)
    assert [each.name for each in output.sequences] == ["Still", "Still"]
    assert [each.name for each in output.unusable] == ["Moving"] and "5 pixels" in output.unusable[0].problem


def test_a_track_begins_where_the_object_is_seen() -> None:
    boxes = torch.tensor([[math.nan] * 4, [1.0, 2, 3, 4], [5.0, 6, 7, 8]])
    frames = tuple(Path(f"{number}.png") for number in range(3))
    clip = TrackSequence(name="a", frames=frames, boxes=boxes, present=torch.tensor([False, False, True]))
    assert track_from_first_box(clip).frames == frames[2:]


def test_a_box_that_is_not_finite_is_named(otb: Path) -> None:
    with pytest.raises(InputError, match=r"the track of Moving cannot be scored .*not finite"):
        evaluate_track(open_dataset("otb", otb), {"mad": partial(Gliding, math.nan)}, name="otb", root=otb)


def test_a_sequence_without_a_first_box_is_refused(otb: Path) -> None:
    path = otb / "Moving/groundtruth_rect.txt"
    path.write_text(path.read_text().replace("21,31,24,24", "nan,nan,nan,nan"))
    with pytest.raises(InputError, match="the first box of Moving is not annotated"):
        run_sequence(open_dataset("otb", otb)[0], PERFECT)


def test_what_only_a_server_knows_cannot_be_scored(trackingnet: Path) -> None:
    data = open_dataset("trackingnet", trackingnet)
    with pytest.raises(InputError, match="no true boxes to compare with; write its boxes with --submission"):
        evaluate_track(data, {"right": PERFECT}, name="trackingnet", root=trackingnet)


def test_a_submission_is_an_archive_of_text_files(trackingnet: Path, tmp_path: Path) -> None:
    data = open_dataset("trackingnet", trackingnet)
    for name in ("once.zip", "again.zip"):
        assert write_track_submission(data, PERFECT, tmp_path / name) == 2
    assert (tmp_path / "once.zip").read_bytes() == (tmp_path / "again.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO((tmp_path / "once.zip").read_bytes())) as archive:
        assert archive.namelist() == ["a-1.txt", "b-2.txt"]
        text = archive.read("b-2.txt").decode()
    assert text == format_boxes(torch.tensor([[20.0 + 3 * n, 30, 24, 24] for n in range(FRAMES)]))
    assert text.splitlines()[1] == "23.00,30.00,24.00,24.00"


def test_not_every_benchmark_takes_a_submission() -> None:
    check_track_submission("trackingnet", Path("a.zip"))
    with pytest.raises(InputError, match="otb has no upload format; choose trackingnet"):
        check_track_submission("otb", Path("a.zip"))
    with pytest.raises(InputError, match=r"does not end in \.zip"):
        check_track_submission("trackingnet", Path("a.txt"))


def test_the_table_the_page_and_the_csv_say_the_same(otb: Path) -> None:
    output = evaluate_track(open_dataset("otb", otb), {"right": PERFECT, "still": STILL}, name="lasot", root=otb)
    table = track_table(output)
    assert [column.header for column in table.columns][:4] == ["method", "measured on", "success", "precision"]
    shown = [str(cell) for cell in table.columns[2].cells]
    assert shown[2] == "64.8" and len(shown) == 3
    html = track_page(output).html()
    assert html.count("<svg") == 2 and html.count('class="plot-curve"') == 4
    for cell in (*shown, "ProtoFormer, published (with UTT)"):
        assert cell in html
    rows = tracks_csv(output).splitlines()
    assert rows[0].startswith("name,method,success,precision,normalized_precision,normalized_precision_auc,frames,")
    assert [row.split(",")[:2] for row in rows[1:]] == [[each.name, each.method] for each in output.sequences]


@pytest.fixture(scope="session")
def real_otb() -> Path:
    """The sequences of OTB beside the checkout."""
    folder = Path(__file__).parents[2].parent / "shared" / "data" / "OTB"
    if not folder.is_dir():
        pytest.skip("the benchmark samples are not beside this checkout")
    return folder


def only(real: Path, root: Path, *names: str) -> Path:
    """A root that holds some of the sequences."""
    root.mkdir()
    for name in names:
        (root / name).symlink_to(real / name)
    return root


def test_the_filter_follows_a_walker_of_otb(real_otb: Path, tmp_path: Path) -> None:
    root = only(real_otb, tmp_path / "OTB", "Crossing")
    output = evaluate_track(
        open_dataset("otb", root), {"filter": partial(BaselineTracker, "correlation")}, name="otb", root=root
    )
    scores = output.methods["filter"].scores
    assert scores.precision == 1.0 and scores.success > 0.7


def test_csrt_reproduces_its_reference_scores(real_otb: Path, tmp_path: Path) -> None:
    """Within a few percent of the row of peers.json, which others measured."""
    try:
        check_tracker("csrt")
    except InputError as error:
        pytest.skip(str(error))
    root = only(real_otb, tmp_path / "OTB", "Crossing", "Football1")
    output = evaluate_track(
        open_dataset("otb", root), {"csrt": partial(BaselineTracker, "csrt")}, name="otb", root=real_otb
    )
    known = json.loads((real_otb.parent / "peers.json").read_text())["tracking"]["CSRT"]
    for each in output.sequences:
        assert each.scores.success == pytest.approx(known[each.name]["success"], abs=0.05)
