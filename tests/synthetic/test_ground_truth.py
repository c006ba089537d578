"""True trajectories compared with the motion given by the renderer."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from protoformer.geometry.motion_fields import CELL, chain_flows
from protoformer.synthetic import ground_truth as ground_truth_module
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.ground_truth import propagate_confidence, true_trajectories, true_warp
from protoformer.synthetic.renderer import Renderer
from protoformer.synthetic.scene import Frame
from protoformer.synthetic.texture_bank import TextureBank

SIZE = (48, 64)


@pytest.fixture(scope="module")
def renderer(bank: TextureBank) -> Renderer:
    return SyntheticScenes("handheld", 3, SIZE, bank=bank).renderer([0, 1])


@pytest.fixture(scope="module")
def frames(renderer: Renderer) -> list[Frame]:
    return renderer.scenes.frames(1 + torch.arange(-3, 3).double()[:, None].expand(6, 2) / 30)


def test_frames_made_at_once_are_those_made_one_by_one(renderer: Renderer, frames: list[Frame]) -> None:
    for number in (0, 3, 5):
        alone = renderer.scenes.frame(1 + (number - 3) / 30)
        for name in ("table", "sun", "eye", "to_world", "time", "lens"):
            assert torch.allclose(getattr(frames[number], name), getattr(alone, name), rtol=1e-6), name


def test_a_trail_is_where_the_motion_leads(renderer: Renderer, frames: list[Frame]) -> None:
    trails = true_trajectories(renderer, frames, 3)
    assert trails.displacements.shape == (2, 6, 2, 6, 8) and trails.displacements[:, 3].abs().max() < 1e-3
    motion = renderer.motion_to(renderer.view(1.0), frames[5])
    near = motion.flow[:, :, 3::CELL, 3::CELL], motion.flow[:, :, 4::CELL, 4::CELL]
    smooth = ((near[0] - near[1]).norm(dim=1, keepdim=True) < 0.05) & (trails.confidence[:, 5] > 0)
    off = (trails.displacements[:, 5] - (near[0] + near[1]) / 2).norm(dim=1, keepdim=True)
    assert smooth.float().mean() > 0.5 and off[smooth].max() < 0.1


def test_grouping_frames_does_not_change_the_result(
    renderer: Renderer, frames: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = true_trajectories(renderer, frames, 3)
    monkeypatch.setattr(ground_truth_module, "FRAMES_PER_BATCH", 4)
    parts = true_trajectories(renderer, frames, 3)
    assert torch.equal(parts.displacements, whole.displacements) and torch.equal(parts.confidence, whole.confidence)


def test_motions_chained_are_true_trails(renderer: Renderer, frames: list[Frame]) -> None:
    steps = [[true_warp(renderer, *pair) for pair in pairs] for pairs in (pairwise(frames), _backwards(frames))]
    motions = (torch.stack([step.flow for step in way], dim=1) for way in steps)
    trusts = (torch.stack([(~step.occlusion).float() for step in way], dim=1) for way in steps)
    chained, true = chain_flows(*motions, *trusts, 3), true_trajectories(renderer, frames, 3)
    both = (chained.confidence > 0.5) & (true.confidence > 0)
    off = (chained.displacements - true.displacements).norm(dim=2, keepdim=True)[both]
    assert both.float().mean() > 0.7 and off.median() < 0.02 and off.quantile(0.9) < 0.3


def _backwards(frames: list[Frame]) -> Iterator[tuple[Frame, Frame]]:
    return ((later, earlier) for earlier, later in pairwise(frames))


def test_the_warp_is_that_of_the_clip(renderer: Renderer) -> None:
    shaky, steady = (renderer.scenes.frame(1.0, calm) for calm in (False, True))
    warp = true_warp(renderer, steady, shaky)
    whole = renderer.motion_to(renderer.view(1.0, steady=True), shaky).flow
    near = (whole[:, :, 3::CELL, 3::CELL] + whole[:, :, 4::CELL, 4::CELL]) / 2
    assert warp.flow.norm(dim=1).max() > 0.1
    assert (warp.flow - near).norm(dim=1).median() < 0.01


def test_without_shake_there_is_no_warp(bank: TextureBank) -> None:
    still = SyntheticScenes("handheld", 3, SIZE, shake=0.0, bank=bank).renderer([0])
    shaky, steady = (still.scenes.frame(1.0, calm) for calm in (False, True))
    assert true_warp(still, steady, shaky).flow.abs().max() < 1e-3


def test_confidence_stays_zero_on_both_sides() -> None:
    seen = torch.tensor([[1.0, 0, 1, 0, 1, 1, 0.5, 1]])
    assert propagate_confidence(seen, 4).tolist() == [[0, 0, 0, 0, 1, 1, 0.5, 0.5]]
