"""A contact sheet shows what lies on the disk: pictures where they belong, and boxes where the file has them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from protoformer.datasets.clips import clip_name, write_clip
from protoformer.errors import InputError
from protoformer.io.image import write_image
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.samples import DepthSample
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.viz import contact_sheet as module
from protoformer.viz.contact_sheet import contact_sheet, draw_depth
from protoformer.viz.depth_colors import UNKNOWN, depth_to_color

SIZE = (48, 64)
ACROSS = (module.WIDTH - 2 * module._MARGIN - 5 * module._GAP) // 6


def written(root: Path, family: str, layout: str, count: int = 2) -> tuple[str, ...]:
    scenes = SyntheticScenes(family, 0, SIZE, bank=procedural_bank(side=64, each=2))
    for index in range(count):
        assert write_clip(scenes, index, root, layout, 2)
    return tuple(clip_name(scenes, index, layout) for index in range(count))


def tiles(sheet: np.ndarray, line: int, lines_a_clip: int = 1) -> list[np.ndarray]:
    """The pictures of one line, by the places that the layout gives them."""
    down = round(ACROSS * SIZE[0] / SIZE[1])
    top = module._MARGIN + module._TITLE + 3 * module._GAP + module._HEAD
    top += line * (down + module._GAP) + (line // lines_a_clip + 1) * (module._CAPTION + 2 * module._GAP)
    lefts = (module._MARGIN + column * (ACROSS + module._GAP) for column in range(6))
    return [sheet[top : top + down, left : left + ACROSS] for left in lefts]


def paper(part: np.ndarray) -> np.ndarray:
    return (part == module._PAPER).all(axis=-1)


@pytest.mark.parametrize(("family", "layout", "lines"), [("objects", "sintel", 1), ("handheld", "deepstab", 2)])
def test_every_clip_is_on_the_sheet(tmp_path: Path, family: str, layout: str, lines: int) -> None:
    sheet = contact_sheet(tmp_path, layout, written(tmp_path, family, layout), "some scenes")
    assert sheet.dtype == np.uint8 and sheet.shape[1:] == (module.WIDTH, 3)
    for line in range(2 * lines):
        for tile in tiles(sheet, line, lines):
            assert tile.shape[:2] == (round(ACROSS * 0.75), ACROSS)
            assert paper(tile).mean() < 0.01
    assert paper(sheet[: module._MARGIN // 2]).all() and paper(sheet[-module._MARGIN :]).all()
    assert paper(sheet[:, : module._MARGIN]).all() and paper(sheet[:, -module._MARGIN :]).all()
    assert not paper(sheet[module._MARGIN : module._MARGIN + module._TITLE]).all()


def test_truth_stands_beside_the_image(tmp_path: Path) -> None:
    names = written(tmp_path, "objects", "sintel", 1)
    scene = tmp_path / "training" / "{}" / names[0]
    write_image(Path(str(scene).format("clean")) / "frame_0001.png", np.full((*SIZE, 3), (250, 0, 0), np.uint8))
    write_image(Path(str(scene).format("final")) / "frame_0002.png", np.full((*SIZE, 3), (0, 250, 0), np.uint8))
    hidden = np.zeros(SIZE, np.uint8)
    hidden[:, 32:] = 255
    write_image(Path(str(scene).format("occlusions")) / "frame_0001.png", hidden)
    moving = np.zeros(SIZE, np.uint16)
    moving[:, :32] = 7
    write_image(Path(str(scene).format("instances")) / "frame_0001.png", moving)
    clean, final, _, _, instances, occlusion = tiles(contact_sheet(tmp_path, "sintel", names, ""), 0)
    assert (clean == (250, 0, 0)).all() and (final == (0, 250, 0)).all()
    assert (occlusion[:, 140:] == 255).all() and occlusion.min() == 0
    assert np.ptp(instances[:, :110].astype(int), axis=2).min() > 30 and np.ptp(instances[:, 140:], axis=2).max() == 0


def test_boxes_are_drawn_where_the_target_is_there(tmp_path: Path) -> None:
    names = written(tmp_path, "chase", "otb", 1)
    clip = tmp_path / names[0]
    for frame in ("0001.jpg", "0002.jpg"):
        write_image(clip / "img" / frame, np.zeros((*SIZE, 3), np.uint8))
    for boxes, hidden, colors in (
        ("11,6,20,30\n11,6,20,30\n", "0,1", (module._VISIBLE, module._OCCLUDED)),
        ("11,6,20,30\n0,0,0,0\n", "0,0", (module._VISIBLE, (0, 0, 0))),
    ):
        (clip / "groundtruth_rect.txt").write_text(boxes)
        (clip / "full_occlusion.txt").write_text(hidden + "\n")
        shown = tiles(contact_sheet(tmp_path, "otb", names, ""), 0)
        scale = ACROSS / SIZE[1]
        for tile, color in ((shown[0], colors[0]), (shown[5], colors[1])):
            for x, y in ((10.5, 20.5), (29.5, 20.5), (20.5, 5.5), (20.5, 34.5)):
                assert np.abs(tile[int(y * scale), int(x * scale)].astype(int) - color).max() < 12
            assert tile[int(20.5 * scale), int(20.5 * scale)].max() < 12


def test_there_are_never_more_lines_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = np.zeros((*SIZE, 3), np.uint8)
    strip = module.Strip("a clip", ((tile,) * 6,) * 2)
    monkeypatch.setitem(module._LAYOUTS, "deepstab", (module._FRAME_HEADS, lambda root, name: strip, 2))
    heights = [contact_sheet(tmp_path, "deepstab", ["1"] * count, "").shape[0] for count in (4, 5, 6, 500)]
    assert heights[0] < heights[1] == heights[2] == heights[3]


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no clips to draw"):
        contact_sheet(tmp_path, "otb", (), "nothing")


def test_depth_is_drawn_in_the_colors_of_depth_elsewhere() -> None:
    depth = torch.tensor([[1.0, 10.0, 100.0, 0.0]])[None, None]
    sample = DepthSample(image=torch.zeros(1, 3, 1, 4), depth=depth, valid=depth > 0)
    near, middle, far, sky = draw_depth(sample)[0].astype(int)
    assert near.sum() > middle.sum() > far.sum() and np.array_equal(draw_depth(sample), depth_to_color(depth[0, 0]))
    assert tuple(sky) == UNKNOWN
    unknown = DepthSample(image=torch.zeros(1, 3, 1, 4), depth=depth * 0 + 1, valid=depth < 0)
    assert (draw_depth(unknown) == UNKNOWN).all()
