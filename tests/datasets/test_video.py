"""Video datasets on fake trees: tracking and stabilization."""

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from protoformer.datasets.registry import check_dataset
from protoformer.datasets.video import DeepStab, Lasot, Otb, TrackingNet, Vot, count_frames
from protoformer.errors import InputError

NAN = math.nan


def write_frames(folder: Path, names: Sequence[str]) -> None:
    """Empty files will do: a sequence only lists its frames."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def same(boxes: torch.Tensor, expected: list[list[float]]) -> bool:
    return boxes.dtype == torch.float32 and torch.equal(
        boxes.nan_to_num(nan=-1e9), torch.tensor(expected).nan_to_num(nan=-1e9)
    )


def write_lasot_clip(folder: Path, boxes: str, occluded: str, outside: str, frames: int = 4) -> None:
    write_frames(folder / "img", [f"{number:08d}.jpg" for number in range(1, frames + 1)])
    write_text(folder / "groundtruth.txt", boxes)
    write_text(folder / "full_occlusion.txt", occluded)
    write_text(folder / "out_of_view.txt", outside)


@pytest.fixture
def lasot(tmp_path: Path) -> Path:
    for name in ("cat-1", "cat-2", "cat-10", "swing-set-3"):
        write_lasot_clip(
            tmp_path / name.rpartition("-")[0] / name,
            "10,20,30,40\n11,21,30,40\n0,0,0,0\n12.5,22,30,40\n",
            "0,1,0,0\n",
            "0,0,1,0\n",
        )
    write_text(tmp_path / "testing_set.txt", "swing-set-3\ncat-2\n")
    return tmp_path


class TestLasot:
    def test_an_object_is_present_where_neither_flag_is_set(self, lasot: Path) -> None:
        clip = Lasot(lasot, "test")[1]
        assert clip.name == "cat-2"
        assert clip.frames == tuple(lasot / f"cat/cat-2/img/{number:08d}.jpg" for number in range(1, 5))
        assert same(clip.boxes, [[10, 20, 30, 40], [11, 21, 30, 40], [NAN] * 4, [12.5, 22, 30, 40]])
        assert clip.present.tolist() == [True, False, False, True]

    def test_the_test_split_keeps_the_order_of_its_list(self, lasot: Path) -> None:
        assert Lasot(lasot).names == ("swing-set-3", "cat-2")

    def test_the_training_split_is_the_rest(self, lasot: Path) -> None:
        assert Lasot(lasot, "train").names == ("cat-1", "cat-10")

    def test_a_list_for_training_goes_before(self, lasot: Path) -> None:
        write_text(lasot / "training_set.txt", "cat-10\n")
        assert Lasot(lasot, "train").names == ("cat-10",)

    def test_clips_may_lie_straight_in_the_root(self, lasot: Path) -> None:
        (lasot / "cat" / "cat-2").rename(lasot / "cat-2")
        (lasot / "cat" / "cat-1").rename(lasot / "cat-1")
        assert Lasot(lasot)[1].frames[0] == lasot / "cat-2/img/00000001.jpg"
        assert Lasot(lasot, "train").names == ("cat-1", "cat-10")

    def test_a_box_without_size_is_absent_even_unflagged(self, lasot: Path) -> None:
        write_text(lasot / "cat/cat-2/groundtruth.txt", "1,2,3,4\n1,2,0,4\n1,2,3,-4\n1,2,nan,4\n")
        write_text(lasot / "cat/cat-2/full_occlusion.txt", "0,0,0,0")
        write_text(lasot / "cat/cat-2/out_of_view.txt", "0,0,0,0")
        clip = Lasot(lasot)[1]
        assert same(clip.boxes, [[1, 2, 3, 4], [NAN] * 4, [NAN] * 4, [NAN] * 4])
        assert clip.present.tolist() == [True, False, False, False]

    def test_without_the_official_list_no_split_is_known(self, lasot: Path) -> None:
        (lasot / "testing_set.txt").unlink()
        for split in ("train", "test"):
            with pytest.raises(InputError, match=r"testing_set\.txt does not exist, but the list of names"):
                Lasot(lasot, split)

    def test_a_clip_that_is_listed_but_missing_is_named(self, lasot: Path) -> None:
        write_text(lasot / "testing_set.txt", "cat-2\ndog-7\n")
        with pytest.raises(InputError, match="dog-7 does not exist, but a LaSOT clip was expected there"):
            Lasot(lasot)

    def test_a_flag_too_few_is_an_error(self, lasot: Path) -> None:
        write_text(lasot / "cat/cat-2/out_of_view.txt", "0,0,0")
        with pytest.raises(InputError, match="4 frames but 4 boxes but 4 full_occlusion flags but 3 out_of_view flags"):
            Lasot(lasot)[1]

    def test_a_flag_is_0_or_1(self, lasot: Path) -> None:
        write_text(lasot / "cat/cat-2/out_of_view.txt", "0,0,2,0")
        with pytest.raises(InputError, match=r"out_of_view\.txt is not one line of 0 and 1"):
            Lasot(lasot)[1]

    def test_an_unknown_split_is_refused(self, lasot: Path) -> None:
        with pytest.raises(InputError, match="the split is 'val'; choose one of train, test"):
            Lasot(lasot, "val")


@pytest.fixture
def trackingnet(tmp_path: Path) -> Path:
    for part, video, boxes in (
        ("TRAIN_0", "a_0", 12),
        ("TRAIN_2", "c_0", 3),
        ("TRAIN_10", "b_0", 3),
        ("TEST", "t_0", 1),
    ):
        frames = 12 if video in ("a_0", "t_0") else 3
        write_frames(tmp_path / part / "frames" / video, [f"{number}.jpg" for number in range(frames)])
        lines = "".join(f"{number}.0,2.5,3.0,4.0\n" for number in range(boxes))
        write_text(tmp_path / part / "anno" / f"{video}.txt", lines)
    return tmp_path


class TestTrackingNet:
    def test_frames_follow_their_numbers_and_not_their_letters(self, trackingnet: Path) -> None:
        clip = TrackingNet(trackingnet, "train")[0]
        assert clip.name == "a_0"
        assert [frame.name for frame in clip.frames] == [f"{number}.jpg" for number in range(12)]
        assert same(clip.boxes, [[float(number), 2.5, 3, 4] for number in range(12)])
        assert clip.present.all()

    def test_training_joins_all_parts_there_are(self, trackingnet: Path) -> None:
        assert TrackingNet(trackingnet, "train").names == ("a_0", "c_0", "b_0")

    def test_parts_can_be_chosen(self, trackingnet: Path) -> None:
        assert TrackingNet(trackingnet, "train", chunks=[10]).names == ("b_0",)
        with pytest.raises(InputError, match="TRAIN_3 does not exist"):
            TrackingNet(trackingnet, "train", chunks=[0, 3])

    def test_parts_may_come_as_words(self, trackingnet: Path) -> None:
        assert TrackingNet(trackingnet, "train", chunks="10").names == ("b_0",)
        assert TrackingNet(trackingnet, "train", chunks=10).names == ("b_0",)
        assert TrackingNet(trackingnet, "train", chunks="0, 10").names == ("a_0", "b_0")

    @pytest.mark.parametrize("chunks", ["", "one", "1;2", "-1", "1,,2", "0.5"])
    def test_parts_of_other_words_are_refused(self, trackingnet: Path, chunks: str) -> None:
        with pytest.raises(InputError, match=f"chunks is '{chunks}'; give whole numbers with commas between them"):
            TrackingNet(trackingnet, "train", chunks=chunks)

    def test_the_test_part_knows_the_first_box_alone(self, trackingnet: Path) -> None:
        clip = TrackingNet(trackingnet)[0]
        assert len(clip.frames) == 12
        assert same(clip.boxes, [[0, 2.5, 3, 4]] + [[NAN] * 4] * 11)
        assert clip.present.tolist() == [True] + [False] * 11

    def test_training_needs_a_box_for_each_frame(self, trackingnet: Path) -> None:
        write_text(trackingnet / "TRAIN_2/anno/c_0.txt", "1,2,3,4\n")
        with pytest.raises(InputError, match=r"c_0 holds 3 frames but 1 boxes \(in c_0\.txt\)"):
            TrackingNet(trackingnet, "train")[1]

    def test_a_video_that_is_not_unpacked_is_named(self, trackingnet: Path) -> None:
        write_text(trackingnet / "TEST/anno/u_0.txt", "1,2,3,4\n")
        with pytest.raises(InputError, match="u_0 does not exist, but the folder of frames was expected there"):
            TrackingNet(trackingnet)[1]

    def test_a_root_without_parts_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="TEST does not exist"):
            TrackingNet(tmp_path)
        with pytest.raises(InputError, match=r"holds no folder TRAIN_0 \.\. TRAIN_11"):
            TrackingNet(tmp_path, "train")


def write_otb_clip(folder: Path, boxes: str, numbers: Sequence[int], file: str = "groundtruth_rect.txt") -> None:
    write_frames(folder / "img", [f"{number:04d}.jpg" for number in numbers])
    write_text(folder / file, boxes)


class TestOtb:
    @pytest.mark.parametrize(
        "text",
        [
            "1,5,30,40\n2,6,31,41\n",
            "1\t5\t30\t40\r\n2\t6\t31\t41",
            "  1 5  30 40\n2 6 31 41 \n\n",
            "1, 5, 30, 40\n2,6,31,41",
        ],
    )
    def test_any_separator_gives_boxes_from_0(self, tmp_path: Path, text: str) -> None:
        write_otb_clip(tmp_path / "Man", text, [1, 2])
        clip = Otb(tmp_path)[0]
        assert clip.name == "Man"
        assert same(clip.boxes, [[0, 4, 30, 40], [1, 5, 31, 41]])
        assert clip.present.tolist() == [True, True]

    def test_frames_beyond_the_boxes_are_left_out(self, tmp_path: Path) -> None:
        write_otb_clip(tmp_path / "Man", "1,1,2,2\n1,1,2,2\n", range(1, 6))
        assert [frame.name for frame in Otb(tmp_path)[0].frames] == ["0001.jpg", "0002.jpg"]

    def test_boxes_beyond_the_frames_are_an_error(self, tmp_path: Path) -> None:
        write_otb_clip(tmp_path / "Man", "1,1,2,2\n1,1,2,2\n1,1,2,2\n", [1, 2])
        with pytest.raises(
            InputError, match=r"img holds 2 frames from number 0 on, but groundtruth_rect\.txt has 3 box"
        ):
            Otb(tmp_path)[0]

    def test_david_starts_late(self, tmp_path: Path) -> None:
        write_otb_clip(tmp_path / "David", "1,1,2,2\n1,1,2,2\n", range(297, 303))
        assert [frame.name for frame in Otb(tmp_path)[0].frames] == ["0300.jpg", "0301.jpg"]

    def test_a_clip_with_two_objects_is_two_sequences(self, tmp_path: Path) -> None:
        write_otb_clip(tmp_path / "Jogging", "1,1,2,2\n", [1], "groundtruth_rect.1.txt")
        write_text(tmp_path / "Jogging" / "groundtruth_rect.2.txt", "3,1,2,2\n")
        clips = Otb(tmp_path)
        assert clips.names == ("Jogging-1", "Jogging-2")
        assert same(clips[1].boxes, [[2, 0, 2, 2]])

    def test_a_line_that_is_no_box_is_named(self, tmp_path: Path) -> None:
        write_otb_clip(tmp_path / "Man", "1,1,2,2\n1,1,two,2\n", [1, 2])
        with pytest.raises(InputError, match=r"line 2 of .*groundtruth_rect\.txt is not 4 numbers .* but '1,1,two,2'"):
            Otb(tmp_path)[0]

    def test_a_file_without_boxes_is_refused(self, tmp_path: Path) -> None:
        write_otb_clip(tmp_path / "Man", "\n\n", [1, 2])
        with pytest.raises(InputError, match=r"groundtruth_rect\.txt holds no boxes"):
            Otb(tmp_path)[0]

    def test_a_root_without_clips_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"holds no clip with a groundtruth_rect\.txt"):
            Otb(tmp_path)
        with pytest.raises(InputError, match="nowhere does not exist, but OTB was expected there"):
            Otb(tmp_path / "nowhere")

    def test_an_index_beyond_the_end_is_no_clip(self, tmp_path: Path) -> None:
        write_otb_clip(tmp_path / "Man", "1,1,2,2\n", [1])
        with pytest.raises(IndexError):
            Otb(tmp_path)[1]


class TestVot:
    def test_a_polygon_becomes_the_box_around_it(self, tmp_path: Path) -> None:
        write_frames(tmp_path / "ball" / "color", ["00000001.jpg", "00000002.jpg", "00000003.jpg"])
        write_text(
            tmp_path / "ball" / "groundtruth.txt",
            "10.5,20,30,22.5,28,60,8.5,50\n1,2,3,4,nan,nan,nan,nan\n5,6,7,8,5,6,7,8\n",
        )
        clip = Vot(tmp_path)[0]
        assert clip.frames[0] == tmp_path / "ball/color/00000001.jpg"
        assert same(clip.boxes, [[8.5, 20, 21.5, 40], [NAN] * 4, [5, 6, 2, 2]])
        assert clip.present.tolist() == [True, False, True]

    def test_frames_may_lie_beside_the_boxes(self, tmp_path: Path) -> None:
        write_frames(tmp_path / "ball", ["00000001.jpg", "00000002.jpg"])
        write_text(tmp_path / "ball" / "groundtruth.txt", "1,2,3,4\nnan,nan,nan,nan\n")
        clip = Vot(tmp_path)[0]
        assert [frame.name for frame in clip.frames] == ["00000001.jpg", "00000002.jpg"]
        assert same(clip.boxes, [[1, 2, 3, 4], [NAN] * 4])

    def test_a_list_says_which_clips_count_and_in_which_order(self, tmp_path: Path) -> None:
        for name in ("ant", "bag", "car"):
            write_frames(tmp_path / name, ["00000001.jpg"])
            write_text(tmp_path / name / "groundtruth.txt", "1,2,3,4\n")
        assert Vot(tmp_path).names == ("ant", "bag", "car")
        write_text(tmp_path / "list.txt", "car\nant\n")
        assert Vot(tmp_path).names == ("car", "ant")
        write_text(tmp_path / "list.txt", "car\ndog\n")
        with pytest.raises(InputError, match=r"dog does not exist, but a clip that .*list\.txt names was expected"):
            Vot(tmp_path)

    def test_a_frame_too_many_is_an_error(self, tmp_path: Path) -> None:
        write_frames(tmp_path / "ant", ["00000001.jpg", "00000002.jpg"])
        write_text(tmp_path / "ant" / "groundtruth.txt", "1,2,3,4\n")
        with pytest.raises(InputError, match="ant holds 2 frames but 1 boxes"):
            Vot(tmp_path)[0]

    def test_masks_are_refused(self, tmp_path: Path) -> None:
        write_frames(tmp_path / "ant", ["00000001.jpg"])
        write_text(tmp_path / "ant" / "groundtruth.txt", "m10,20,30,40,5,6\n")
        with pytest.raises(InputError, match=r"is not 4 numbers \(x, y, w, h\) or 8 \(a polygon\) but 'm10,20"):
            Vot(tmp_path)[0]


OTB_SAMPLES = {
    "Couple": (140, [50, 46, 25, 62]),
    "Crossing": (120, [204, 150, 17, 50]),
    "Diving": (215, [176, 50, 21, 129]),
    "DragonBaby": (113, [159, 82, 56, 65]),
    "Football1": (74, [152, 104, 26, 43]),
    "Freeman1": (326, [252, 65, 23, 28]),
    "Skiing": (81, [445, 180, 29, 26]),
}


def test_the_real_otb_clips_are_read() -> None:
    root = Path(__file__).parents[2].parent / "shared" / "data" / "OTB"
    if not root.is_dir():
        pytest.skip("the OTB samples are not beside this checkout")
    clips = list(Otb(root))
    assert {clip.name: (len(clip.frames), clip.boxes[0].tolist()) for clip in clips} == OTB_SAMPLES
    for clip in clips:
        assert clip.boxes.shape == (len(clip.frames), 4)
        assert clip.present.all()
        assert all(frame.is_file() for frame in (clip.frames[0], clip.frames[-1]))
    extra = {name: len(list((root / name / "img").iterdir())) for name in ("Diving", "Football1")}
    assert extra == {"Diving": 231, "Football1": 81}


def write_video(path: Path, frames: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25.0, (32, 24))
    assert writer.isOpened()
    for number in range(frames):
        writer.write(np.full((24, 32, 3), 10 * number, dtype=np.uint8))
    writer.release()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, stable, unstable in (("1", 5, 7), ("2", 4, 4), ("10", 6, 3)):
        write_video(tmp_path / "stable" / f"{name}.avi", stable)
        write_video(tmp_path / "unstable" / f"{name}.avi", unstable)
    return tmp_path


def declare_frames(path: Path, count: int) -> None:
    """Change the number of frames that the headers of an avi state, and nothing else."""
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
        place = data.index(mark) + offset
        data[place : place + 4] = count.to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("trust_headers", [False, True])
def test_pairs_come_by_number_with_the_shorter_length(root: Path, trust_headers: bool) -> None:
    pairs = list(DeepStab(root, trust_headers=trust_headers))
    assert [(pair.name, pair.frames) for pair in pairs] == [("1", 5), ("2", 4), ("10", 3)]
    assert pairs[2].stable == root / "stable" / "10.avi"
    assert pairs[2].unstable == root / "unstable" / "10.avi"


def test_a_video_cut_short_counts_the_frames_that_are_left(root: Path) -> None:
    path = root / "stable" / "2.avi"
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\xff\xd8\xff")])
    assert count_frames(path) == 3
    assert DeepStab(root)[1].frames == 3


def test_a_header_that_promises_too_much_is_believed_only_on_request(root: Path) -> None:
    path = root / "stable" / "1.avi"
    declare_frames(path, 40)
    assert count_frames(path) == 5
    assert count_frames(path, trust_header=True) == 40


@pytest.mark.parametrize(("word", "meant"), [("false", False), ("0", False), ("True", True), ("1", True)])
def test_trust_headers_accepts_text(root: Path, word: str, meant: bool) -> None:
    assert DeepStab(root, trust_headers=word).trust_headers is meant


def test_trust_headers_refuses_other_text(root: Path) -> None:
    with pytest.raises(InputError, match="trust_headers is 'perhaps'; choose one of true, false, 1, 0"):
        DeepStab(root, trust_headers="perhaps")


def test_a_check_decodes_what_a_header_promises(root: Path) -> None:
    for folder in ("stable", "unstable"):
        declare_frames(root / folder / "1.avi", 40)
    (root / "unstable" / "2.avi").write_bytes(b"not a video at all")
    report = check_dataset(DeepStab(root, trust_headers=True))
    assert (report.num_samples, report.read) == (3, 1)
    (first, promise), (second, damage) = report.broken
    assert (first, second) == ("1", "2")
    assert "unstable/1.avi has 7 frames that can be read, but 40 are declared" in promise
    assert "unstable/2.avi is not a video" in damage


@pytest.mark.parametrize(("missing", "partner"), [("stable", "unstable"), ("unstable", "stable")])
def test_a_missing_partner_is_named(root: Path, missing: str, partner: str) -> None:
    (root / missing / "2.avi").unlink()
    with pytest.raises(InputError, match=rf"/{missing}/2\.avi does not exist, but .*/{partner}/2\.avi needs it"):
        DeepStab(root)


def test_other_files_are_not_looked_at(root: Path) -> None:
    (root / "stable" / "readme.txt").write_text("about")
    (root / "stable" / "preview.avi").write_bytes(b"-")
    assert DeepStab(root).names == ("1", "2", "10")


def test_a_file_that_is_no_video_is_refused_when_it_is_read(root: Path) -> None:
    (root / "stable" / "2.avi").write_bytes(b"not a video at all")
    with pytest.raises(InputError, match=r"stable/2\.avi is not a video of a known kind"):
        DeepStab(root)[1]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="stable does not exist, but the folder of stable videos was expected there"):
        DeepStab(tmp_path)
    for folder in ("stable", "unstable"):
        (tmp_path / folder).mkdir()
    with pytest.raises(InputError, match=r"holds no videos stable/<n>\.avi"):
        DeepStab(tmp_path)


def test_there_is_one_split(root: Path) -> None:
    with pytest.raises(InputError, match="the split is 'test'; choose one of all"):
        DeepStab(root, "test")
