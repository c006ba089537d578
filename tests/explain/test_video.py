"""Tracking of prototypes through a clip."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.explain.groups import NO_MATCH, PrototypeTracker
from protoformer.explain.video import PrototypeFrame, TrackingRate
from protoformer.geometry.warps import cell_of_pixel

LABELS = cell_of_pixel((6, 6), (3, 3)).view(6, 6)
STILL = torch.zeros(2, 6, 6)


def test_prototypes_keep_their_identity_under_permutation() -> None:
    tracker, centers = PrototypeTracker(), torch.eye(9)
    assert tracker.update(centers, LABELS).tolist() == list(range(9))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    moved = order.argsort()[LABELS]
    assert tracker.update(centers[order], moved, STILL).tolist() == order.tolist()


def test_the_flow_decides_between_equal_prototypes() -> None:
    tracker, equal = PrototypeTracker(), torch.ones(9, 4)
    tracker.update(equal, LABELS)
    right = torch.stack((torch.full((6, 6), 2.0), torch.zeros(6, 6)))
    identities = tracker.update(equal, LABELS, right)
    # The left column of cells moved to the middle, and the middle one to the right.
    assert identities.view(3, 3)[:, 1:].tolist() == [[0, 1], [3, 4], [6, 7]]


def test_unmatched_prototypes_get_new_identities() -> None:
    tracker = PrototypeTracker()
    tracker.update(torch.eye(18)[:9], LABELS)
    fresh = tracker.update(torch.eye(18)[9:], LABELS.flip(0), torch.full((2, 6, 6), 99.0))
    assert fresh.tolist() == list(range(9, 18))
    again = tracker.update(torch.eye(18)[:9], LABELS, torch.full((2, 6, 6), 99.0))
    assert again.tolist() == list(range(18, 27))


def test_new_prototypes_join_families_of_the_first_frame() -> None:
    tracker = PrototypeTracker(2)
    centers = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    labels = cell_of_pixel((4, 4), (2, 2)).view(4, 4)
    tracker.update(centers, labels)
    assert tracker.families.tolist() == [0, 0, 2, 2]
    turned = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.3]])
    identities = tracker.update(turned, labels, torch.full((2, 4, 4), 99.0))
    assert identities.tolist() == [0, 1, 2, 4]
    assert tracker.families.tolist() == [0, 0, 2, 2]


def test_prototypes_without_pixels_have_no_identity() -> None:
    tracker, centers = PrototypeTracker(2), torch.eye(9)
    labels = LABELS.clamp(max=5)  # none of the last three has pixels
    for flow in (None, STILL, STILL, STILL):
        assert tracker.update(centers, labels, flow).tolist() == [*range(6), *[NO_MATCH] * 3]
        assert tracker.families[6:].tolist() == [NO_MATCH] * 3 and len(tracker.families[:6].unique()) == 2
    assert tracker.update(centers, LABELS, STILL).tolist() == [*range(6), 9, 10, 11]


def test_memory_does_not_grow_with_the_clip() -> None:
    tracker, sizes = PrototypeTracker(2), []
    generator = torch.Generator().manual_seed(0)
    tracker.update(torch.eye(40)[:9], LABELS)
    outside = torch.where(LABELS == 8, 99.0, 0.0).expand(2, 6, 6)
    for _ in range(30):
        centers = torch.eye(40)[:9]
        centers[8] = torch.randn(40, generator=generator)  # one new prototype per frame
        identities = tracker.update(centers, LABELS, outside)
        sizes.append(len(pickle.dumps(tracker)))
        assert identities[:8].tolist() == list(range(8)) and set(tracker.families.tolist()) <= set(range(9))
    assert int(identities[8]) > 20
    assert sizes[-1] <= sizes[0] + 8  # identities have more digits


def test_after_a_cut_families_are_computed_again() -> None:
    tracker, outside = PrototypeTracker(2), torch.full((2, 4, 4), 99.0)
    labels = cell_of_pixel((4, 4), (2, 2)).view(4, 4)
    tracker.update(torch.eye(8)[:4], labels)
    after = torch.zeros(4, 8)
    after[:, 4:6] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    assert tracker.update(after, labels, outside).tolist() == [4, 5, 6, 7]
    assert tracker.families.tolist() == [0, 1, 0, 1]


def test_tracking_rate_counts_prototypes_once_and_ignores_the_first_frame() -> None:
    rate = TrackingRate()
    assert rate.kept is None
    for number, (names, kept) in enumerate((([0, 5], 1.0), ([5, 7], 0.5), ([7, 8], 0.25))):
        row = torch.tensor([names])
        rate.add(PrototypeFrame(number, Fraction(number), np.zeros((1, 2, 3), np.uint8), row, row, kept))
    assert (rate.num_frames, rate.num_prototypes, rate.kept) == (3, 4, 0.375)


def test_a_still_clip_keeps_every_identity_and_runs_are_the_same(tiny: pf.FlowPredictor) -> None:
    image = torch.rand(3, 40, 56, generator=torch.Generator().manual_seed(0))
    steps = list(tiny.explain_video([image] * 3, layer="1.1"))
    assert [step.kept for step in steps] == [1, 1, 1]
    for step in steps:
        assert step.identities.shape == (40, 56)
        assert torch.equal(step.identities, steps[0].identities) and torch.equal(step.families, steps[0].families)
    labels = tiny.explain(image).first.layer("1.1").labels()
    assert torch.equal(steps[0].identities, labels)
    again = list(tiny.explain_video([image] * 3, layer="1.1"))
    assert all(torch.equal(one.identities, other.identities) for one, other in zip(steps, again, strict=True))


def test_identities_follow_a_map_shifted_by_whole_cells() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, centers = torch.randint(0, 9, (6, 8), generator=generator), torch.eye(9)
    tracker = PrototypeTracker()
    first = tracker.update(centers, labels)[labels]
    right = torch.stack((torch.full((6, 8), 2.0), torch.zeros(6, 8)))
    for rolls in (2, 4, 6):
        order = torch.randperm(9, generator=generator)
        rolled = order.argsort()[labels.roll(rolls, 1)]
        assert torch.equal(tracker.update(centers[order], rolled, right)[rolled], first.roll(rolls, 1))


def test_identities_follow_the_motion() -> None:
    texture = torch.rand(3, 64, 96, generator=torch.Generator().manual_seed(0))
    trained = pf.load("flow", "cpu")  # its flow is not zero
    first, second = trained.explain_video([texture, texture.roll(16, 2)], layer="2.1", families=None, num_updates=4)
    assert torch.equal(first.families, first.identities) and torch.equal(second.families, second.identities)
    rolled = (second.identities == first.identities.roll(16, 1)).float().mean()
    stayed = (second.identities == first.identities).float().mean()
    assert rolled > 0.5 and stayed < 0.1
    assert second.kept == pytest.approx(float(torch.isin(second.identities, first.identities).float().mean()))


def test_invalid_clips_layers_and_families_are_refused(tiny: pf.FlowPredictor, clip: list[torch.Tensor]) -> None:
    with pytest.raises(pf.InputError, match="there is no layer '7'"):
        tiny.explain_video(clip, layer="7")
    with pytest.raises(pf.InputError, match="into -1 families"):
        tiny.explain_video(clip, families=-1)
    with pytest.raises(pf.InputError, match="has no frame in this span"):
        list(tiny.explain_video([]))
