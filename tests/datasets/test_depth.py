"""KITTI by the Eigen lists, Sintel and Virtual KITTI 2: files on disk to meters."""

from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.datasets.depth import KittiEigen, SintelDepth, Vkitti2Depth
from protoformer.errors import InputError
from protoformer.io.formats import Camera, write_cam, write_dpt
from protoformer.io.image import write_image

HEIGHT, WIDTH = 3, 5
DRIVE = "2011_09_26_drive_0002_sync"


def write_rgb(path: Path, gray: int = 51) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, np.full((HEIGHT, WIDTH, 3), gray, dtype=np.uint8))


def write_steps(path: Path, first: int) -> None:
    """A 16-bit png with `first` in its first pixel, 0 in the second, 256 in the others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = np.full((HEIGHT, WIDTH), 256, dtype=np.uint16)
    stored[0, :2] = first, 0
    write_image(path, stored)


def eigen_line(frame: int, truth: str | None = None, focal: str = "721.5377") -> str:
    end = f"{DRIVE}/proj_depth/groundtruth/image_02/{frame:010d}.png"
    return f"2011_09_26/{DRIVE}/image_02/data/{frame:010d}.png {truth or end} {focal}\n"


@pytest.fixture
def kitti(tmp_path: Path) -> Path:
    """Frames 3 to 8, of which 3 and 4 have no truth; the truth of frame n starts with n x 256."""
    for frame in range(3, 9):
        write_rgb(tmp_path / f"2011_09_26/{DRIVE}/image_02/data/{frame:010d}.png", 10 * frame)
    for frame in range(5, 9):
        part = "val" if frame < 8 else "train"
        write_steps(tmp_path / f"{part}/{DRIVE}/proj_depth/groundtruth/image_02/{frame:010d}.png", 256 * frame)
    lines = eigen_line(3, "None") + eigen_line(7) + eigen_line(4, "None", "707.0912") + eigen_line(5) + "\n"
    (tmp_path / "eigen_test_files_with_gt.txt").write_text(lines)
    return tmp_path


class TestKittiEigen:
    def test_truth_belongs_to_the_frame_of_its_name(self, kitti: Path) -> None:
        data = KittiEigen(kitti)
        assert data.names == (f"{DRIVE}/image_02/0000000007", f"{DRIVE}/image_02/0000000005")
        for sample, frame in zip(data, (7, 5), strict=True):
            assert torch.allclose(sample.image, torch.full((1, 3, HEIGHT, WIDTH), 10 * frame / 255))
            assert sample.depth[0, 0, 0].tolist() == [frame, 0, 1, 1, 1]
            assert sample.valid[0, 0, 0].tolist() == [True, False, True, True, True]
            assert sample.depth.shape == sample.valid.shape == (1, 1, HEIGHT, WIDTH)

    def test_frames_without_truth_are_counted(self, kitti: Path) -> None:
        data = KittiEigen(kitti)
        assert (len(data), data.without_truth) == (2, 2)

    def test_the_camera_looks_through_the_middle(self, kitti: Path) -> None:
        intrinsics = KittiEigen(kitti)[0].intrinsics
        assert intrinsics is not None
        assert torch.equal(intrinsics, torch.tensor([[[721.5377, 0, 2], [0, 721.5377, 1], [0, 0, 1]]]))

    def test_another_list_and_another_place_of_truth(self, kitti: Path, tmp_path: Path) -> None:
        truth = tmp_path / "annotated"
        truth.mkdir()
        for part in ("train", "val"):
            (kitti / part).rename(truth / part)
        (tmp_path / "mine.txt").write_text(eigen_line(8, f"train/{DRIVE}/any/place/0000000008.png"))
        data = KittiEigen(kitti, "train", list_file=tmp_path / "mine.txt", truth_root=truth)
        assert data[0].depth[0, 0, 0, 0] == 8

    def test_a_missing_list_is_an_error_that_names_it(self, kitti: Path) -> None:
        with pytest.raises(InputError, match=r"eigen_train_files_with_gt\.txt does not exist, but the Eigen list"):
            KittiEigen(kitti, "train")

    def test_a_frame_with_the_truth_of_another_is_refused(self, kitti: Path) -> None:
        (kitti / "eigen_test_files_with_gt.txt").write_text(eigen_line(5) + eigen_line(6, "x/0000000007.png"))
        with pytest.raises(InputError, match=r"line 2 of .* joins frame 0000000006 with the truth x/0000000007\.png"):
            KittiEigen(kitti)

    def test_truth_that_is_not_there_is_named(self, kitti: Path) -> None:
        (kitti / "eigen_test_files_with_gt.txt").write_text(eigen_line(3))
        with pytest.raises(InputError, match=r"0000000003\.png does not exist, nor does it under val/, but line 1 of"):
            KittiEigen(kitti)[0]

    def test_truth_that_is_nowhere_is_missed_at_once(self, kitti: Path) -> None:
        for part in ("train", "val"):
            (kitti / part).rename(kitti / f"other_{part}")
        with pytest.raises(InputError, match="train does not exist, but KITTI's annotated depth, there or in val, was"):
            KittiEigen(kitti)

    def test_an_image_that_is_not_there_is_named(self, kitti: Path) -> None:
        (kitti / f"2011_09_26/{DRIVE}/image_02/data/0000000007.png").unlink()
        data = KittiEigen(kitti)
        with pytest.raises(InputError, match=r"data/0000000007\.png does not exist, but the image that line 2 of"):
            data[0]
        assert data[1].depth[0, 0, 0, 0] == 5

    @pytest.mark.parametrize(
        "line", ["a.png b.png\n", eigen_line(5, focal="wide"), eigen_line(5, focal="0"), "a b 1\n"]
    )
    def test_a_line_of_another_kind_is_refused(self, kitti: Path, line: str) -> None:
        (kitti / "eigen_test_files_with_gt.txt").write_text(eigen_line(5) + line)
        with pytest.raises(InputError, match=r"line 2 of .* is not `<date>/<drive>/image_02/data"):
            KittiEigen(kitti)

    def test_a_list_without_any_truth_is_refused(self, kitti: Path) -> None:
        (kitti / "eigen_test_files_with_gt.txt").write_text(eigen_line(3, "None"))
        with pytest.raises(InputError, match="holds no frames with truth"):
            KittiEigen(kitti)


INTRINSICS = np.array([[1120.0, 0, 511.5], [0, 1120, 217.5], [0, 0, 1]])


@pytest.fixture
def sintel(tmp_path: Path) -> Path:
    training = tmp_path / "training"
    depth = np.arange(HEIGHT * WIDTH, dtype=np.float32).reshape(HEIGHT, WIDTH)
    depth[2, 4] = np.inf
    for scene, frames in (("alley_1", 2), ("cave_2", 1)):
        for kind in ("depth", "camdata_left"):
            (training / kind / scene).mkdir(parents=True)
        for frame in range(1, frames + 1):
            name = f"{scene}/frame_{frame:04d}"
            write_rgb(training / "clean" / f"{name}.png", 51)
            write_rgb(training / "final" / f"{name}.png", 102)
            write_dpt(training / "depth" / f"{name}.dpt", depth + frame - 1)
            write_cam(training / "camdata_left" / f"{name}.cam", Camera(INTRINSICS, np.eye(3, 4)))
    return tmp_path


class TestSintelDepth:
    def test_depth_image_and_camera_belong_together(self, sintel: Path) -> None:
        data = SintelDepth(sintel)
        assert data.names == ("final/alley_1/frame_0001", "final/alley_1/frame_0002", "final/cave_2/frame_0001")
        sample = data[1]
        expected = torch.arange(1.0, 16.0)
        expected[-1] = 0
        assert torch.equal(sample.depth.flatten(), expected)
        assert torch.equal(sample.valid.flatten(), expected > 0)
        assert torch.equal(sample.image, torch.full((1, 3, HEIGHT, WIDTH), 102 / 255))
        assert sample.intrinsics is not None
        assert torch.equal(sample.intrinsics, torch.from_numpy(INTRINSICS).float()[None])

    def test_zero_and_infinity_are_not_known(self, sintel: Path) -> None:
        valid = SintelDepth(sintel)[0].valid.flatten()
        assert valid.tolist() == [False] + [True] * 13 + [False]

    @pytest.mark.parametrize(("render_pass", "gray", "count"), [("clean", 51, 3), ("final", 102, 3), ("both", 51, 6)])
    def test_a_pass_is_chosen(self, sintel: Path, render_pass: str, gray: int, count: int) -> None:
        data = SintelDepth(sintel, render_pass=render_pass)
        assert len(data) == count
        assert torch.equal(data[0].image, torch.full((1, 3, HEIGHT, WIDTH), gray / 255))

    def test_without_cameras_there_are_no_intrinsics(self, sintel: Path) -> None:
        (sintel / "training" / "camdata_left").rename(sintel / "elsewhere")
        assert SintelDepth(sintel)[0].intrinsics is None

    def test_what_is_missing_is_said(self, sintel: Path) -> None:
        (sintel / "training/camdata_left/cave_2/frame_0001.cam").unlink()
        with pytest.raises(InputError, match=r"frame_0001\.cam does not exist, but the camera of final/cave_2/frame"):
            SintelDepth(sintel)[2]
        (sintel / "training/camdata_left").rename(sintel / "training/elsewhere")
        (sintel / "training/final/cave_2/frame_0001.png").unlink()
        with pytest.raises(InputError, match=r"frame_0001\.png does not exist, but the image of final/cave_2/frame_0"):
            SintelDepth(sintel)[2]
        (sintel / "training/depth/alley_1/frame_0001.dpt").unlink()
        with pytest.raises(InputError, match=r"frame_0001\.dpt does not exist, but the depth of final/alley_1/f"):
            SintelDepth(sintel)[0]
        assert len(SintelDepth(sintel)) == 3
        with pytest.raises(InputError, match="training does not exist, but the training part of Sintel"):
            SintelDepth(sintel / "training")

    def test_there_is_one_split_and_two_passes(self, sintel: Path) -> None:
        with pytest.raises(InputError, match="the split is 'test'; choose one of train"):
            SintelDepth(sintel, "test")
        with pytest.raises(InputError, match="render_pass is 'albedo'; choose one of clean, final, both"):
            SintelDepth(sintel, render_pass="albedo")


@pytest.fixture
def vkitti(tmp_path: Path) -> Path:
    for scene, variant, count in (("Scene01", "clone", 2), ("Scene01", "fog", 1), ("Scene20", "clone", 1)):
        for camera in (0, 1):
            folder = tmp_path / scene / variant / "frames"
            for frame in range(count):
                write_rgb(folder / "rgb" / f"Camera_{camera}" / f"rgb_{frame:05d}.jpg")
                write_steps(
                    folder / "depth" / f"Camera_{camera}" / f"depth_{frame:05d}.png", 1234 + frame + 100 * camera
                )
    return tmp_path


class TestVkitti2Depth:
    def test_centimeters_become_meters(self, vkitti: Path) -> None:
        sample = Vkitti2Depth(vkitti)[1]
        assert torch.allclose(sample.depth[0, 0, 0], torch.tensor([12.35, 0, 2.56, 2.56, 2.56]))
        assert sample.valid[0, 0, 0].tolist() == [True, False, True, True, True]
        assert sample.image.shape == (1, 3, HEIGHT, WIDTH)
        assert sample.intrinsics is not None
        assert torch.equal(sample.intrinsics, torch.tensor([[[725.0087, 0, 620.5], [0, 725.0087, 187], [0, 0, 1]]]))

    def test_the_sky_has_no_depth(self, vkitti: Path) -> None:
        path = vkitti / "Scene01/clone/frames/depth/Camera_0/depth_00000.png"
        for stored, known in ((65535, False), (65534, True)):
            write_steps(path, stored)
            sample = Vkitti2Depth(vkitti)[0]
            assert sample.valid[0, 0, 0, 0].item() is known
            assert torch.allclose(sample.depth[0, 0, 0, 0], torch.tensor(655.34 if known else 0.0))

    def test_scenes_variants_and_cameras_are_chosen(self, vkitti: Path) -> None:
        frames = [f"Scene01/clone/Camera_0/{frame:05d}" for frame in (0, 1)]
        assert Vkitti2Depth(vkitti).names == (*frames, "Scene01/fog/Camera_0/00000", "Scene20/clone/Camera_0/00000")
        assert Vkitti2Depth(vkitti, scenes=["Scene20"]).names == ("Scene20/clone/Camera_0/00000",)
        assert Vkitti2Depth(vkitti, scenes="Scene01", variants="fog, clone").names[:2] == tuple(frames)
        right = Vkitti2Depth(vkitti, scenes=["Scene20"], camera=1)
        assert torch.allclose(right[0].depth[0, 0, 0, 0], torch.tensor(13.34))

    def test_an_image_without_depth_is_an_error(self, vkitti: Path) -> None:
        (vkitti / "Scene01/clone/frames/depth/Camera_0/depth_00001.png").unlink()
        with pytest.raises(
            InputError, match=r"depth_00001\.png does not exist, but the depth of Scene01/clone/Camera_0/00001"
        ):
            Vkitti2Depth(vkitti)[1]

    def test_depth_without_an_image_is_an_error(self, vkitti: Path) -> None:
        (vkitti / "Scene01/clone/frames/rgb/Camera_0/rgb_00000.jpg").unlink()
        with pytest.raises(
            InputError, match=r"rgb_00000\.jpg does not exist, but the image of Scene01/clone/Camera_0/00000"
        ):
            Vkitti2Depth(vkitti)[0]

    def test_what_is_missing_is_said(self, vkitti: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="holds no Scene02; choose among Scene01, Scene20"):
            Vkitti2Depth(vkitti, scenes=["Scene02"])
        with pytest.raises(InputError, match="holds no folders Scene01, Scene02"):
            Vkitti2Depth(vkitti / "Scene01")
        with pytest.raises(InputError, match="camera is '2'; choose one of 0, 1"):
            Vkitti2Depth(vkitti, camera=2)
