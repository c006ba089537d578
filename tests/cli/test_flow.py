"""`protoformer flow`: two images in, files out."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protoformer as pf
from protoformer.io.formats import read_flo, read_kitti_flow
from protoformer.io.image import read_image
from protoformer.io.png import encode_png
from protoformer.viz.colormaps import flow_to_color

pytestmark = pytest.mark.filterwarnings("always::protoformer.UntrainedWarning")

RNG = np.random.default_rng(1)


def flow_of(protoformer, first: str, second: str) -> np.ndarray:
    """The flow that the command writes for two images in the current folder."""
    outcome = protoformer("flow", first, second, "--model", "tiny", "--num-updates", "2", "-o", "m.flo")
    assert outcome.code == 0 and outcome.errors == []
    return read_flo("m.flo")


def test_by_default_the_picture_is_written_here(folder: Path, protoformer) -> None:
    outcome = protoformer("flow", "a.png", "b.png", "--model", "tiny")
    assert outcome.code == 0
    assert outcome.out.startswith("30x20 pixels, mean motion ") and outcome.out.endswith("; wrote motion.png\n")
    assert read_image(folder / "motion.png").shape == (20, 30, 3)
    assert sorted(entry.name for entry in folder.iterdir()) == ["a.png", "b.png", "motion.png"]


def test_one_estimate_may_go_to_several_files(folder: Path, protoformer) -> None:
    assert protoformer("flow", "a.png", "b.png", "--model", "tiny", "-o", "m.flo", "-o", "m.png").code == 0
    assert np.array_equal(np.rint(255 * read_image("m.png")), flow_to_color(read_flo("m.flo")))


def test_kitti_files_hold_the_same_flow(folder: Path, protoformer) -> None:
    assert protoformer("flow", "a.png", "b.png", "--model", "tiny", "-o", "k.png", "--format", "kitti").code == 0
    assert protoformer("flow", "a.png", "b.png", "--model", "tiny", "-o", "m.flo").code == 0
    sparse = read_kitti_flow("k.png")
    assert sparse.valid.all()
    assert np.abs(sparse.flow - read_flo("m.flo")).max() <= 1 / 128


def test_the_command_gives_the_flow_of_the_library(folder: Path, protoformer) -> None:
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny")
    expected = model.flow("a.png", "b.png", num_updates=2).numpy()
    assert np.array_equal(flow_of(protoformer, "a.png", "b.png"), expected)


def test_json_is_all_that_is_printed(folder: Path, protoformer) -> None:
    outcome = protoformer("flow", "a.png", "b.png", "--model", "tiny", "-o", "m.flo", "-o", "m.png", "--json")
    summary = json.loads(outcome.out)
    lengths = np.linalg.norm(read_flo("m.flo"), axis=2)
    assert (summary["width"], summary["height"]) == (30, 20)
    assert summary["mean_motion_px"] == pytest.approx(lengths.mean(), abs=1e-3)
    assert summary["largest_motion_px"] == pytest.approx(lengths.max(), abs=1e-3)
    assert 0 <= summary["mean_confidence"] <= 1
    assert summary["trained"] is False
    assert summary["written"] == ["m.flo", "m.png"]


def test_random_weights_are_noted_once_on_standard_error(folder: Path, protoformer) -> None:
    outcome = protoformer("flow", "a.png", "b.png", "--model", "tiny")
    assert len(outcome.notes) == 1 and "the results mean nothing" in outcome.notes[0]
    assert outcome.errors == []


def test_stored_weights_are_taken_by_their_path_and_need_no_note(folder: Path, protoformer) -> None:
    with pytest.warns(pf.UntrainedWarning):
        pf.load("tiny").network.save_weights("w.safetensors", trained=True)
    outcome = protoformer("flow", "a.png", "b.png", "--model", "w.safetensors", "--json")
    assert outcome.code == 0 and outcome.notes == []
    assert json.loads(outcome.out)["trained"] is True


def test_random_weights_from_a_file_are_announced_as_well(folder: Path, protoformer) -> None:
    with pytest.warns(pf.UntrainedWarning):
        pf.load("tiny").save("w.safetensors")
    outcome = protoformer("flow", "a.png", "b.png", "--model", "w.safetensors", "--json")
    assert outcome.code == 0 and "w.safetensors holds random weights" in outcome.notes[0]
    assert json.loads(outcome.out)["trained"] is False


def test_gray_has_the_flow_of_three_equal_channels(folder: Path, protoformer) -> None:
    for name in "ab":
        gray = RNG.integers(0, 256, (18, 25), dtype=np.uint8)
        Image.fromarray(gray).save(f"{name}-gray.png")
        Image.fromarray(np.stack([gray] * 3, axis=2)).save(f"{name}-three.png")
    gray_flow = flow_of(protoformer, "a-gray.png", "b-gray.png")
    assert np.array_equal(gray_flow, flow_of(protoformer, "a-three.png", "b-three.png"))


def test_transparency_has_the_flow_of_what_shows_over_black(folder: Path, protoformer) -> None:
    for name in "ab":
        pixels = RNG.integers(0, 256, (18, 25, 4), dtype=np.uint8)
        pixels[..., 3] = RNG.choice([0, 255], (18, 25))
        Image.fromarray(pixels).save(f"{name}-alpha.png")
        Image.fromarray(pixels[..., :3] * (pixels[..., 3:] > 0)).save(f"{name}-black.png")
    alpha_flow = flow_of(protoformer, "a-alpha.png", "b-alpha.png")
    assert np.array_equal(alpha_flow, flow_of(protoformer, "a-black.png", "b-black.png"))


def test_sixteen_bits_have_the_flow_of_the_same_eight(folder: Path, protoformer) -> None:
    for name in "ab":
        pixels = np.rint(255 * read_image(f"{name}.png")).astype(np.uint16)
        Path(f"{name}-deep.png").write_bytes(encode_png(pixels * np.uint16(257)))
    deep = flow_of(protoformer, "a-deep.png", "b-deep.png")
    assert np.abs(deep - flow_of(protoformer, "a.png", "b.png")).max() < 1e-3


@pytest.mark.parametrize("size", [(1, 1), (15, 15), (3, 200)])
def test_small_and_odd_sizes_work(folder: Path, protoformer, size: tuple[int, int]) -> None:
    for name in "cd":
        Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(f"{name}.png")
    flow = flow_of(protoformer, "c.png", "d.png")
    assert flow.shape == (*size, 2) and np.isfinite(flow).all()


def test_twenty_thousand_pixels_in_a_row_work(folder: Path, protoformer) -> None:
    for name in "cd":
        Image.fromarray(RNG.integers(0, 256, (8, 20_000, 3), dtype=np.uint8)).save(f"{name}.png")
    assert protoformer("flow", "c.png", "d.png", "--model", "tiny", "--num-updates", "1", "-o", "m.flo").code == 0
    assert read_flo("m.flo").shape == (8, 20_000, 2)


def test_a_forgotten_second_image_is_missed(folder: Path, protoformer) -> None:
    Image.fromarray(RNG.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save("c.png")
    outcome = protoformer("flow", "c.png", "-o", "m.png")
    assert outcome.code == 2 and "c.png is a single image; give a second one" in outcome.err
