"""Text that no person wrote, in files that a person may be given, is refused with one short sentence or passed over."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from protoformer.ablation.summary import read_result
from protoformer.datasets.registry import open_dataset, peer_results
from protoformer.errors import InputError, closest_name, shorten
from protoformer.io.png import encode_png
from protoformer.training import checkpoint as checkpoints
from protoformer.training.checkpoint import FORMAT, MANIFEST
from protoformer.training.recipe import read_recipe
from protoformer.training.run_folder import read_log

DEEP = "[" * 100_000


def refusal(read) -> str:
    """The message of an `InputError`, which is one sentence on one line of bounded length."""
    with pytest.raises(InputError) as caught:
        read()
    message = str(caught.value)
    assert len(message) < 1000 and message.isprintable() and message.endswith(".")
    return message


@pytest.mark.parametrize("suffix", [".csv", ".json"])
@pytest.mark.parametrize(
    ("column", "cell"),
    [("first", "x" * 5000), ("first", "x" * 300 + ".png"), ("first", "a\0b.png"), ("x" * 5000, "a"), ("a\0b", "c")],
    ids=["long cell", "long name", "control cell", "long column", "control column"],
)
def test_a_manifest_with_odd_cells_is_refused_in_a_short_sentence(
    tmp_path: Path, suffix: str, column: str, cell: str
) -> None:
    row = {"second": "b.png", **{column: cell}}
    path = tmp_path / f"manifest{suffix}"
    text = ",".join(row) + "\n" + ",".join(row.values()) + "\n" if suffix == ".csv" else json.dumps([row])
    path.write_text(text)
    refusal(lambda: open_dataset("own", path)[0])


@pytest.mark.parametrize("column", ["frames", "boxes"])
def test_a_name_that_no_disk_can_hold_is_refused(tmp_path: Path, column: str) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "0.png").write_bytes(encode_png(np.zeros((4, 6), np.uint8)))
    row = {"frames": "frames", "boxes": "boxes.txt", column: "x" * 300}
    (tmp_path / "manifest.json").write_text(json.dumps([row]))
    refusal(lambda: open_dataset("own-track", tmp_path)[0])


def test_a_pattern_that_matches_no_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps([{"frames": "frames**.png", "boxes": "boxes.txt"}]))
    refusal(lambda: open_dataset("own-track", tmp_path)[0])


def test_a_checkpoint_of_an_odd_version_is_refused_in_a_short_sentence(tmp_path: Path) -> None:
    content = {"format": FORMAT, "version": ["x\0" * 5000]}
    folder = tmp_path / "step-00000007"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps(content))
    assert "it is of version" in refusal(lambda: checkpoints.load(folder))
    messages: list[str] = []
    assert checkpoints.find_newest(tmp_path, messages.append) is None
    assert len(messages) == 1 and len(messages[0]) < 1000 and messages[0].isprintable()


@pytest.mark.parametrize("depth", ["depth.npy", "depth.png"])
def test_depths_beyond_float32_are_infinite_and_no_warning(tmp_path: Path, depth: str) -> None:
    (tmp_path / "image.png").write_bytes(encode_png(np.zeros((4, 6), np.uint8)))
    (tmp_path / "depth.png").write_bytes(encode_png(np.ones((4, 6), np.uint16)))
    np.save(tmp_path / "depth.npy", np.full((4, 6), 1e300))
    (tmp_path / "manifest.csv").write_text(f"image,depth,scale\nimage.png,{depth},1e300\n")
    sample = open_dataset("own-depth", tmp_path)[0]
    assert not sample.valid.any()


def test_deeply_nested_json_is_no_table_no_result_and_no_record(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(DEEP)
    assert "is not a table of peers" in refusal(lambda: peer_results(tmp_path))
    (tmp_path / "result.json").write_text(DEEP)
    assert read_result(tmp_path, "key") is None
    (tmp_path / "log.jsonl").write_text(f'{DEEP}\n{{"step": 3}}\n')
    assert read_log(tmp_path / "log.jsonl") == [{"step": 3}]


@pytest.mark.parametrize(
    "text",
    [
        f"optimizer: {{lr: {10**400}}}",
        f"run: {{steps: {10**400}}}",
        f"model: {{preset: {'x' * 5000}}}",
        f"{'x' * 200_000}: 1",
        '"\\0": 1',
        "task: [" + "1, " * 5000 + "1]",
    ],
    ids=["large float", "large integer", "long value", "long key", "control character", "long list"],
)
def test_a_recipe_with_odd_values_is_refused_in_a_short_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    start = time.process_time()
    assert "is not a recipe" in refusal(lambda: read_recipe(tmp_path / "mine.yaml"))
    assert time.process_time() - start < 2


def test_the_nearest_name_of_a_very_long_one_is_found_at_once() -> None:
    start = time.process_time()
    assert closest_name("flow" + "x" * 10**6, ["depth", "flow"]) == "flow"
    assert time.process_time() - start < 1


def test_text_in_a_message_is_cut_in_its_middle_and_keeps_to_one_line() -> None:
    assert shorten("a clear reason") == "a clear reason"
    assert shorten("a\nb\0c") == "a\\nb\\x00c"
    cut = shorten("begin" + "x" * 10_000 + "end", max_length=60)
    assert len(cut) <= 60 and cut.startswith("begin") and cut.endswith("end") and " ... " in cut
