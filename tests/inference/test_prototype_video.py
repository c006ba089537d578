"""Prototypes that are followed through a clip."""

import pytest
import torch

import protoformer as pf
from protoformer.geometry import cell_of_pixel
from protoformer.inference.prototype_identities import Identities

LABELS = cell_of_pixel((6, 6), (3, 3)).view(6, 6)
STILL = torch.zeros(2, 6, 6)


def test_a_prototype_is_known_again_by_what_it_is_like_wherever_its_number_went() -> None:
    followed, centres = Identities(), torch.eye(9)
    assert followed.follow(centres, LABELS).tolist() == list(range(9))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    moved = order.argsort()[LABELS]
    assert followed.follow(centres[order], moved, STILL).tolist() == order.tolist()


def test_among_like_prototypes_the_place_decides_that_the_flow_leads_to() -> None:
    followed, alike = Identities(), torch.ones(9, 4)
    followed.follow(alike, LABELS)
    right = torch.stack((torch.full((6, 6), 2.0), torch.zeros(6, 6)))
    identities = followed.follow(alike, LABELS, right)
    # What was in the left column of cells is now in the middle one, and that in the right one.
    assert identities.view(3, 3)[:, 1:].tolist() == [[0, 1], [3, 4], [6, 7]]


def test_what_continues_nothing_is_new_and_its_number_is_nobody_elses() -> None:
    followed = Identities()
    followed.follow(torch.eye(18)[:9], LABELS)
    fresh = followed.follow(torch.eye(18)[9:], LABELS.flip(0), torch.full((2, 6, 6), 99.0))
    assert fresh.tolist() == list(range(9, 18))
    again = followed.follow(torch.eye(18)[:9], LABELS, torch.full((2, 6, 6), 99.0))
    assert again.tolist() == list(range(18, 27))


def test_families_are_those_of_the_first_frame_and_newcomers_join_one() -> None:
    followed = Identities(2)
    centres = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    labels = cell_of_pixel((4, 4), (2, 2)).view(4, 4)
    followed.follow(centres, labels)
    assert followed.families.tolist() == [0, 0, 2, 2]
    turned = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.3]])
    identities = followed.follow(turned, labels, torch.full((2, 4, 4), 99.0))
    assert identities.tolist() == [0, 1, 2, 4]
    assert followed.families.tolist() == [0, 0, 2, 2]


def test_a_still_clip_keeps_every_identity_and_runs_are_the_same(tiny: pf.FlowModel) -> None:
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


def test_identities_move_with_what_they_stand_for(tiny: pf.FlowModel, clip: list[torch.Tensor]) -> None:
    for step in tiny.explain_video(clip, families=None):
        assert torch.equal(step.families, step.identities)
        assert 0 <= step.kept <= 1


def test_bad_clips_and_layers_are_said(tiny: pf.FlowModel, clip: list[torch.Tensor]) -> None:
    with pytest.raises(pf.InputError, match="there is no layer '7'"):
        tiny.explain_video(clip, layer="7")
    with pytest.raises(pf.InputError, match="into -1 families"):
        tiny.explain_video(clip, families=-1)
    with pytest.raises(pf.InputError, match="has no frame in this span"):
        list(tiny.explain_video([]))
