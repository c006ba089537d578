"""First boxes of many videos come from one file, or from a file beside each."""

import json
from pathlib import Path

import pytest

from protoformer.batch.jobs import Job
from protoformer.batch.tasks import TrackBatch, find_boxes, read_boxes_file, read_sidecar
from protoformer.errors import InputError

FIRST, SECOND = (1.0, 2.0, 30.5, 4.0), (5.0, 6.0, 7.0, 8.0)


def test_csv_and_json_hold_the_same_boxes(tmp_path: Path) -> None:
    table, mapping = tmp_path / "boxes.csv", tmp_path / "boxes.json"
    table.write_text("video,x,y,w,h\na.mp4,1,2,30.5,4\n\na.mp4, 5,6,7,8\nb/a.mp4,5,6,7,8\n")
    mapping.write_text(json.dumps({"a.mp4": [FIRST, SECOND], "b/a.mp4": SECOND}))
    expected = {"a.mp4": (FIRST, SECOND), "b/a.mp4": (SECOND,)}
    assert read_boxes_file(table) == read_boxes_file(mapping) == expected


def test_the_most_specific_name_of_a_video_counts(tmp_path: Path) -> None:
    boxes, path = {"a.mp4": (FIRST,), "b/a.mp4": (SECOND,)}, tmp_path / "boxes.csv"
    assert find_boxes(boxes, Path("/videos/b/a.mp4"), path) == (SECOND,)
    assert find_boxes(boxes, Path("/videos/c/a.mp4"), path) == (FIRST,)
    assert find_boxes({"/videos/a.mp4": (SECOND,), "a.mp4": (FIRST,)}, Path("/videos/a.mp4"), path) == (SECOND,)
    with pytest.raises(InputError, match=r"no boxes for /videos/aa.mp4 in .*boxes.csv; add a row aa.mp4,x,y,w,h"):
        find_boxes(boxes, Path("/videos/aa.mp4"), path)


@pytest.mark.parametrize("text", ["1,2,30.5,4\n5,6,7,8", "x,y,w,h\n1,2,30.5,4\r\n5,6,7,8\r\n"])
def test_a_file_beside_a_video_has_its_boxes(tmp_path: Path, text: str) -> None:
    (tmp_path / "clip.boxes.csv").write_text(text)
    assert read_sidecar(tmp_path / "clip.mp4") == (FIRST, SECOND)


def test_a_video_without_boxes_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a.boxes.csv").write_text("1,2,30.5,4")
    (tmp_path / "b.boxes.csv").write_text("1,2,0,4")
    jobs = [Job(tmp_path / f"{name}.mp4", tmp_path / "out", (f"{name}.mp4",), {"task": "track"}) for name in "abc"]
    found = TrackBatch().complete(jobs)
    assert found[0].options == {"task": "track", "boxes": [list(FIRST)]} and not found[0].unread
    assert "the box 1,2,0,4 has no area" in found[1].unread
    assert found[2].unread == (
        f"there are no boxes for {tmp_path}/c.mp4; write x,y,w,h of each target in its first frame to c.boxes.csv "
        "beside it, or give a file with --boxes."
    )


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("boxes.txt", "", "does not end in .csv or .json"),
        ("boxes.csv", "video,x,y,w,h\n", "has no boxes; add a row video,x,y,w,h"),
        ("boxes.csv", "a.mp4,1,2,3\n", "line 1 of .* is not video,x,y,w,h; correct it"),
        ("boxes.csv", "a.mp4,1,2,3,four\n", "the boxes of 'a.mp4' in .* cannot be used: a box is four numbers"),
        ("boxes.json", "[]", "does not map videos to boxes"),
        ("boxes.json", '{"a.mp4": {"x": 1}}', "does not map videos to boxes"),
        ("boxes.json", '{"a.mp4": [[1, 2, 3, 1e400]]}', "has a number that is not finite"),
        ("boxes.json", '{"a.mp4": [[1, 2, 3, %s]]}' % ("9" * 400), "have a number that is too large"),
        ("boxes.json", "[" * 100_000, "is not a json file"),
    ],
)
def test_a_bad_file_of_boxes_is_one_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_boxes_file(tmp_path / name)
