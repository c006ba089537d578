"""Bad input ends a command with code 2 and one sentence, and leaves the folder as it was."""

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.flow import tiling as planning
from protoformer.flow.predictor import FlowPredictor

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


def refuse(protoformer, *arguments: str) -> str:
    """Run a command that must be refused; return its one sentence."""
    before = contents(Path())
    outcome = protoformer(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.errors) == 1, outcome.err
    assert len(outcome.notes) <= 1
    assert outcome.errors[0].startswith("protoformer: ") and "; " in outcome.errors[0]
    assert "Traceback" not in outcome.err
    assert contents(Path()) == before
    return outcome.errors[0]


def flow(protoformer, first: str = "a.png", second: str = "b.png", *options: str) -> str:
    return refuse(protoformer, "flow", first, second, "--model", "tiny", *options)


def test_two_images_of_different_sizes(folder: Path, protoformer) -> None:
    Image.new("RGB", (31, 20)).save("wide.png")
    assert "a.png is 30x20 pixels and wide.png is 31x20" in flow(protoformer, "a.png", "wide.png")


def test_text_that_is_called_an_image(folder: Path, protoformer) -> None:
    Path("text.png").write_text("hello")
    assert "text.png is not an image" in flow(protoformer, "a.png", "text.png")
    assert "text.png is not an image" in flow(protoformer, "text.png", "b.png")


def test_an_empty_file(folder: Path, protoformer) -> None:
    Path("empty.png").touch()
    assert "empty.png is an empty file" in flow(protoformer, "empty.png")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_an_image_cut_short(folder: Path, protoformer, keep: float) -> None:
    whole = Path("a.png").read_bytes()
    Path("cut.png").write_bytes(whole[: int(keep * len(whole))])
    assert "cut.png is a png cut short" in flow(protoformer, "a.png", "cut.png")


def test_samples_that_are_no_numbers(folder: Path, protoformer) -> None:
    samples = np.zeros((20, 30), dtype=np.float32)
    samples[3, 4] = np.nan
    Image.fromarray(samples).save("nan.tiff")
    assert "nan.tiff contains NaN" in flow(protoformer, "a.png", "nan.tiff")


def test_an_image_that_claims_to_be_huge(folder: Path, protoformer) -> None:
    head = b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    Path("huge.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    )
    assert "huge.png is 20000x20000, over the limit" in flow(protoformer, "huge.png", "huge.png")


def test_images_too_large_for_the_memory(folder: Path, protoformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_bytes", lambda _: 1000)
    assert "flow at 30x20 pixels takes about" in flow(protoformer)


@pytest.mark.parametrize("command", ["flow", "track", "stabilize", "explain"])
def test_a_pattern_that_the_shell_has_spelled_out(folder: Path, protoformer, command: str) -> None:
    said = refuse(protoformer, command, "a.png", "b.png", "c.png", "d.png")
    assert said.endswith("quote a pattern, as in 'img/*.jpg', or give the folder of the images.")
    more = {"flow": "2 names too many, from c.png on", "explain": "4 images cannot be explained together"}
    assert more.get(command, "3 names too many, from b.png on") in said


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_runs_out_all_the_same(
    folder: Path, protoformer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(FlowPredictor, "flow", fail)
    assert "out of memory; give --memory, such as 2GB" in flow(protoformer)


def test_a_missing_file(folder: Path, protoformer) -> None:
    assert "none.png does not exist" in flow(protoformer, "a.png", "none.png")


def test_a_folder_where_an_image_belongs(folder: Path, protoformer) -> None:
    Path("images").mkdir()
    assert "images is a folder" in flow(protoformer, "images")


def test_a_folder_where_the_output_belongs(folder: Path, protoformer) -> None:
    Path("out.flo").mkdir()
    assert "out.flo is a folder" in flow(protoformer, "a.png", "b.png", "-o", "out.flo")


def test_an_output_folder_that_does_not_exist(folder: Path, protoformer) -> None:
    sentence = flow(protoformer, "a.png", "b.png", "-o", "good.flo", "-o", "nowhere/m.flo")
    assert "the folder nowhere does not exist" in sentence


@pytest.mark.parametrize("name", ["m.jpg", "m", "m.flo.txt"])
def test_an_output_of_another_kind(folder: Path, protoformer, name: str) -> None:
    assert f"{name} by that suffix; give one ending in .flo, .png, .npy or .npz" in flow(
        protoformer, "a.png", "b.png", "-o", name
    )


def test_an_unknown_format(folder: Path, protoformer) -> None:
    assert "there is no flow format 'mp4'" in flow(protoformer, "a.png", "b.png", "--format", "mp4")


def test_a_format_that_does_not_fit_the_name(folder: Path, protoformer) -> None:
    sentence = flow(protoformer, "a.png", "b.png", "-o", "m.flo", "--format", "kitti")
    assert "give one ending in .png" in sentence


@pytest.mark.parametrize("model", ["huge", "none.safetensors", "a.png"])
def test_an_unknown_model(folder: Path, protoformer, model: str) -> None:
    sentence = refuse(protoformer, "flow", "a.png", "b.png", "--model", model)
    assert f"there is no model '{model}'" in sentence or f"{model} does not exist" in sentence


def test_weights_that_are_none(folder: Path, protoformer) -> None:
    Path("bad.safetensors").write_bytes(b"\x80\x04 no weights at all")
    sentence = refuse(protoformer, "flow", "a.png", "b.png", "--model", "bad.safetensors")
    assert "bad.safetensors does not hold weights" in sentence


@pytest.mark.parametrize("updates", ["0", "-3"])
def test_no_updates(folder: Path, protoformer, updates: str) -> None:
    assert f"{updates} updates cannot be run" in flow(protoformer, "a.png", "b.png", "--num-updates", updates)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "meta"])
def test_an_unknown_device(folder: Path, protoformer, device: str) -> None:
    assert f"the device '{device}' is not there" in flow(protoformer, "a.png", "b.png", "--device", device)


def test_a_full_disk(folder: Path, protoformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert "m.flo could not be written (No space left" in flow(protoformer, "a.png", "b.png", "-o", "m.flo")


def test_a_long_path_stays_on_one_line(folder: Path, protoformer) -> None:
    name = "n" * 150 + "/" + "m" * 150 + ".png"
    assert f"{name} does not exist" in flow(protoformer, name)


def test_a_path_in_brackets_is_printed_as_it_is(folder: Path, protoformer) -> None:
    assert "[red]none[bold].png does not exist" in flow(protoformer, "[red]none[bold].png")


def test_a_path_that_reads_like_a_picture_is_printed_as_it_is(folder: Path, protoformer) -> None:
    assert "a:cat:.png does not exist" in flow(protoformer, "a:cat:.png")


@pytest.mark.parametrize("name", ["a.png", "./b.png"])
def test_an_output_that_would_replace_an_input(folder: Path, protoformer, name: str) -> None:
    assert "is also an input and would be lost" in flow(protoformer, "a.png", "b.png", "-o", name)


def test_a_file_where_the_folder_of_the_demonstration_belongs(folder: Path, protoformer) -> None:
    assert "the folder a.png cannot be made" in refuse(protoformer, "demo", "-o", "a.png")


@pytest.mark.parametrize(
    "arguments",
    [
        ("flow",),
        ("flow", "a.png"),
        ("flow", "a.png", "b.png", "--num-updates", "many"),
        ("flow", "a.png", "b.png", "--speed", "3"),
        ("fly",),
        ("demo", "--steps", "2"),
    ],
)
def test_words_that_are_no_command(folder: Path, protoformer, arguments: tuple[str, ...]) -> None:
    before = contents(folder)
    outcome = protoformer(*arguments)
    assert outcome.code == 2
    assert outcome.out == "" and "Traceback" not in outcome.err
    assert contents(folder) == before


def test_a_mistake_of_the_program_is_not_blamed_on_the_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, protoformer
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a shape does not fit")

    monkeypatch.setattr(FlowPredictor, "flow", fail)
    with pytest.raises(RuntimeError, match="a shape does not fit"):
        protoformer("flow", "a.png", "b.png", "--model", "tiny")


def test_the_real_command_ends_with_code_2_and_one_sentence(folder: Path) -> None:
    Path("text.png").write_text("hello")
    before = contents(folder)
    ended = subprocess.run(
        [sys.executable, "-m", "protoformer", "flow", "a.png", "text.png", "--model", "tiny", "-o", "m.flo"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout == "" and "Traceback" not in ended.stderr
    (sentence,) = ended.stderr.splitlines()
    assert sentence.startswith("protoformer: text.png is not an image")
    assert contents(folder) == before
