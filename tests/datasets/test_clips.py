"""What a reader finds in a folder of clips is what was rendered, and a second run writes only what is missing."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.datasets import clips as clips_module
from protoformer.datasets.clips import (
    LAYOUTS,
    clip_files,
    clip_name,
    default_layout,
    find_target,
    write_clip,
    write_clips,
)
from protoformer.datasets.registry import check_dataset, open_dataset
from protoformer.errors import InputError
from protoformer.geometry.warps import pixel_grid, rotation
from protoformer.io.formats import read_cam, read_dpt, read_flo
from protoformer.io.image import read_image
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import depth_sample, flow_sample
from protoformer.synthetic.renderer import Renderer, instance_boxes
from protoformer.synthetic.texture_bank import TextureBank, procedural_bank
from protoformer.video.reader import read_frames

SIZE = (48, 64)


@pytest.fixture(scope="module")
def bank() -> TextureBank:
    return procedural_bank(side=64, each=2)


def make_scenes(family: str, bank: TextureBank, seed: int = 0, size: tuple[int, int] = SIZE) -> SyntheticScenes:
    return SyntheticScenes(family, seed, size, bank=bank)


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


def rounded(image: torch.Tensor) -> torch.Tensor:
    return (image * 255).round() / 255


@pytest.fixture(scope="module")
def sintel_root(bank: TextureBank, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes 1 and 17 of objects, three frames each."""
    root = tmp_path_factory.mktemp("sintel")
    for index in (1, 17):
        assert write_clip(make_scenes("objects", bank), index, root, "sintel", 3)
    return root


@pytest.fixture(scope="module")
def renderer(bank: TextureBank) -> Renderer:
    """Of scene 17."""
    return make_scenes("objects", bank).renderer([17])


class TestSintel:
    def test_files_are_those_of_the_official_tree(self, sintel_root: Path) -> None:
        counts = {}
        for folder in (sintel_root / "training").iterdir():
            assert {path.name for path in folder.iterdir()} == {"objects_0_000001", "objects_0_000017"}
            names = sorted(path.name for path in (folder / "objects_0_000017").iterdir())
            counts[folder.name] = (len(names), names[0])
        assert counts == {
            "clean": (3, "frame_0001.png"),
            "final": (3, "frame_0001.png"),
            "depth": (3, "frame_0001.dpt"),
            "camdata_left": (3, "frame_0001.cam"),
            "instances": (3, "frame_0001.png"),
            "flow": (2, "frame_0001.flo"),
            "occlusions": (2, "frame_0001.png"),
            "invalid": (2, "frame_0001.png"),
            "flow_backward": (2, "frame_0002.flo"),
        }

    @pytest.mark.parametrize("render_pass", ["clean", "final"])
    def test_flow_is_read_as_it_was_rendered(self, sintel_root: Path, renderer: Renderer, render_pass: str) -> None:
        read = open_dataset("sintel", sintel_root, "train", render_pass=render_pass)
        assert len(read) == 4
        moved = 0
        for frame in range(2):
            with torch.no_grad():
                made = flow_sample(renderer, render_pass, frame)
            result = read[read.names.index(f"{render_pass}/objects_0_000017/frame_{frame + 1:04d}")]
            assert torch.equal(result.flow, made.flow)
            assert torch.equal(result.valid, made.valid)
            assert torch.equal(result.occlusion, made.occlusion)
            moved += int(made.occlusion.sum())
            for one, other in ((result.first, made.first), (result.second, made.second)):
                torch.testing.assert_close(one, rounded(other), rtol=0, atol=1e-6)
        assert moved

    def test_masks_mark_what_is_hidden_and_not_what_leaves(self, sintel_root: Path, renderer: Renderer) -> None:
        with torch.no_grad():
            made = flow_sample(renderer)
        mask = (
            torch.from_numpy(read_image(sintel_root / "training/occlusions/objects_0_000017/frame_0001.png")[..., 0])
            == 1
        )
        target = pixel_grid(*SIZE) + made.flow[0]
        stays = (target >= 0).all(dim=0) & (target[0] <= SIZE[1] - 1) & (target[1] <= SIZE[0] - 1)
        assert (~stays).any() and not (mask & ~stays & made.valid[0, 0]).any()
        assert torch.equal(mask | ~stays, made.occlusion[0, 0])

    def test_the_way_back_is_named_by_the_later_frame(self, sintel_root: Path, renderer: Renderer) -> None:
        rate = renderer.scenes.fps
        with torch.no_grad():
            motion = renderer.motion(renderer.view(1 / rate), renderer.view(0.0))
        stored = torch.from_numpy(read_flo(sintel_root / "training/flow_backward/objects_0_000017/frame_0002.flo"))
        known = motion.valid[0, 0]
        assert torch.equal(stored.permute(2, 0, 1)[:, known], motion.flow[0][:, known])
        assert (stored[~known] == clips_module.UNKNOWN_FLOW).all()

    @pytest.mark.parametrize("render_pass", ["clean", "final"])
    def test_depth_is_read_as_it_was_rendered(self, sintel_root: Path, renderer: Renderer, render_pass: str) -> None:
        read = open_dataset("sintel-depth", sintel_root, "train", render_pass=render_pass)
        assert len(read) == 6
        with torch.no_grad():
            made = depth_sample(renderer, render_pass, 2)
        result = read[read.names.index(f"{render_pass}/objects_0_000017/frame_0003")]
        assert torch.equal(result.depth, made.depth)
        assert torch.equal(result.valid, made.valid)
        assert torch.equal(result.intrinsics, made.intrinsics)
        torch.testing.assert_close(result.image, rounded(made.image), rtol=0, atol=1e-6)

    def test_the_sky_is_infinitely_far(self, bank: TextureBank, tmp_path: Path) -> None:
        write_clip(make_scenes("drive", bank), 0, tmp_path, "sintel", 2)
        depth = read_dpt(tmp_path / "training/depth/drive_0_000000/frame_0001.dpt")
        assert np.isinf(depth).any() and np.isfinite(depth).any()
        assert depth[np.isfinite(depth)].max() < 500

    def test_instances_keep_their_numbers(self, sintel_root: Path, renderer: Renderer) -> None:
        stored = read_image(sintel_root / "training/instances/objects_0_000017/frame_0001.png")[..., 0] * 65535
        with torch.no_grad():
            made = renderer.instances(renderer.view(0.0))[0, 0]
        assert torch.equal(torch.from_numpy(np.rint(stored)).long(), made)
        assert made.max() > 1

    def test_cameras_and_depth_explain_the_flow_of_what_stands_still(self, bank: TextureBank, tmp_path: Path) -> None:
        write_clip(make_scenes("room", bank), 3, tmp_path, "sintel", 2)
        folder, scene = tmp_path / "training", "room_0_000003"
        before, after = (read_cam(folder / "camdata_left" / scene / f"frame_000{number}.cam") for number in (1, 2))
        depth = read_dpt(folder / "depth" / scene / "frame_0001.dpt").astype(np.float64)
        flow = read_flo(folder / "flow" / scene / "frame_0001.flo")
        still = read_image(folder / "instances" / scene / "frame_0001.png")[..., 0] == 0
        pixels = np.concatenate((pixel_grid(*SIZE).double().numpy(), np.ones((1, *SIZE)))).reshape(3, -1)
        points = np.linalg.inv(before.intrinsics) @ pixels * depth.reshape(-1)
        placed = before.extrinsics[:, :3].T @ (points - before.extrinsics[:, 3:])
        seen = after.intrinsics @ (after.extrinsics @ np.concatenate((placed, np.ones((1, placed.shape[1])))))
        expected = (seen[:2] / seen[2] - pixels[:2]).reshape(2, *SIZE)
        error = np.abs(expected.transpose(1, 2, 0) - flow)[still]
        assert still.mean() > 0.5 and np.abs(flow[still]).max() > 0.1
        assert error.max() < 2e-3


class TestOtb:
    FRAMES = 4

    def test_the_box_is_that_of_the_whole_target(
        self, bank: TextureBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scenes, start = make_scenes("chase", bank), 15
        monkeypatch.setattr(clips_module, "find_target", lambda *_: (1, start))
        assert write_clip(scenes, 2, tmp_path, "otb", self.FRAMES)
        clips = open_dataset("otb", tmp_path, "all")
        assert clips.names == ("chase_0_000002",)
        assert check_dataset(clips).broken == ()
        sequence, renderer = clips[0], scenes.renderer([2])
        assert [path.name for path in sequence.frames] == ["0001.jpg", "0002.jpg", "0003.jpg", "0004.jpg"]
        for number in range(self.FRAMES):
            view = renderer.view((start + number) / renderer.scenes.fps)
            mask = renderer.amodal_mask(view.frame, 1)[:, :, SIZE[0] // 2 :, SIZE[1] // 2 :][:, :, : SIZE[0], : SIZE[1]]
            (expected,) = instance_boxes(mask.long(), 1)[0]
            assert sequence.boxes[number].tolist() == expected.tolist()
            seen = instance_boxes((renderer.instances(view) == 1).long(), 1)[0, 0]
            if torch.isfinite(seen).all():
                assert (seen[:2] >= expected[:2]).all() and (seen[:2] + seen[2:] <= expected[:2] + expected[2:]).all()
            image = torch.from_numpy(read_image(sequence.frames[number])).permute(2, 0, 1)
            assert (image - renderer.final(view)[0]).abs().mean() < 0.03

    def test_boxes_are_written_from_1_on(self, bank: TextureBank, tmp_path: Path) -> None:
        write_clip(make_scenes("chase", bank), 2, tmp_path, "otb", 2)
        lines = (tmp_path / "chase_0_000002/groundtruth_rect.txt").read_text().splitlines()
        assert all(re.fullmatch(r"\d+,\d+,\d+,\d+", line) for line in lines)
        x, y, _, _ = map(int, lines[0].split(","))
        assert open_dataset("otb", tmp_path, "all")[0].boxes[0, :2].tolist() == [x - 1, y - 1]

    def test_flags_tell_hidden_from_out_of_view(
        self, bank: TextureBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Frame 2: beyond the border. Frame 3: behind something. Frame 4: out of sight altogether."""
        boxes = iter([[5, 6, 7, 8], [-20, 6, 20, 8], [-2, -3, 7, 60], [torch.nan] * 4])
        shown = iter([1, 1, 0, 0, 0])
        monkeypatch.setattr(Renderer, "amodal_box", lambda *_: torch.tensor([next(boxes)], dtype=torch.float32))
        monkeypatch.setattr(Renderer, "instances", lambda *_: torch.full((1, 1, *SIZE), next(shown)))
        write_clip(make_scenes("chase", bank), 0, tmp_path, "otb", 4)
        folder = tmp_path / "chase_0_000000"
        assert (folder / "groundtruth_rect.txt").read_text().split() == ["6,7,7,8", "0,0,0,0", "1,1,5,48", "0,0,0,0"]
        assert (folder / "full_occlusion.txt").read_text() == "0,0,1,0\n"
        assert (folder / "out_of_view.txt").read_text() == "0,1,0,1\n"
        sequence = open_dataset("otb", tmp_path, "all")[0]
        assert sequence.present.tolist() == [True, False, True, False]
        assert sequence.boxes[1].isnan().all()

    def test_elsewhere_the_target_is_the_one_of_which_most_is_seen(self, bank: TextureBank) -> None:
        renderer = make_scenes("objects", bank).renderer([5])
        instance, start = find_target(renderer, 3)
        seen = torch.bincount(renderer.instances(renderer.view(0.0)).flatten())
        assert start == 0 and seen[1:].max() == seen[instance]

    def test_a_clip_begins_where_its_target_is_first_seen(
        self, bank: TextureBank, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renderer = make_scenes("chase", bank).renderer([0])
        maps = iter([torch.zeros(1, 1, *SIZE, dtype=torch.int64), torch.ones(1, 1, *SIZE, dtype=torch.int64)])
        monkeypatch.setattr(Renderer, "instances", lambda *_: next(maps))
        assert find_target(renderer, 5, 1) == (1, 1)

    def test_a_scene_without_a_target_is_left_out_and_remembered(
        self, bank: TextureBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clips_module, "MIN_TARGET_AREA", 2.0)
        result = write_clips(make_scenes("objects", bank), 2, tmp_path, "otb", 2)
        assert (result.clips, result.without_target) == ((), (0, 1))
        assert [path.name for path in tmp_path.iterdir()] == ["scenes.json"]
        monkeypatch.setattr(clips_module, "MIN_TARGET_AREA", 0.0)
        assert write_clips(make_scenes("objects", bank), 2, tmp_path, "otb", 2).without_target == (0, 1)


class TestDeepStab:
    def test_the_twins_are_the_shaky_and_the_steady_view(self, bank: TextureBank, tmp_path: Path) -> None:
        scenes = make_scenes("handheld", bank, size=(25, 33))
        write_clip(scenes, 4, tmp_path, "deepstab", 2)
        pairs = open_dataset("deepstab", tmp_path, "all")
        assert pairs.names == ("5",) and pairs[0].frames == 2
        renderer = scenes.renderer([4])
        for video, steady in ((pairs[0].unstable, False), (pairs[0].stable, True)):
            for number, frame in enumerate(read_frames(video, range(2))):
                view = renderer.view(number / renderer.scenes.fps, steady=steady)
                off = (torch.from_numpy(frame).permute(2, 0, 1) / 255 - renderer.final(view)[0]).abs().mean()
                assert off < 0.03
                other = renderer.final(renderer.view(number / renderer.scenes.fps, steady=not steady))[0]
                assert off < (torch.from_numpy(frame).permute(2, 0, 1) / 255 - other).abs().mean()

    def test_paths_are_the_poses_of_both_cameras(self, bank: TextureBank, tmp_path: Path) -> None:
        scenes = make_scenes("handheld", bank, size=(16, 24))
        write_clip(scenes, 0, tmp_path, "deepstab", 2)
        with (tmp_path / "paths" / "1.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        batch = scenes.scenes([0])
        assert [row["frame"] for row in rows] == ["0", "1"]
        time = torch.tensor([1 / batch.fps], dtype=torch.float64)
        assert float(rows[1]["time"]) == pytest.approx(float(time), rel=1e-8)
        for which, steady in (("shaky", False), ("steady", True)):
            turn, position = batch.camera.pose(time, steady)
            stored = torch.tensor([float(rows[1][f"{which}_{axis}"]) for axis in ("x", "y", "z", "rx", "ry", "rz")])
            torch.testing.assert_close(stored[:3].double(), position[0], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(rotation(stored[3:].double()), turn[0], rtol=0, atol=1e-6)

    def test_scenes_without_shake_get_some(self, bank: TextureBank, tmp_path: Path) -> None:
        scenes = make_scenes("room", bank, size=(16, 24))
        assert scenes.shake == 0
        write_clip(scenes, 0, tmp_path, "deepstab", 2)
        with (tmp_path / "paths" / "1.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert any(row["shaky_rx"] != row["steady_rx"] for row in rows)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["drive", "handheld"])
def test_any_family_goes_into_any_layout(bank: TextureBank, tmp_path: Path, family: str, layout: str) -> None:
    scenes = make_scenes(family, bank, size=(16, 24))
    if write_clip(scenes, 0, tmp_path, layout, 2):
        there = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert there == set(clip_files(scenes, 0, tmp_path, layout, 2))
        assert check_dataset(open_dataset(layout, tmp_path)).broken == ()
    else:
        assert layout == "otb"


def test_families_have_the_layout_that_suits_them() -> None:
    suited = {family: default_layout(family) for family in FAMILIES}
    assert suited == {
        "objects": "sintel", "drive": "sintel", "room": "sintel", "chase": "otb", "handheld": "deepstab"
    }  # fmt: skip


class TestFolder:
    def test_a_second_run_writes_nothing_new(self, bank: TextureBank, tmp_path: Path) -> None:
        first = write_clips(make_scenes("objects", bank, size=(16, 24)), 2, tmp_path, "sintel", 2)
        assert (first.written, first.existing) == ((0, 1), ())
        before = contents(tmp_path)
        second = write_clips(make_scenes("objects", bank, size=(16, 24)), 2, tmp_path, "sintel", 2)
        assert (second.written, second.existing, second.clips) == ((), (0, 1), (0, 1))
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("gone", [0, -1])
    def test_a_missing_file_brings_its_clip_back_and_no_other(
        self, bank: TextureBank, tmp_path: Path, gone: int
    ) -> None:
        scenes = make_scenes("objects", bank, size=(16, 24))
        write_clips(scenes, 2, tmp_path, "sintel", 2)
        before = contents(tmp_path)
        clip_files(scenes, 1, tmp_path, "sintel", 2)[gone].unlink()
        assert write_clips(scenes, 2, tmp_path, "sintel", 2).written == (1,)
        after = contents(tmp_path)
        assert {path: data for path, (_, data) in after.items()} == {path: data for path, (_, data) in before.items()}
        changed = {path for path in after if after[path] != before[path]}
        assert changed == {str(path) for path in clip_files(scenes, 1, tmp_path, "sintel", 2)}

    def test_the_count_may_grow(self, bank: TextureBank, tmp_path: Path) -> None:
        write_clips(make_scenes("objects", bank, size=(16, 24)), 1, tmp_path, "sintel", 2)
        before = contents(tmp_path)
        assert write_clips(make_scenes("objects", bank, size=(16, 24)), 2, tmp_path, "sintel", 2).written == (1,)
        assert before.items() <= contents(tmp_path).items()

    def test_progress_counts_images_and_ends_at_the_total(self, bank: TextureBank, tmp_path: Path) -> None:
        calls: list[tuple[int, int]] = []
        for _ in range(2):
            scenes = make_scenes("handheld", bank, size=(16, 24))
            write_clips(scenes, 2, tmp_path, "deepstab", 2, progress=lambda *each: calls.append(each))
        assert calls == [(n, 8) for n in (1, 2, 3, 4, 4, 5, 6, 7, 8, 8)] + [(4, 8), (8, 8)]

    def test_an_interrupt_leaves_whole_files_and_the_next_run_goes_on(self, bank: TextureBank, tmp_path: Path) -> None:
        def interrupt(done: int, total: int) -> None:
            if done == 3:
                raise KeyboardInterrupt

        scenes = make_scenes("handheld", bank, size=(16, 24))
        with pytest.raises(KeyboardInterrupt):
            write_clips(scenes, 1, tmp_path, "deepstab", 2, progress=interrupt)
        names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
        assert names == ["paths/1.csv", "scenes.json", "unstable/1.avi"]
        assert write_clips(scenes, 1, tmp_path, "deepstab", 2).written == (0,)
        assert open_dataset("deepstab", tmp_path)[0].frames == 2

    def test_the_settings_are_kept(self, bank: TextureBank, tmp_path: Path) -> None:
        scenes = make_scenes("objects", bank, seed=5, size=(16, 24))
        write_clips(scenes, 1, tmp_path, "sintel", 2, textures="mine")
        kept = json.loads((tmp_path / "scenes.json").read_text())
        assert re.fullmatch("mine [0-9a-f]{8}", kept.pop("textures"))
        assert kept == {
            "family": "objects",
            "seed": 5,
            "size": [16, 24],
            "shake": 0.0,
            "layout": "sintel",
            "frames": 2,
            "fps": scenes.scenes([0]).fps,
            "version": "0.1.0",
            "without_target": [],
        }

    def test_other_settings_are_refused(self, bank: TextureBank, tmp_path: Path) -> None:
        write_clips(make_scenes("objects", bank, size=(16, 24)), 1, tmp_path, "sintel", 2)
        before = contents(tmp_path)
        other = procedural_bank(side=32, each=1)
        for change, scenes, layout, frames in (
            ("family is objects, not drive", make_scenes("drive", bank, size=(16, 24)), "sintel", 2),
            ("seed is 0, not 1", make_scenes("objects", bank, 1, (16, 24)), "sintel", 2),
            ("size is 16x24, not 24x16", make_scenes("objects", bank, size=(24, 16)), "sintel", 2),
            ("layout is sintel, not otb", make_scenes("objects", bank, size=(16, 24)), "otb", 2),
            ("frames is 2, not 3", make_scenes("objects", bank, size=(16, 24)), "sintel", 3),
            ("textures is procedural", make_scenes("objects", other, size=(16, 24)), "sintel", 2),
        ):
            with pytest.raises(InputError, match=f"whose {change}.*; choose another folder, or the same settings"):
                write_clips(scenes, 1, tmp_path, layout, frames)
        assert contents(tmp_path) == before

    @pytest.mark.parametrize("text", ["[]", "{}", "not json", '{"family": "objects", "without_target": 3}'])
    def test_a_strange_file_of_settings_is_refused(self, bank: TextureBank, tmp_path: Path, text: str) -> None:
        (tmp_path / "scenes.json").write_text(text)
        with pytest.raises(InputError, match=r"scenes\.json was (not )?written by"):
            write_clips(make_scenes("objects", bank, size=(16, 24)), 1, tmp_path, "sintel", 2)

    @pytest.mark.parametrize(
        ("count", "layout", "frames", "message"),
        [
            (0, "sintel", 2, "0 clips cannot be written"),
            (1, "sintel", 1, "1 frames shows no motion"),
            (1, "kitti", 2, "choose one of sintel, otb, deepstab"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, bank: TextureBank, tmp_path: Path, count: int, layout: str, frames: int, message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            write_clips(make_scenes("objects", bank, size=(16, 24)), count, tmp_path / "new", layout, frames)
        assert not (tmp_path / "new").exists()


def test_names_tell_family_seed_and_number(bank: TextureBank) -> None:
    assert clip_name(make_scenes("objects", bank, 3), 17, "sintel") == "objects_3_000017"
    assert clip_name(make_scenes("handheld", bank), 17, "deepstab") == "18"
