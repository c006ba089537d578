"""KITTI 2012 and 2015, HD1K and Virtual KITTI 2, each on a small tree in its official layout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from vkitti2_writers import write_vkitti2_flow

from protoformer.datasets.flow import Hd1k, Kitti2012, Kitti2015, Vkitti2
from protoformer.errors import InputError
from protoformer.io.formats import write_kitti_flow
from protoformer.synthetic.samples import FlowPair

Paint = Callable[..., Path]
Motion = Callable[[int], np.ndarray]
HOLE = np.ones((4, 6), dtype=np.bool_)
HOLE[0, 1] = False


def grays(sample: FlowPair) -> tuple[int, int]:
    """The grays, 0 .. 255, of both images' first pixels."""
    return round(float(sample.first[0, 0, 0, 0]) * 255), round(float(sample.second[0, 0, 0, 0]) * 255)


def write_truth(path: Path, flow: np.ndarray) -> None:
    """A KITTI flow with one pixel unknown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_kitti_flow(path, flow, HOLE)


def expect_truth(sample: FlowPair, flow: np.ndarray) -> None:
    assert (~sample.valid).nonzero().tolist() == [[0, 0, 0, 1]]
    np.testing.assert_array_equal(sample.flow[0].numpy(), np.where(HOLE, flow.transpose(2, 0, 1), 0))


@pytest.fixture
def kitti2012(tmp_path: Path, paint: Paint, motion: Motion) -> Path:
    """27 gray with both truths, 45 in color and gray with noc alone."""
    for folder, number, base in (("image_0", 27, 10), ("image_0", 45, 20), ("colored_0", 45, 30)):
        for frame in (10, 11):
            paint(tmp_path / "training" / folder / f"{number:06d}_{frame}.png", base + frame)
    write_truth(tmp_path / "training/flow_occ/000027_10.png", motion(1))
    write_truth(tmp_path / "training/flow_noc/000027_10.png", motion(2))
    write_truth(tmp_path / "training/flow_noc/000045_10.png", motion(3))
    return tmp_path


def test_kitti_2012_reads_the_truth_of_all_pixels_and_leaves_out_pairs_without(kitti2012: Path, motion: Motion) -> None:
    data = Kitti2012(kitti2012, "train")
    assert data.names == ("000027",)
    assert grays(data[0]) == (20, 21)
    expect_truth(data[0], motion(1))


def test_kitti_2012_prefers_color(kitti2012: Path, motion: Motion) -> None:
    data = Kitti2012(kitti2012, "train", truth="noc")
    assert data.names == ("000027", "000045")
    expect_truth(data[0], motion(2))
    expect_truth(data[1], motion(3))
    assert grays(data[1]) == (40, 41)
    assert grays(Kitti2012(kitti2012, "train", truth="noc", images="image_0")[1]) == (30, 31)


def test_kitti_2012_with_no_truth_at_all_says_so(kitti2012: Path) -> None:
    (kitti2012 / "training/flow_occ/000027_10.png").unlink()
    with pytest.raises(InputError, match=r"flow_occ holds no flows \*_10\.png"):
        Kitti2012(kitti2012, "train")
    (kitti2012 / "training/flow_occ").rmdir()
    with pytest.raises(InputError, match=r"training/flow_occ does not exist, but the folder of flows was expected"):
        Kitti2012(kitti2012, "train")


def test_a_second_image_that_is_missing_is_named(kitti2012: Path) -> None:
    (kitti2012 / "training/image_0/000027_11.png").unlink()
    with pytest.raises(InputError, match=r"000027_11\.png does not exist, but the second image of 000027 was expected"):
        Kitti2012(kitti2012, "train")[0]


def test_kitti_2015_reads_image_2_and_its_test_split_has_no_truth(tmp_path: Path, paint: Paint, motion: Motion) -> None:
    for number in (0, 2, 10):
        for frame in (9, 10, 11, 12):  # the multi-view extension has more frames than the two
            paint(tmp_path / f"training/image_2/{number:06d}_{frame}.png", number + frame)
            paint(tmp_path / f"testing/image_2/{number:06d}_{frame}.png", 100 + number + frame)
        write_truth(tmp_path / f"training/flow_occ/{number:06d}_10.png", motion(number))
    train, test = Kitti2015(tmp_path, "train"), Kitti2015(tmp_path, "test")
    assert train.names == test.names == ("000000", "000002", "000010")
    assert grays(train[2]) == (20, 21)
    expect_truth(train[2], motion(10))
    assert type(test[1]) is FlowPair
    assert grays(test[1]) == (112, 113)


def test_a_test_image_without_its_partner_is_named(tmp_path: Path, paint: Paint) -> None:
    for name in ("000000_10.png", "000000_11.png", "000001_10.png"):
        paint(tmp_path / "testing/image_2" / name)
    with pytest.raises(
        InputError,
        match=r"2 files \*_10\.png but 1 files \*_11\.png, .* 000001_11\.png is missing beside 000001_10\.png",
    ):
        Kitti2015(tmp_path, "test")


def test_kitti_without_images_says_where_they_were_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training does not exist, .* the folder that holds training/\."):
        Kitti2012(tmp_path, "train")
    (tmp_path / "training").mkdir()
    with pytest.raises(InputError, match=r"the folder that holds training/colored_0/\."):
        Kitti2012(tmp_path, "train")
    with pytest.raises(InputError, match=r"images is 'image_2'; choose one of colored_0, image_0\."):
        Kitti2012(tmp_path, "train", images="image_2")


@pytest.fixture
def hd1k(tmp_path: Path, paint: Paint, motion: Motion) -> Path:
    for sequence, frame in ((0, 9), (0, 10), (0, 11), (3, 0), (3, 1)):
        paint(tmp_path / f"hd1k_input/image_2/{sequence:06d}_{frame:04d}.png", 10 * sequence + frame)
        write_truth(tmp_path / f"hd1k_flow_gt/flow_occ/{sequence:06d}_{frame:04d}.png", motion(sequence + frame))
        paint(tmp_path / f"hd1k_challenge/image_2/{sequence:06d}_{frame:04d}.png", 100 + frame)
    return tmp_path


def test_hd1k_pairs_stay_within_a_sequence(hd1k: Path, motion: Motion) -> None:
    data = Hd1k(hd1k, "train")
    assert data.names == ("000000_0009", "000000_0010", "000003_0000")
    assert grays(data[2]) == (30, 31)
    expect_truth(data[2], motion(3))


def test_hd1k_pairs_are_neighbors_whatever_their_numbers(hd1k: Path) -> None:
    for folder in ("hd1k_input/image_2", "hd1k_flow_gt/flow_occ"):
        (hd1k / folder / "000000_0010.png").unlink()
    data = Hd1k(hd1k, "train")
    assert data.names == ("000000_0009", "000003_0000")
    assert grays(data[0]) == (9, 11)


@pytest.mark.parametrize(("folder", "what"), [("hd1k_flow_gt/flow_occ", "flow"), ("hd1k_input/image_2", "first image")])
def test_hd1k_misses_a_file_when_it_is_read(hd1k: Path, folder: str, what: str) -> None:
    (hd1k / folder / "000000_0010.png").unlink()
    data = Hd1k(hd1k, "train")
    assert len(data) == 3
    with pytest.raises(InputError, match=rf"0010\.png does not exist, but the {what} of 000000_0010 was expected"):
        data[1]


def test_the_challenge_of_hd1k_has_no_truth(hd1k: Path) -> None:
    data = Hd1k(hd1k, "test")
    assert len(data) == 3
    assert type(data[0]) is FlowPair
    assert grays(data[0]) == (109, 110)


def test_hd1k_without_its_folders_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder that holds hd1k_input/image_2/\."):
        Hd1k(tmp_path, "train")


# The format's ends, which it holds exactly: (width - 1, height - 1) of a 6x4 image.
ALL_RIGHT, ALL_LEFT = np.full((4, 6, 2), (5.0, 3.0)), np.full((4, 6, 2), (-5.0, 3.0))


@pytest.fixture
def vkitti2(tmp_path: Path, paint: Paint) -> Path:
    """Three frames of two scenes in two variants; forward flow of all but the last, backward of all but the first."""
    for place, (scene, variant) in enumerate(
        [("Scene01", "clone"), ("Scene01", "fog"), ("Scene20", "clone"), ("Scene20", "fog")]
    ):
        frames = tmp_path / scene / variant / "frames"
        for camera in (0, 1):
            for frame in range(3):
                paint(frames / f"rgb/Camera_{camera}/rgb_{frame:05d}.png", 20 * place + 100 * camera + frame)
            for folder, name, numbers, flow in (
                ("forwardFlow", "flow", (0, 1), ALL_RIGHT),
                ("backwardFlow", "backwardFlow", (1, 2), ALL_LEFT),
            ):
                for number in numbers:
                    path = frames / f"{folder}/Camera_{camera}/{name}_{number:05d}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_vkitti2_flow(path, flow, HOLE)
    return tmp_path


def test_vkitti2_goes_forward_from_frame_i(vkitti2: Path) -> None:
    data = Vkitti2(vkitti2)
    assert len(data) == len(set(data.names)) == 8
    assert data.names[3] == "Scene01/fog/Camera_0/forward/00001"
    assert grays(data[3]) == (21, 22)
    expect_truth(data[3], ALL_RIGHT)


def test_vkitti2_goes_backward_from_frame_i(vkitti2: Path) -> None:
    data = Vkitti2(vkitti2, scenes="Scene20", variants=["clone"], camera=1, direction="backward")
    assert data.names == ("Scene20/clone/Camera_1/backward/00001", "Scene20/clone/Camera_1/backward/00002")
    assert grays(data[0]) == (141, 140)
    expect_truth(data[0], ALL_LEFT)


def test_vkitti2_reads_backward_flow_that_is_called_flow(vkitti2: Path) -> None:
    folder = vkitti2 / "Scene01/clone/frames/backwardFlow/Camera_0"
    (folder / "backwardFlow_00001.png").rename(folder / "flow_00001.png")
    data = Vkitti2(vkitti2, scenes="Scene01", variants="clone", direction="backward")
    assert len(data) == 2
    expect_truth(data[0], ALL_LEFT)


@pytest.mark.parametrize(
    ("place", "number", "what"),
    [
        ("rgb/Camera_0/rgb_00002.jpg", 1, "second image"),
        ("rgb/Camera_0/rgb_00000.jpg", 0, "first image"),
        ("forwardFlow/Camera_0/flow_00001.png", 1, "flow"),
    ],
)
def test_vkitti2_misses_a_file_when_it_is_read(vkitti2: Path, place: str, number: int, what: str) -> None:
    path = vkitti2 / "Scene01/clone/frames" / place
    (path if path.exists() else path.with_suffix(".png")).unlink()
    data = Vkitti2(vkitti2, scenes="Scene01", variants="clone")
    assert len(data) == 2
    with pytest.raises(InputError, match=f"{path.name} does not exist, but the {what} of Scene01/clone/Camera_0/forwa"):
        data[number]


def test_vkitti2_misses_backward_flow_by_its_official_name(vkitti2: Path) -> None:
    (vkitti2 / "Scene01/clone/frames/backwardFlow/Camera_0/backwardFlow_00002.png").unlink()
    with pytest.raises(InputError, match=r"Camera_0/backwardFlow_00002\.png does not exist, but the flow of"):
        Vkitti2(vkitti2, scenes="Scene01", variants="clone", direction="backward")[1]


def test_vkitti2_of_some_scenes_variants_and_both_directions(vkitti2: Path) -> None:
    data = Vkitti2(vkitti2, scenes="Scene20, Scene01", variants="fog", direction="both")
    assert len(data) == 8
    assert data.names[0] == "Scene01/fog/Camera_0/forward/00000"


def test_a_scene_that_is_not_there_is_named(vkitti2: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(InputError, match=r"holds no Scene02; choose among Scene01, Scene20\."):
        Vkitti2(vkitti2, scenes=["Scene02"])
    with pytest.raises(InputError, match=r"Scene01 holds no rain; choose among clone, fog\."):
        Vkitti2(vkitti2, variants="rain")
    with pytest.raises(InputError, match=r"holds no folders Scene01, Scene02 and so on"):
        Vkitti2(tmp_path_factory.mktemp("empty"))
