"""FlyingChairs, FlyingThings3D, Sintel and Middlebury, each on a small tree in its official layout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.datasets.flow import FlyingChairs, FlyingThings3D, Middlebury, Sintel
from protoformer.errors import InputError
from protoformer.io.formats import write_flo, write_pfm_flow
from protoformer.synthetic.samples import FlowPair, FlowSample

Paint = Callable[..., Path]
Motion = Callable[[int], np.ndarray]


def gray(image: torch.Tensor) -> int:
    """The one gray, 0 .. 255, that an image is made of."""
    assert image.shape == (1, 3, 4, 6) and image.dtype == torch.float32
    assert image.min() == image.max()
    return round(float(image.max()) * 255)


def expect_motion(sample: FlowPair, flow: np.ndarray) -> None:
    """The sample has this HxWx2 flow, known everywhere."""
    assert isinstance(sample, FlowSample)
    assert sample.valid.shape == (1, 1, 4, 6) and sample.valid.dtype == torch.bool and sample.valid.all()
    np.testing.assert_array_equal(sample.flow.numpy(), flow.transpose(2, 0, 1)[None])


def write_flow(path: Path, flow: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (write_pfm_flow if path.suffix == ".pfm" else write_flo)(path, flow)


@pytest.fixture
def chairs(tmp_path: Path, paint: Paint, motion: Motion) -> Path:
    root = tmp_path / "FlyingChairs_release"
    for number in (1, 2, 3, 10):
        paint(root / "data" / f"{number:05d}_img1.ppm", number)
        paint(root / "data" / f"{number:05d}_img2.ppm", 100 + number)
        write_flow(root / "data" / f"{number:05d}_flow.flo", motion(number))
    return root


def test_chairs_are_read_by_number_and_may_have_gaps(chairs: Path, motion: Motion) -> None:
    data = FlyingChairs(chairs, "all")
    assert data.names == ("00001", "00002", "00003", "00010") and len(data) == 4
    sample = data[3]
    assert (gray(sample.first), gray(sample.second), sample.names) == (10, 110, ("00010",))
    expect_motion(sample, motion(10))
    assert sample.occlusion is None


@pytest.mark.parametrize("place", ["FlyingChairs_train_val.txt", "chairs_split.txt", "../chairs_split.txt"])
def test_line_n_of_the_split_file_is_chair_n(chairs: Path, place: str) -> None:
    (chairs / place).write_text("1\n2\n1\n" + "1\n" * 6 + "2\n")
    assert FlyingChairs(chairs, "train").names == ("00001", "00003")
    assert FlyingChairs(chairs, "val").names == ("00002", "00010")
    assert len(FlyingChairs(chairs, "all")) == 4


def test_chairs_without_split_file_say_which_one_is_missing(chairs: Path) -> None:
    with pytest.raises(InputError, match=r"FlyingChairs_train_val\.txt does not exist, nor does chairs_split\.txt: "):
        FlyingChairs(chairs, "train")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1\n2\n3\n1", r"line 3 of .*chairs_split\.txt is not 1 \(train\) or 2 \(val\)"),
        ("1\n2\n1\n", r"chairs_split\.txt has 3 lines and so none for pair 00010"),
    ],
)
def test_a_split_file_of_something_else_is_refused(chairs: Path, text: str, sentence: str) -> None:
    (chairs / "chairs_split.txt").write_text(text)
    with pytest.raises(InputError, match=sentence):
        FlyingChairs(chairs, "val")


def test_a_chair_without_its_partner_is_named(chairs: Path) -> None:
    (chairs / "data" / "00003_img2.ppm").unlink()
    with pytest.raises(
        InputError, match=r"data holds 4 files \*_img1\.ppm but 3 files \*_img2\.ppm but 4 files"
    ) as caught:
        FlyingChairs(chairs, "all")
    assert "00003_img2.ppm is missing beside 00003_img1.ppm" in str(caught.value)


def test_chairs_of_equal_counts_may_still_lack_a_partner(chairs: Path) -> None:
    (chairs / "data" / "00003_flow.flo").rename(chairs / "data" / "00007_flow.flo")
    with pytest.raises(InputError, match=r"00003_flow\.flo is missing beside 00003_img1\.ppm"):
        FlyingChairs(chairs, "all")


def test_a_root_without_data_says_where_to_point(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data does not exist, but .*, at the folder that holds data/\."):
        FlyingChairs(tmp_path, "all")
    (tmp_path / "data").mkdir()
    with pytest.raises(InputError, match=r"data holds no files \*_flow\.flo"):
        FlyingChairs(tmp_path, "all")


@pytest.fixture
def things(tmp_path: Path, paint: Paint, motion: Motion) -> Path:
    """Two sequences of three and two frames; right frames are 100 brighter, final ones 50; each frame has two flows."""
    for letter, sequence, frames in (("A", "0000", (6, 7, 8)), ("C", "0012", (9, 10))):
        for frame in frames:
            for camera, brighter in (("left", 0), ("right", 100)):
                for name, more in (("clean", 0), ("final", 50)):
                    folder = tmp_path / f"frames_{name}pass" / "TRAIN" / letter / sequence / camera
                    paint(folder / f"{frame:04d}.png", frame + brighter + more)
                for way, sign in (("Future", 1), ("Past", -1)):
                    folder = tmp_path / "optical_flow" / "TRAIN" / letter / sequence / f"into_{way.lower()}" / camera
                    name = f"OpticalFlowInto{way}_{frame:04d}_{camera[0].upper()}.pfm"
                    write_flow(folder / name, motion(sign * (frame + brighter)))
    return tmp_path


def test_things_into_the_future_start_at_frame_i(things: Path, motion: Motion) -> None:
    data = FlyingThings3D(things, "train", direction="future")
    assert data.names == (
        "clean/A/0000/left/0006-0007",
        "clean/A/0000/left/0007-0008",
        "clean/C/0012/left/0009-0010",
    )
    assert (gray(data[1].first), gray(data[1].second)) == (7, 8)
    expect_motion(data[1], motion(7))


def test_things_into_the_past_start_at_frame_i_plus_1(things: Path, motion: Motion) -> None:
    data = FlyingThings3D(things, "train", direction="past", camera="right", render_pass="final")
    assert data.names[0] == "final/A/0000/right/0007-0006" and len(data) == 3
    assert (gray(data[0].first), gray(data[0].second)) == (157, 156)
    expect_motion(data[0], motion(-107))


def test_things_of_both_passes_and_directions_are_all_there(things: Path) -> None:
    data = FlyingThings3D(things, "train", render_pass="both")
    assert len(data) == len(set(data.names)) == 12


def test_a_flow_that_is_missing_is_named_when_it_is_read(things: Path) -> None:
    place = "optical_flow/TRAIN/A/0000/into_future/left/OpticalFlowIntoFuture_0006_L.pfm"
    (things / place).unlink()
    data = FlyingThings3D(things, "train", direction="future")
    assert len(data) == 3
    with pytest.raises(InputError, match=rf"{place} does not exist, but the flow of clean/A/0000/left/0006-0007 was"):
        data[0]


@pytest.mark.parametrize(
    ("frame", "place", "what"), [(7, 0, "second image"), (7, 1, "first image"), (8, 1, "second image")]
)
def test_a_frame_that_is_missing_is_named_when_it_is_read(things: Path, frame: int, place: int, what: str) -> None:
    (things / f"frames_cleanpass/TRAIN/A/0000/left/{frame:04d}.png").unlink()
    data = FlyingThings3D(things, "train", direction="future")
    assert len(data) == 3
    with pytest.raises(
        InputError, match=rf"left/{frame:04d}\.png does not exist, but the {what} of clean/A/0000/left/"
    ):
        data[place]


def test_things_without_a_folder_or_with_an_unknown_option_are_refused(things: Path) -> None:
    with pytest.raises(InputError, match=r"optical_flow/TEST does not exist, .* holds optical_flow/TEST/\."):
        FlyingThings3D(things, "test")
    with pytest.raises(InputError, match=r"camera is 'middle'; choose one of left, right\."):
        FlyingThings3D(things, "train", camera="middle")
    with pytest.raises(InputError, match=r"render_pass is 'albedo'; choose one of clean, final, both\."):
        FlyingThings3D(things, "train", render_pass="albedo")


@pytest.fixture
def sintel(tmp_path: Path, paint: Paint, motion: Motion) -> Path:
    """alley_1 has frames 1, 2, 3 and 10, 11 and the flows of 1, 2 and 10; one test scene."""
    for frame in (1, 2, 3, 10, 11):
        paint(tmp_path / f"training/clean/alley_1/frame_{frame:04d}.png", frame)
        paint(tmp_path / f"training/final/alley_1/frame_{frame:04d}.png", 50 + frame)
    for frame in (1, 2, 10):
        write_flow(tmp_path / f"training/flow/alley_1/frame_{frame:04d}.flo", motion(frame))
    for frame in (1, 2):
        paint(tmp_path / f"test/clean/wall/frame_{frame:04d}.png", 90 + frame)
        paint(tmp_path / f"test/final/wall/frame_{frame:04d}.png", 190 + frame)
    return tmp_path


def test_sintel_pairs_are_frames_that_follow_one_another(sintel: Path, motion: Motion) -> None:
    data = Sintel(sintel, "train", render_pass="clean")
    assert data.names == tuple(f"clean/alley_1/frame_{frame:04d}" for frame in (1, 2, 10))
    assert (gray(data[2].first), gray(data[2].second)) == (10, 11)
    expect_motion(data[2], motion(10))
    assert data[2].occlusion is None


def test_sintel_of_both_passes_gives_the_clean_one_first(sintel: Path) -> None:
    data = Sintel(sintel)
    assert len(data) == 6
    assert data.names[2:4] == ("clean/alley_1/frame_0010", "final/alley_1/frame_0001")
    assert gray(data[3].first) == 51


@pytest.mark.parametrize(
    ("place", "index", "what"),
    [
        ("clean/alley_1/frame_0001.png", 0, "first image"),
        ("clean/alley_1/frame_0003.png", 1, "second image"),
        ("flow/alley_1/frame_0010.flo", 2, "flow"),
    ],
)
def test_sintel_misses_a_file_when_it_is_read(sintel: Path, place: str, index: int, what: str) -> None:
    (sintel / "training" / place).unlink()
    data = Sintel(sintel, "train", render_pass="clean")
    assert len(data) == 3
    with pytest.raises(InputError, match=f"{place} does not exist, but the {what} of clean/alley_1/frame_"):
        data[index]


def test_sintel_masks_say_what_is_hidden_and_what_is_not_valid(sintel: Path, paint: Paint) -> None:
    hidden, invalid = np.zeros((2, 4, 6), dtype=np.uint8)
    hidden[1, 2], invalid[3, 5] = 255, 255
    still = np.zeros((4, 6, 2), dtype=np.float32)
    still[0, 0], still[0, 1], still[2, 3], still[3, 5] = (-0.5, 0), (4, 0), (0, 1.5), (9, 9)
    write_flo(sintel / "training/flow/alley_1/frame_0001.flo", still)
    for frame in (1, 2, 10):
        paint(sintel / f"training/occlusions/alley_1/frame_{frame:04d}.png", hidden)
        paint(sintel / f"training/invalid/alley_1/frame_{frame:04d}.png", invalid)
    sample = Sintel(sintel, "train", render_pass="clean")[0]
    # Hidden by the mask, or leaving to the left or below; (0, 1) stops at the last column, (3, 5) is not known.
    assert sample.occlusion.nonzero().tolist() == [[0, 0, 0, 0], [0, 0, 1, 2], [0, 0, 2, 3]]
    assert (~sample.valid).nonzero().tolist() == [[0, 0, 3, 5]]
    assert sample.flow[0, :, 3, 5].tolist() == [0, 0]
    assert sample.flow[0, :, 2, 3].tolist() == [0, 1.5]


def test_sintel_masks_are_expected_for_every_pair_where_there_are_any(sintel: Path) -> None:
    (sintel / "training/invalid").mkdir()
    with pytest.raises(InputError, match=r"invalid/alley_1/frame_0001\.png does not exist, but the mask of invalid"):
        Sintel(sintel, "train")[0]


def test_the_test_split_of_sintel_has_no_truth(sintel: Path) -> None:
    data = Sintel(sintel, "test")
    assert data.names == ("clean/wall/frame_0001", "final/wall/frame_0001")
    assert type(data[1]) is FlowPair
    assert (gray(data[1].first), gray(data[1].second)) == (191, 192)


def test_a_pair_and_its_flow_have_one_size(sintel: Path, paint: Paint) -> None:
    write_flo(sintel / "training/flow/alley_1/frame_0001.flo", np.zeros((5, 6, 2)))
    paint(sintel / "training/clean/alley_1/frame_0003.png", size=(4, 7))
    data = Sintel(sintel, "train", render_pass="clean")
    with pytest.raises(InputError, match=r"frame_0001\.flo is 6x5 but .*frame_0001\.png is 6x4; "):
        data[0]
    with pytest.raises(InputError, match=r"frame_0003\.png is 7x4 but .*frame_0002\.png is 6x4; "):
        data[1]


def test_sintel_without_pairs_or_folders_says_so(tmp_path: Path, paint: Paint) -> None:
    with pytest.raises(InputError, match=r"the folder that holds training/clean/\."):
        Sintel(tmp_path, "train")
    paint(tmp_path / "training/clean/alley_1/frame_0001.png")
    (tmp_path / "training/flow").mkdir()
    with pytest.raises(InputError, match=r"training holds no two frames that follow one another"):
        Sintel(tmp_path, "train", render_pass="clean")


def test_middlebury_leaves_out_scenes_without_truth_and_pixels_without_motion(
    tmp_path: Path, paint: Paint, motion: Motion
) -> None:
    for scene in ("Venus", "DogDance"):
        paint(tmp_path / "other-data" / scene / "frame10.png", 10)
        paint(tmp_path / "other-data" / scene / "frame11.png", 11)
    flow = motion(0)
    flow[2, 3, 1] = 1.66666e9
    write_flow(tmp_path / "other-gt-flow" / "Venus" / "flow10.flo", flow)
    data = Middlebury(tmp_path)
    assert data.names == ("Venus",)
    assert (gray(data[0].first), gray(data[0].second)) == (10, 11)
    assert (~data[0].valid).nonzero().tolist() == [[0, 0, 2, 3]]
    assert data[0].flow[0, :, 2, 3].tolist() == [0, 0]
    assert data[0].flow[0, :, 0, 0].tolist() == [-3, -2.75]
