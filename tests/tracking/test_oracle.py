"""Trackers with an oracle network, which locates a colored rectangle on gray exactly."""

import pytest
import torch
from torch import Tensor, nn

from protoformer.errors import InputError
from protoformer.geometry.regions import box_iou, enlarge_boxes, roi_align
from protoformer.models.config import preset
from protoformer.models.heads.tracking import Template, TrackingPrediction
from protoformer.tracking.predictor import TrackingPredictor
from protoformer.tracking.tracker import PATIENCE

HEIGHT, WIDTH = 160, 240
RED, GREEN = (1.0, 0.5, 0.5), (0.5, 1.0, 0.5)
Box = tuple[int, int, int, int]


class Oracle(nn.Module):
    """Knows a target by its color, and finds the rectangle that has it; gray is 0 to a network."""

    config = preset("tiny", tracking={"search_size": 128, "template_size": 96})

    def embed_target(self, reference: Tensor, boxes: Tensor) -> Template:
        color = roi_align(reference, enlarge_boxes(boxes, 0.5), 1).flatten(1)
        return Template(color[:, None], color[:, None], color)

    def locate_target(
        self, template: Template, search: Tensor, prior: Tensor, prior_strength: Tensor
    ) -> TrackingPrediction:
        color = template.summary[:, :, None, None]
        share = (search * color).sum(dim=1) / color.square().sum(dim=1)
        share = torch.where(share > 0.05, share.clamp_max(1), 0.0)
        across, down = share.amax(dim=1), share.amax(dim=2)
        (x, width), (y, height) = _span(across), _span(down)
        seen = torch.where(share.sum(dim=(1, 2)) > 9, 10.0, -10.0)
        return TrackingPrediction((torch.stack((x, y, width, height), dim=1),), seen, torch.zeros(0))


def _span(profile: Tensor) -> tuple[Tensor, Tensor]:
    """Where what a profile, N x S, shows begins, and how long it is."""
    length = profile.sum(dim=1)
    middle = (profile * (torch.arange(profile.shape[1]) + 0.5)).sum(dim=1) / length.clamp_min(1e-6)
    return middle - length / 2, length


@pytest.fixture(scope="module")
def model() -> TrackingPredictor:
    return TrackingPredictor(Oracle(), trained=True, device=torch.device("cpu"))


def draw_frame(*things: tuple[tuple[float, ...], Box]) -> Tensor:
    image = torch.full((3, HEIGHT, WIDTH), 0.5)
    for color, (x, y, width, height) in things:
        image[:, max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)] = torch.tensor(color)[:, None, None]
    return image


def test_two_targets_are_followed_to_the_pixel(model: TrackingPredictor) -> None:
    truth = [((20 + 4 * n, 30 + 2 * n, 32, 32), (180 - 3 * n, 90 - n, 24, 40)) for n in range(16)]
    clip = [draw_frame((RED, first), (GREEN, second)) for first, second in truth]
    output = model.track(clip, truth[0], precision="full")
    for place, result in enumerate(output):
        expected = torch.tensor([boxes[place] for boxes in truth]).float()
        assert (result.boxes - expected).abs().max() < (0.02, 0.5)[place]  # a pixel of the first crop is one of ours
        assert result.scores[1:].min() > 0.99 and not result.lost.any()


def test_a_target_that_leaves_is_followed_to_the_border_and_taken_up_when_it_returns(model: TrackingPredictor) -> None:
    places = [*range(170, 242, 4), *range(242, 168, -4)]
    clip = [draw_frame((RED, (x, 60, 32, 32))) for x in places]
    (output,) = model.track(clip, (170, 60, 32, 32), precision="full")
    shown = torch.tensor([(x, 60, min(32, WIDTH - x), 32) for x in places]).float()
    for place, x in enumerate(places):
        if x <= WIDTH - 8:
            assert box_iou(output.boxes[place], shown[place]) > 0.6, x
        assert output.boxes[place, 0] + output.boxes[place, 2] <= WIDTH + 1e-3
        if x >= WIDTH:
            assert output.lost[place]
    assert not output.lost[-5:].any() and (output.boxes[-1] - shown[-1]).abs().max() < 1


def test_an_occluded_target_keeps_its_box_and_is_detected_again_near_and_far(model: TrackingPredictor) -> None:
    tracker = model.tracker(draw_frame((RED, (40, 40, 32, 32))), (40, 40, 32, 32), precision="full")
    for number in range(1, 6):
        (target,) = tracker.update(draw_frame())
        assert target.lost and target.box == (40, 40, 32, 32) and target.score < 0.01, number
    (target,) = tracker.update(draw_frame((RED, (66, 50, 32, 32))))
    assert not target.lost and target.box == pytest.approx((66, 50, 32, 32), abs=1)
    for _ in range(PATIENCE):
        tracker.update(draw_frame())
    for _ in range(2 * 12):  # all of the frame is looked at, window by window
        (target,) = tracker.update(draw_frame((RED, (200, 120, 32, 32))))
        if not target.lost:
            break
    for _ in range(8):  # what was found first may have been a part
        (target,) = tracker.update(draw_frame((RED, (200, 120, 32, 32))))
    assert not target.lost and target.box == pytest.approx((200, 120, 32, 32), abs=0.5)


def test_targets_are_added_and_removed_while_others_are_tracked(model: TrackingPredictor) -> None:
    def frame(step: int) -> Tensor:
        return draw_frame((RED, (20 + 4 * step, 30, 32, 32)), (GREEN, (180 - 3 * step, 90, 24, 40)))

    tracker = model.tracker(frame(0), (20, 30, 32, 32), precision="full")
    tracker.update(frame(1))
    assert tracker.add(frame(1), (177, 90, 24, 40)) == (1,) and tracker.ids == (0, 1)
    assert tracker.state[1].box == (177, 90, 24, 40) and tracker.state[1].score == 1
    tracker.update(frame(2))
    assert tracker.state[0].box == pytest.approx((28, 30, 32, 32), abs=0.5)
    assert tracker.state[1].box == pytest.approx((174, 90, 24, 40), abs=0.5)
    tracker.remove(0)
    (green,) = tracker.update(frame(3))
    assert tracker.ids == (1,) and green.box == pytest.approx((171, 90, 24, 40), abs=0.5)
    tracker.remove(1)
    assert tracker.update(frame(4)) == () and tracker.state == {}
    assert tracker.add(frame(4), [(36, 30, 32, 32)]) == (2,)  # identities are not reused
    tracker.update(frame(5))
    assert tracker.state[2].box == pytest.approx((40, 30, 32, 32), abs=0.5)
    with pytest.raises(InputError, match="there is no target 7; the tracker has 2"):
        tracker.remove(2, 7)
    assert tracker.ids == (2,)
    with pytest.raises(InputError, match="outside the frame"):
        tracker.add(frame(5), (500, 0, 10, 10))
    with pytest.raises(InputError, match="where the first was"):
        tracker.add(frame(5)[:, :, 1:], (20, 30, 32, 32))
    with pytest.raises(InputError, match="outside the frame"):
        tracker.reset(draw_frame(), (500, 0, 10, 10))
    assert tracker.ids == (2,)  # a rejected reset changes nothing
    tracker.reset(frame(0), [(20, 30, 32, 32), (180, 90, 24, 40)])
    assert tracker.ids == (0, 1)


def test_a_target_is_added_from_the_given_frame_whatever_became_of_the_last(model: TrackingPredictor) -> None:
    first = draw_frame((RED, (20, 30, 32, 32)), (GREEN, (180, 90, 24, 40)))
    tracker = model.tracker(first, (20, 30, 32, 32), precision="full")
    second = first.clone()
    tracker.update(second)
    second.fill_(0.5)  # the caller draws on the frame
    tracker.add(first, (180, 90, 24, 40))
    (_, green) = tracker.update(first)
    assert not green.lost and green.box == pytest.approx((180, 90, 24, 40), abs=0.5)


def test_each_of_several_lost_targets_is_detected_where_it_is(model: TrackingPredictor) -> None:
    red, green = (20, 30, 32, 32), (180, 90, 24, 40)
    tracker = model.tracker(draw_frame((RED, red), (GREEN, green)), [red, green], precision="full")
    for _ in range(PATIENCE + 1):
        tracker.update(draw_frame())
    assert all(target.lost for target in tracker.targets)
    for _ in range(20):  # the first stays hidden, the second returns elsewhere
        tracker.update(draw_frame((GREEN, (30, 100, 24, 40))))
    assert tracker.targets[0].lost and tracker.targets[0].box == red
    assert not tracker.targets[1].lost and tracker.targets[1].box == pytest.approx((30, 100, 24, 40), abs=1)


def test_a_detection_that_the_first_template_does_not_confirm_is_discarded() -> None:
    predictor = TrackingPredictor(Oracle(), trained=True, device=torch.device("cpu"))
    tracker = predictor.tracker(draw_frame((RED, (40, 40, 32, 32))), (40, 40, 32, 32), precision="full")
    tracker.update(draw_frame())
    color = torch.tensor(GREEN)[None] * 2 - 1
    tracker._memory.template = (color[:, None], color[:, None], color)  # drifted to another object
    (target,) = tracker.update(draw_frame((GREEN, (44, 40, 32, 32))))
    assert target.lost and target.score == 0
    tracker._memory.template = tracker._memory.first
    (target,) = tracker.update(draw_frame((RED, (44, 40, 32, 32))))
    assert not target.lost and target.box == pytest.approx((44, 40, 32, 32), abs=1)
