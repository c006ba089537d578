"""Segmentation into moving parts of flows with known parts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import protoformer as pf
from protoformer.explain.parts import MotionSums, PartMerger, find_moving_parts, motion_terms, segment_motion
from protoformer.geometry.warps import cell_of_pixel, pixel_grid
from protoformer.synthetic.samples import FlowSample
from region_metrics import adjusted_rand_index

SIZE = (96, 128)
CELLS = cell_of_pixel(SIZE, (12, 16)).view(SIZE)
ONES = torch.ones(SIZE)


def background() -> Tensor:
    """The flow of a background that rotates by 3 degrees and expands by a twentieth: 2 x H x W."""
    x, y = pixel_grid(*SIZE) - torch.tensor([64.0, 48.0]).view(2, 1, 1)
    return torch.stack((0.05 * x - 0.05 * y, 0.05 * x + 0.05 * y))


def two_rectangles() -> tuple[Tensor, Tensor]:
    """The parts and flow of two objects that move over that background and are not aligned with cells."""
    parts, flow = torch.zeros(SIZE).long(), background()
    for number, (rows, columns, motion) in enumerate(
        ((slice(13, 50), slice(21, 59), (4.0, 1.0)), (slice(43, 83), slice(75, 101), (-3.0, 2.0))), 1
    ):
        parts[rows, columns] = number
        flow[:, rows, columns] = torch.tensor(motion).view(2, 1, 1)
    return parts, flow


def test_two_rectangles_over_a_rotating_and_approaching_background_are_three_parts() -> None:
    truth, flow = two_rectangles()
    assert torch.equal(segment_motion(CELLS, flow), truth)


def test_flow_noise_well_below_a_pixel_does_not_change_the_parts() -> None:
    truth, flow = two_rectangles()
    random = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(flow.shape, generator=random)
    segmented = segment_motion(CELLS, flow + noise)
    assert int(segmented.max()) == 2 and adjusted_rand_index(segmented, truth) > 0.95


def test_parts_are_a_deterministic_partition_numbered_by_size() -> None:
    _, flow = two_rectangles()
    random = torch.Generator().manual_seed(1)
    regions = torch.randint(0, 5, (24, 32), generator=random).repeat_interleave(4, 0).repeat_interleave(4, 1)
    noisy = flow + 3 * torch.randn(2, 12, 16, generator=random).repeat_interleave(8, 1).repeat_interleave(8, 2)
    segmented = segment_motion(regions, noisy)
    sizes = torch.bincount(segmented.flatten())
    assert segmented.shape == SIZE and len(sizes) > 3 and (sizes > 0).all() and (sizes[:-1] >= sizes[1:]).all()
    assert torch.equal(segment_motion(regions, noisy), segmented)
    assert torch.equal(segment_motion(9 - 2 * regions, noisy), segmented)  # how regions are numbered does not matter


def test_a_background_on_both_sides_of_a_bar_is_one_part() -> None:
    flow = background()
    flow[:, :, 60:70] = 6.0
    segmented = segment_motion(CELLS, flow)
    assert (segmented[:, 60:70] == 1).all() and (segmented[:, :60] == 0).all() and (segmented[:, 70:] == 0).all()


def test_a_border_inside_a_cell_is_located_to_the_pixel() -> None:
    flow = torch.zeros(2, *SIZE)
    flow[0, :, 67:] = 2.0  # cells end at 64 and 72
    expected = (torch.arange(128) < 67).long().expand(SIZE)
    segmented = segment_motion(CELLS, flow)
    assert adjusted_rand_index(segmented, expected) == pytest.approx(1)


def test_flow_without_confidence_has_little_weight() -> None:
    flow, confidence = background(), torch.ones(1, *SIZE)
    flow[0, 30:40, 30:40] += 1.2
    assert int(segment_motion(CELLS, flow, confidence).max()) == 1
    confidence[:, 30:40, 30:40] = 0.0
    assert int(segment_motion(CELLS, flow, confidence).max()) == 0


def test_small_pieces_are_merged() -> None:
    flow = torch.zeros(2, *SIZE)
    flow[1, 20:22, 20:22] = 30.0
    assert int(segment_motion(CELLS, flow).max()) == 0


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1)])
def test_images_of_one_pixel_or_one_line_are_segmented(size: tuple[int, int]) -> None:
    assert torch.equal(
        segment_motion(torch.arange(9)[: size[0] * size[1]].view(size), torch.zeros(2, *size)), torch.zeros(size)
    )


def test_static_pieces_are_joined_in_few_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All joins cost zero, also those of isolated pixels with their surroundings."""
    rounds = []
    linked = PartMerger._linked
    monkeypatch.setattr(PartMerger, "_linked", lambda self, links: rounds.append(links) or linked(self, links))
    assert int(segment_motion(cell_of_pixel(SIZE, (48, 64)).view(SIZE), torch.zeros(2, *SIZE)).max()) == 0
    specks = torch.zeros(2, *SIZE)
    specks[:, ::4, ::4] = 9.0
    assert int(segment_motion(torch.zeros(SIZE).long(), specks).max()) == 0
    assert len(rounds) < 60


def test_a_flow_with_nan_is_refused(tiny: pf.FlowPredictor, scene: FlowSample, result: pf.FlowResult) -> None:
    with_nan = result.flow.clone()
    with_nan[0, 3, 4] = torch.nan
    with pytest.raises(pf.InputError, match="the flow has values that are not finite"):
        tiny.explain(scene.first, scene.second, result=replace(result, flow=with_nan))


def test_the_flow_of_a_plane_is_one_motion_without_residual() -> None:
    coefficients = torch.tensor([[1.0, -2.0], [3.0, 0.5], [-1.0, 2.0], [0.4, 0.0], [0.3, -0.2], [0.0, 0.6]]).double()
    flow = (motion_terms(SIZE).T @ coefficients).T.view(2, *SIZE)
    sums = MotionSums.of(torch.zeros(SIZE).long(), flow, ONES)
    torch.testing.assert_close(sums.motions()[0], coefficients, atol=1e-3, rtol=0)
    assert float(sums.residual()[0]) / flow[0].numel() < 1e-4  # what stiffness costs


def test_the_sums_of_joined_parts_are_those_of_their_union() -> None:
    _, flow = two_rectangles()
    apart = MotionSums.of(CELLS, flow, ONES)
    owner = torch.arange(192) // 96
    joined, union = apart.joined(owner), MotionSums.of(owner[CELLS], flow, ONES)
    torch.testing.assert_close(joined.residual(), union.residual())
    torch.testing.assert_close(joined.at(torch.tensor([1])).pixels, torch.tensor([96.0 * 64]).double())
    torch.testing.assert_close((apart.at(owner[:1]) + apart.at(owner[:1])).squares, 2 * apart.squares[:1])


def test_records_tell_what_pixels_do_and_whose_they_are() -> None:
    truth, flow = two_rectangles()
    images = (torch.zeros(3, *SIZE), torch.zeros(3, *SIZE))
    segmented = find_moving_parts(images, CELLS, flow, None, SIZE)
    assert torch.equal(segmented.labels, truth) and [each.part for each in segmented.parts] == [0, 1, 2]
    assert sum(each.share for each in segmented.parts) == pytest.approx(1)
    thing = segmented.parts[1]
    assert thing.pixels == 37 * 38 and thing.center == (39.5, 31.0) and thing.mean == (4.0, 1.0) and thing.spread == 0
    counts = dict(thing.prototypes)
    assert sum(counts.values()) == thing.pixels and counts[int(CELLS[30, 40])] == 64
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert int(segmented.second[31, 44]) == 1 and int(segmented.second[14, 21]) == -1
    assert repr(segmented) == "MovingParts(128x96 pixels, 3 parts)"


def test_parts_of_a_large_image_are_looked_for_in_a_small_one() -> None:
    truth, flow = two_rectangles()
    large = [each.repeat_interleave(2, -1).repeat_interleave(2, -2) for each in (truth, CELLS, 2 * flow)]
    images = (torch.zeros(3, 192, 256), torch.zeros(3, 192, 256))
    segmented = find_moving_parts(images, large[1], large[2], torch.ones(1, 192, 256), SIZE)
    assert segmented.labels.shape == segmented.second.shape == (192, 256)
    assert adjusted_rand_index(segmented.labels, large[0]) > 0.95
    assert segmented.parts[1].mean == pytest.approx((8.0, 2.0), abs=0.1)


def test_two_images_have_parts_and_one_image_or_a_depth_has_none(
    tiny: pf.FlowPredictor, tiny_depth: pf.DepthPredictor, scene: FlowSample, result: pf.FlowResult
) -> None:
    explained = result.explain()
    for name in ("1.1", "2.1"):
        segmented = explained.parts(name)
        assert segmented is not None and segmented is explained.parts(name)
        assert sum(each.pixels for each in segmented.parts) == segmented.labels.numel() == 37 * 61
        again = result.explain().parts(name)
        assert (
            again is not None
            and torch.equal(again.labels, segmented.labels)
            and torch.equal(again.second, segmented.second)
        )
    assert explained.parts() is explained.parts("2.1")
    assert tiny.explain(scene.first).parts() is None
    assert tiny_depth.explain(scene.first, scene.second).parts() is None
