"""Your own data, listed in a csv or json file."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from protoformer.datasets.registry import open_dataset
from protoformer.errors import InputError
from protoformer.io.formats import write_dpt, write_flo, write_kitti_flow, write_pfm, write_pfm_flow
from protoformer.io.png import encode_png
from protoformer.synthetic.samples import FlowPair, FlowSample

Paint = Callable[..., Path]
Motion = Callable[[int], np.ndarray]


@pytest.fixture
def folder(tmp_path: Path, paint: Paint, motion: Motion) -> Path:
    """Two images, one flow in three formats, and a mask that is white at one pixel."""
    paint(tmp_path / "a.png", 10)
    paint(tmp_path / "deep/b.jpg", 20)
    write_flo(tmp_path / "m.flo", motion(1))
    write_pfm_flow(tmp_path / "m.pfm", motion(2))
    write_kitti_flow(tmp_path / "m.png", motion(3))
    white = np.zeros((4, 6), dtype=np.uint8)
    white[2, 1] = 255
    paint(tmp_path / "mask.png", white)
    return tmp_path


def test_flows_are_read_by_their_suffix(folder: Path, motion: Motion) -> None:
    (folder / "list.csv").write_text(
        "first,second,flow\na.png,deep/b.jpg,m.flo\na.png,a.png,m.pfm\na.png,a.png,m.png\n"
    )
    data = open_dataset("own", folder / "list.csv")
    assert data.names == ("a.png", "a.png", "a.png")
    for place, sample in enumerate(data):
        np.testing.assert_array_equal(sample.flow[0].numpy(), motion(place + 1).transpose(2, 0, 1))
        assert sample.valid.all() and sample.occlusion is None
    assert round(float(data[0].second.mean()) * 255) == 20


def test_json_says_the_same_as_csv(folder: Path) -> None:
    rows = [{"first": "a.png", "second": "deep/b.jpg", "flow": "m.flo", "valid": "mask.png", "occlusion": None}]
    (folder / "list.json").write_text(json.dumps(rows))
    (folder / "list.csv").write_text(
        "\ufefffirst, second, flow, valid, occlusion\na.png, deep/b.jpg, m.flo, mask.png,\n", encoding="utf-8"
    )
    for name in ("list.json", "list.csv"):
        sample = open_dataset("own", folder / name)[0]
        assert sample.valid.nonzero().tolist() == [[0, 0, 2, 1]]
        assert sample.flow.nonzero().tolist() == [[0, 0, 2, 1], [0, 1, 2, 1]]
        assert sample.occlusion is None


def test_a_row_without_flow_is_a_pair_without_truth(folder: Path) -> None:
    write_flo(folder / "still.flo", np.zeros((4, 6, 2)))
    (folder / "manifest.csv").write_text("first,second,flow,occlusion\na.png,a.png,,\na.png,a.png,still.flo,mask.png\n")
    pair, sample = open_dataset("own", folder)
    assert type(pair) is FlowPair
    assert type(sample) is FlowSample and sample.occlusion.nonzero().tolist() == [[0, 0, 2, 1]]


def test_paths_may_be_absolute(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "list.csv"
    elsewhere.write_text(f"first,second\n{folder / 'a.png'},{folder / 'a.png'}\n")
    assert open_dataset("own", elsewhere)[0].first.shape == (1, 3, 4, 6)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("m.csv", "first,flow\na.png,m.flo\n", "line 2 of .*m.csv: second is missing; the columns are first, second"),
        ("m.csv", "first,second\na.png,a.png\na.png,\n", "line 3 of .*m.csv: second is missing"),
        ("m.csv", "first,second,flows\na.png,a.png,m.flo\n", "there is no column 'flows'; the columns are"),
        ("m.csv", "first,second\na.png,a.png,m.flo\n", "line 2 of .*m.csv has more cells than the header"),
        ("m.csv", "first,second\n", "m.csv holds no rows"),
        ("m.csv", "", "m.csv is an empty file"),
        ("m.csv", "first,second,flow\na.png,a.png,m.npz\n", r"m\.npz does not end in \.flo, \.pfm, \.png"),
        ("m.csv", "first,second,valid\na.png,a.png,mask.png\n", "valid and occlusion need a flow"),
        ("m.json", '[{"first": "a.png"}]', "object 1 of .*m.json: second is missing"),
        ("m.json", '{"first": "a.png"}', "m.json is not a list of objects"),
        ("m.json", "[", "m.json is not a json file"),
        ("m.txt", "first second", "m.txt does not end in .csv or .json"),
    ],
)
def test_a_manifest_that_is_wrong_says_where(folder: Path, name: str, text: str, sentence: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=sentence):
        open_dataset("own", folder / name)


def test_a_folder_without_manifest_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.csv does not exist, but a manifest was expected there"):
        open_dataset("own", tmp_path)


def test_a_file_that_is_missing_is_named_when_it_is_read(folder: Path) -> None:
    (folder / "list.csv").write_text("first,second\na.png,gone.png\n")
    with pytest.raises(InputError, match=r"gone\.png does not exist, but the second image of a\.png was expected"):
        open_dataset("own", folder / "list.csv")[0]


def test_depth_is_in_meters_whatever_the_file(folder: Path) -> None:
    meters = np.arange(24, dtype=np.float32).reshape(4, 6)
    write_pfm(folder / "d.pfm", np.where(meters == 5, np.inf, meters))
    write_dpt(folder / "d.dpt", meters)
    np.save(folder / "d.npy", meters.astype(np.float64))
    (folder / "d.png").write_bytes(encode_png((meters * 1000).astype(np.uint16)))
    (folder / "half.png").write_bytes(encode_png((meters * 2).astype(np.uint16)))
    (folder / "list.csv").write_text(
        "image,depth,scale,fx,fy,cx,cy\n"
        "a.png,d.pfm,,500,510,2.5,1.5\na.png,d.dpt,,,,,\na.png,d.npy,,,,,\na.png,d.png,,,,,\na.png,half.png,0.5,,,,\n"
    )
    first, *others = open_dataset("own-depth", folder / "list.csv")
    assert first.intrinsics.tolist() == [[[500, 0, 2.5], [0, 510, 1.5], [0, 0, 1]]]
    assert (~first.valid).nonzero().tolist() == [[0, 0, 0, 0], [0, 0, 0, 5]]
    assert first.depth[0, 0, 0].tolist() == [0, 1, 2, 3, 4, 0]
    assert len(others) == 4
    for sample in others:
        np.testing.assert_array_equal(sample.depth[0, 0].numpy(), meters)
        assert sample.intrinsics is None and (~sample.valid).nonzero().tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("a.png,d.npy,,500,,,", "of fx, fy, cx, cy only fx is given"),
        ("a.png,d.npy,,wide,1,1,1", "fx is 'wide'; give a number"),
        ("a.png,d.tif,,,,,", r"d\.tif does not end in \.pfm, \.dpt, \.npy, \.png"),
        ("a.png,flat.npy,,,,,", r"flat\.npy has shape \(24,\); a depth has shape HxW"),
        ("a.png,small.npy,,,,,", "is 6x4 but its depth is 3x4"),
        ("a.png,words.npy,,,,,", "words.npy does not hold an array of real numbers"),
        ("a.png,pickle.npy,,,,,", "pickle.npy is not a .npy file of numbers"),
        ("a.png,forged.npy,,,,,", "forged.npy is not a .npy file of numbers"),
        ("a.png,torn.npy,,,,,", "torn.npy is not a .npy file of numbers"),
        ("a.png,empty.npy,,,,,", "empty.npy is an empty file"),
        ("a.png,archive.npy,,,,,", "archive.npy is an archive of arrays; save one array as .npy"),
        ("a.png,mask.png,,,,,", "mask.png is a png but not a depth, which is 16-bit gray"),
    ],
)
def test_a_depth_that_does_not_fit_says_so(folder: Path, row: str, sentence: str) -> None:
    np.save(folder / "d.npy", np.ones((4, 6)))
    np.save(folder / "flat.npy", np.ones(24))
    np.save(folder / "small.npy", np.ones((4, 3)))
    np.save(folder / "words.npy", np.array([["a"]]))
    np.save(folder / "pickle.npy", np.array([[None]]), allow_pickle=True)
    whole = (folder / "d.npy").read_bytes()
    # A header of the same length that claims 2 TB.
    (folder / "forged.npy").write_bytes(whole.replace(b"(4, 6), }            ", b"(500000, 500000), }  "))
    (folder / "torn.npy").write_bytes(whole.replace(b"'descr'", b"'des(r'")[:100])
    (folder / "empty.npy").touch()
    with (folder / "archive.npy").open("wb") as file:
        np.savez(file, np.ones((4, 6)))
    (folder / "list.csv").write_text(f"image,depth,scale,fx,fy,cx,cy\n{row}\n")
    with pytest.raises(InputError, match=sentence):
        open_dataset("own-depth", folder / "list.csv")[0]


def test_frames_come_from_a_folder_or_a_pattern_in_natural_order(tmp_path: Path, paint: Paint) -> None:
    for frame in (2, 10, 1):
        paint(tmp_path / f"clip/frame{frame}.png", frame)
    (tmp_path / "clip/notes.txt").write_text("not a frame")
    (tmp_path / "boxes.txt").write_text("1,2,3,4\n5 6\t7 8.5\nnan,nan,nan,nan\n")
    (tmp_path / "start.txt").write_text("1,2,3,4\n")
    (tmp_path / "list.csv").write_text("frames,boxes\nclip,boxes.txt\nclip/*.png,start.txt\n")
    clip, start = open_dataset("own-track", tmp_path / "list.csv")
    assert [path.name for path in clip.frames] == ["frame1.png", "frame2.png", "frame10.png"]
    assert clip.frames == start.frames
    assert clip.name == "clip" and clip.present.tolist() == [True, True, False]
    assert clip.boxes[:2].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8.5]] and clip.boxes[2].isnan().all()
    assert start.boxes[0].tolist() == [1, 2, 3, 4] and start.present.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("frames", "boxes", "sentence"),
    [
        ("clip", "1,2,3,4\n1,2,3,4\n", r"clip holds 3 frames but 2 boxes \(in boxes\.txt\)"),
        ("clip", "1,2,3,4\n1,2,3\n1,2,3,4\n", r"line 2 of .*boxes.txt is not 4 numbers \(x, y, w, h\)"),
        ("clip/*.jpg", "1,2,3,4\n", r"clip/\*\.jpg holds no frames"),
        ("gone", "1,2,3,4\n", "gone does not exist, but the folder of frames that line 2 of .*list.csv names"),
    ],
)
def test_a_clip_that_does_not_fit_says_so(tmp_path: Path, paint: Paint, frames: str, boxes: str, sentence: str) -> None:
    for frame in (1, 2, 3):
        paint(tmp_path / f"clip/{frame}.png", frame)
    (tmp_path / "boxes.txt").write_text(boxes)
    (tmp_path / "list.csv").write_text(f"frames,boxes\n{frames},boxes.txt\n")
    with pytest.raises(InputError, match=sentence):
        open_dataset("own-track", tmp_path / "list.csv")[0]


def test_a_video_pair_is_as_long_as_the_shorter_one(tmp_path: Path) -> None:
    for name, frames in (("shaky.avi", 7), ("calm.avi", 5)):
        video = cv2.VideoWriter(str(tmp_path / name), cv2.VideoWriter.fourcc(*"MJPG"), 25, (32, 16))
        for _ in range(frames):
            video.write(np.zeros((16, 32, 3), dtype=np.uint8))
        video.release()
    (tmp_path / "list.csv").write_text("unstable,stable\nshaky.avi,calm.avi\nshaky.avi,\nshaky.avi,gone.avi\n")
    data = open_dataset("own-stabilize", tmp_path / "list.csv")
    assert (data[0].name, data[0].frames, data[0].stable) == ("shaky.avi", 5, tmp_path / "calm.avi")
    assert (data[1].frames, data[1].stable) == (7, None)
    with pytest.raises(InputError, match=r"gone\.avi does not exist, but the stable video that line 4"):
        data[2]


def test_a_folder_of_pairs_needs_no_manifest(folder: Path, motion: Motion, paint: Paint) -> None:
    for kind in ("first", "second", "flow"):
        (folder / "data" / kind).mkdir(parents=True)
    paint(folder / "data/first/1.png", 10)
    paint(folder / "data/second/1.jpg", 20)
    write_kitti_flow(folder / "data/flow/1.png", motion(3))
    data = open_dataset("own", folder / "data")
    assert data.names == ("first/1.png",)
    np.testing.assert_array_equal(data[0].flow[0].numpy(), motion(3).transpose(2, 0, 1))
    paint(folder / "data/first/2.png", 10)
    with pytest.raises(InputError, match=r"data/second has no file for first/2.png; add 2 there, or remove"):
        open_dataset("own", folder / "data")
    (folder / "data/first/2.png").rename(folder / "data/first/1.jpg")
    with pytest.raises(InputError, match=r"first/1.png and first/1.jpg have the same name; remove one of them"):
        open_dataset("own", folder / "data")


def test_a_folder_of_depths_has_one_camera(tmp_path: Path, paint: Paint) -> None:
    for kind in ("image", "depth"):
        (tmp_path / kind).mkdir()
    paint(tmp_path / "image/a.png", 10)
    height, width = open_dataset_size(tmp_path / "image/a.png")
    np.save(tmp_path / "depth/a.npy", np.full((height, width), 2.0))
    assert open_dataset("own-depth", tmp_path)[0].intrinsics is None
    assumed = open_dataset("own-depth", tmp_path, None, fov="90")[0].intrinsics
    side = max(height, width)
    np.testing.assert_allclose(assumed[0], [[side / 2, 0, (width - 1) / 2], [0, side / 2, (height - 1) / 2], [0, 0, 1]])
    (tmp_path / "camera.txt").write_text("500 501 3 2\n")
    known = open_dataset("own-depth", tmp_path, None, fov=90)[0].intrinsics
    assert known[0].tolist() == [[500, 0, 3], [0, 501, 2], [0, 0, 1]]
    with pytest.raises(InputError, match="a field of view is between 0 and 180 degrees, not 'wide'; give one, or none"):
        open_dataset("own-depth", tmp_path, None, fov="wide")


def open_dataset_size(image: Path) -> tuple[int, int]:
    height, width, _ = cv2.imread(str(image)).shape
    return height, width


@pytest.mark.parametrize(("frames", "boxes"), [("", "groundtruth.txt"), ("img/", "groundtruth_rect.txt")])
def test_a_folder_of_clips_needs_no_manifest(tmp_path: Path, paint: Paint, frames: str, boxes: str) -> None:
    for number in range(2):
        paint(tmp_path / f"clip/{frames}{number:08d}.jpg", number)
    (tmp_path / "clip" / boxes).write_text("1,2,3,4\n2,2,3,4\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "list.txt").write_text("clip")
    data = open_dataset("own-track", tmp_path)
    assert data.names == (f"clip{'/img' if frames else ''}",)
    assert data[0].boxes.tolist() == [[1, 2, 3, 4], [2, 2, 3, 4]] and len(data[0].frames) == 2


@pytest.mark.parametrize(
    ("name", "layout"),
    [("own", "folders first, second"), ("own-depth", "folders image and"), ("own-track", "a folder for each clip")],
)
def test_a_folder_of_neither_says_what_was_expected(tmp_path: Path, name: str, layout: str) -> None:
    with pytest.raises(InputError, match=rf"but a manifest was expected there, or {layout}"):
        open_dataset(name, tmp_path)
