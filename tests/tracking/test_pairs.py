"""Training crops for tracking: the target lies inside its box."""

import math

import pytest
import torch

from protoformer.geometry.regions import box_centers
from protoformer.models.config import preset
from protoformer.synthetic.rng import SceneRandom
from protoformer.synthetic.samples import TrackPairs
from protoformer.tracking import data as track_pairs
from protoformer.tracking.data import CropViews, cut_pairs

CONFIG = preset("tiny", tracking={"search_size": 64, "template_size": 48})
BOX = (60.0, 40.0, 30.0, 20.0)


def sights(count: int, box: tuple[float, ...] = BOX, visible: float = 1.0) -> CropViews:
    """A white rectangle on black, where the box is."""
    images = torch.zeros(count, 3, 96, 128)
    if all(math.isfinite(value) for value in box):
        x, y, width, height = map(int, box)
        images[..., max(0, y) : y + height, max(0, x) : x + width] = 1
    return CropViews(images, torch.tensor([box]).repeat(count, 1), torch.full((count,), visible))


def made(count: int, known: CropViews, sought: CropViews, stranger: bool = False, seed: int = 0) -> TrackPairs:
    strangers = torch.full((count,), stranger)
    return cut_pairs(known, sought, strangers, SceneRandom(seed, range(count)), CONFIG)


def test_the_target_fills_its_box_in_both_crops_and_nothing_else() -> None:
    pairs = made(64, sights(64), sights(64, (50.0, 30.0, 24.0, 32.0)))
    assert pairs.reference.shape == (64, 3, 48, 48) and pairs.search.shape == (64, 3, 64, 64)
    assert pairs.located.float().mean() > 0.7 and pairs.judged[pairs.located].all()
    for images, boxes in ((pairs.reference, pairs.reference_boxes), (pairs.search, pairs.boxes)):
        bright = images.mean(dim=1) / images.mean(dim=1).amax(dim=(1, 2), keepdim=True).clamp_min(1e-6) > 0.75
        for place in pairs.located.nonzero()[:, 0].tolist():
            rows, columns = bright[place].nonzero().unbind(1)
            x, y, width, height = boxes[place].tolist()
            side = images.shape[3]
            seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            wanted = [min(side, max(0.0, edge)) for edge in (x, y, x + width, y + height)]
            assert [float(edge) for edge in seen] == pytest.approx(wanted, abs=3)


def moves(pairs: TrackPairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithms of scales, N, and how far located targets lie from the middle, in sides."""
    sizes = pairs.boxes[:, 2:].prod(dim=1).sqrt() / (64 / 4)
    return sizes.log(), (pairs.boxes[:, :2] + pairs.boxes[:, 2:] / 2)[pairs.located] / 64 - 0.5


def test_searches_for_what_was_lost_are_moved_and_scaled_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_pairs, "FOLLOWED", 0.0)
    scales, middles = moves(made(512, sights(512), sights(512)))
    assert scales.std() == pytest.approx(0.5 * 0.87, abs=0.06)  # a bell cut at 1.5 deviations
    assert middles.abs().max() <= 0.375 + 1e-4 and middles.std() == pytest.approx(0.75 / 12**0.5, abs=0.03)


def test_most_searches_have_the_target_near_their_middle() -> None:
    scales, middles = moves(made(512, sights(512), sights(512)))
    assert scales.std() == pytest.approx(0.87 * (0.7 * 0.2**2 + 0.3 * 0.5**2) ** 0.5, abs=0.04)
    assert middles.std() == pytest.approx((0.7 * 0.1**2 + 0.3 * 0.75**2 / 12) ** 0.5, abs=0.02)
    assert (middles.abs().amax(dim=1) < 0.2).float().mean() > 0.65


@pytest.mark.parametrize("box", [BOX, (4.0, 6.0, 12.0, 14.0), (100.0, 70.0, 20.0, 20.0)])
def test_searches_beside_the_target_show_the_frame(box: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_pairs, "ELSEWHERE", 1.0)
    result = sights(256, box)
    crops = track_pairs._sample_search_crops(
        result.on_image(), result.on_image(), (96, 128), SceneRandom(0, range(256)), CONFIG
    )
    apart = crops.corners + crops.sides[:, None] / 2 - box_centers(result.boxes)
    moved = apart.abs().amax(dim=1) > 0.6 * crops.sides
    assert moved.float().mean() > 0.4  # where the frame is large enough for it
    middles = (crops.corners + crops.sides[:, None] / 2)[moved]
    assert (middles >= -1e-3).all() and (middles <= torch.tensor([128, 96]) + 1e-3).all()
    ends = torch.minimum(crops.corners + crops.sides[:, None], torch.tensor([128.0, 96.0]))
    shown = (ends - crops.corners.clamp_min(0)).prod(dim=1) / crops.sides**2
    assert shown[moved].min() > 0.2


def test_some_searches_lie_beside_the_target_and_say_so() -> None:
    pairs = made(512, sights(512), sights(512))
    absent = pairs.judged & ~pairs.located
    assert absent.float().mean() == pytest.approx(0.1, abs=0.05)
    assert pairs.search[absent].amax(dim=(1, 2, 3)).median() < 0.9


@pytest.mark.parametrize(
    ("known", "sought", "stranger", "judged"),
    [
        (sights(8), sights(8), True, True),
        (sights(8), sights(8, visible=0.0), False, True),
        (sights(8), sights(8, (math.nan,) * 4, visible=0.0), False, True),
        (sights(8), sights(8, visible=0.15), False, None),
        (sights(8, visible=0.2), sights(8), False, False),
        (sights(8, (120.0, 40.0, 30.0, 20.0)), sights(8), False, False),
        (sights(8, (60.0, 40.0, 3.0, 3.0)), sights(8), False, False),
        (sights(8, (math.nan,) * 4, visible=0.0), sights(8), False, False),
    ],
    ids=["stranger", "hidden", "gone", "a bit", "unknown", "half outside", "tiny", "never there"],
)
def test_who_is_not_there_is_not_located(
    known: CropViews, sought: CropViews, stranger: bool, judged: bool | None
) -> None:
    pairs = made(8, known, sought, stranger)
    assert not pairs.located.any()
    assert all(getattr(pairs, name).isfinite().all() for name in ("reference", "search", "boxes", "reference_boxes"))
    if judged is not None:
        assert (pairs.judged == judged).all()


def test_a_pair_is_decided_by_its_key_alone() -> None:
    whole = cut_pairs(sights(3), sights(3), torch.zeros(3, dtype=torch.bool), SceneRandom(5, [7, 8, 9]), CONFIG)
    alone = cut_pairs(sights(1), sights(1), torch.zeros(1, dtype=torch.bool), SceneRandom(5, [8]), CONFIG)
    for name in ("reference", "reference_boxes", "search", "boxes"):
        assert torch.allclose(getattr(whole, name)[1:2], getattr(alone, name), atol=1e-5)
    assert not torch.allclose(whole.boxes[0], whole.boxes[1])
