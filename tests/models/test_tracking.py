"""The tracking network: any batch, every parameter, and what its parts promise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protoformer.errors import InputError
from protoformer.models.config import preset
from protoformer.models.heads.tracking import CornerHead, TargetTokens, TrackingPrediction, clamp_box_size
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.tracking.tracker import PRIOR_STRENGTH

SMALL = {"search_size": 64, "template_size": 48}


@pytest.fixture(scope="module")
def network() -> ProtoFormer:
    torch.manual_seed(0)
    return build_network(preset("tiny", tracking=SMALL), "track").eval()


def example(batch: int, reference: int = 48, search: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    images = (2 * torch.rand(batch, 3, side, side, generator=generator) - 1 for side in (reference, search))
    boxes = torch.tensor([reference / 4, reference / 4, reference / 2, reference / 3]).repeat(batch, 1)
    near, far = images
    return near, boxes, far


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 4), st.integers(3, 8), st.integers(3, 10))
def test_any_batch_and_any_sides_of_whole_eights(network: ProtoFormer, batch: int, reference: int, search: int) -> None:
    with torch.no_grad():
        found = network(*example(batch, 8 * reference, 8 * search))
    assert [tuple(boxes.shape) for boxes in found.boxes] == [(batch, 4)] * network.config.tracking.num_stages
    assert found.score_logits.shape == (batch,) and found.heatmaps.shape == (batch, 2, 2 * search, 2 * search)
    assert torch.allclose(found.heatmaps.sum(dim=(2, 3)), torch.ones(batch, 2), atol=1e-5)
    assert all(tensor.isfinite().all() for tensor in (*found.boxes, found.score_logits))


@torch.no_grad()
def test_targets_do_not_see_one_another(network: ProtoFormer) -> None:
    reference, boxes, search = example(3)
    whole = network(reference, boxes, search)
    alone = network(reference[1:2], boxes[1:2], search[1:2])
    assert torch.allclose(whole.boxes[-1][1:2], alone.boxes[-1], atol=1e-3)
    assert torch.allclose(whole.score_logits[1:2], alone.score_logits, atol=1e-4)


@torch.no_grad()
def test_a_template_serves_every_search(network: ProtoFormer) -> None:
    reference, boxes, search = example(2)
    template = network.embed_target(reference, boxes)
    assert torch.equal(network.locate_target(template, search).boxes[-1], network(reference, boxes, search).boxes[-1])


def total(found: TrackingPrediction) -> torch.Tensor:
    return torch.stack([boxes.sum() for boxes in found.boxes]).sum() + found.score_logits.sum()


@pytest.mark.parametrize("fields", [{}, {"target_grid": 1, "num_stages": 1}])
def test_gradients_reach_every_parameter(fields: dict[str, int]) -> None:
    torch.manual_seed(0)
    network = build_network(preset("tiny", tracking={**SMALL, **fields}), "track").train()
    total(network(*example(2))).backward()
    still = [name for name, parameter in network.named_parameters() if not (parameter.grad is not None)]
    assert still == []
    # Zero where a bias adds the same to every key of a softmax, or to every cell of a heat map, and for the temperature
    # of a hard assignment.
    dead = [name for name, parameter in network.named_parameters() if not parameter.grad.abs().max() > 0]
    assert all(name.endswith((".key.bias", "heatmap_proj.bias", ".log_temperature")) for name in dead)


@pytest.mark.parametrize("shape", [(1, 3, 60, 64), (1, 3, 64, 60), (1, 1, 64, 64), (3, 64, 64)])
def test_sides_that_are_not_whole_eights_are_named(network: ProtoFormer, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiples of 8"):
        network(torch.zeros(shape), torch.zeros(1, 4), torch.zeros(1, 3, 64, 64))


def test_corners_are_the_means_of_their_heat_maps_in_pixels() -> None:
    head = CornerHead(2)
    with torch.no_grad():
        head.heatmap_proj.weight.copy_(torch.eye(2)[..., None, None])
        head.heatmap_proj.bias.zero_()
    maps = torch.full((1, 2, 16, 16), -100.0)
    maps[0, 0, 2, 3] = maps[0, 1, 9, 12] = 100.0
    _, boxes, _ = head(maps, None, None)
    assert torch.allclose(boxes, torch.tensor([[14.0, 10.0, 36.0, 28.0]]))  # middles of cells (3, 2) and (12, 9)


@torch.no_grad()
def test_an_expectation_decides_between_two_places_that_look_alike() -> None:
    head = CornerHead(2)
    with torch.no_grad():
        head.heatmap_proj.weight.copy_(torch.eye(2)[..., None, None])
        head.heatmap_proj.bias.zero_()
    maps = torch.full((2, 2, 16, 16), -100.0)
    maps[:, :, 4, 2] = maps[:, :, 4, 13] = 0.0
    expected = torch.tensor([[8.0, 16.0, 2.0, 2.0]]).repeat(2, 1)
    _, boxes, near = head(maps, expected, torch.tensor([50.0, 0.0]))
    assert boxes[0, 0] == pytest.approx(10, abs=0.1)  # where it was expected
    assert boxes[1, 0] == pytest.approx(32, abs=0.1)  # between the two, when nothing is expected
    # What is learned after it goes on from a box as in use.
    in_use = head.eval()(maps, expected, torch.tensor([50.0, 0.0]))
    assert torch.equal(near, in_use[1]) and torch.equal(near, in_use[2])


@torch.no_grad()
def test_in_use_a_corner_lies_on_one_of_two_places_that_look_alike_and_not_between_them() -> None:
    head = CornerHead(2).eval()
    head.heatmap_proj.weight.copy_(torch.eye(2)[..., None, None])
    head.heatmap_proj.bias.zero_()
    maps = torch.full((3, 2, 16, 16), -100.0)
    maps[:, :, 4, 2] = maps[:, :, 4, 12] = 0.0
    expected = torch.tensor([[8.0, 16.0, 2.0, 2.0], [40.0, 16.0, 2.0, 2.0], [40.0, 16.0, 2.0, 2.0]])
    heats, boxes, _ = head(maps, expected, torch.tensor([PRIOR_STRENGTH, PRIOR_STRENGTH, 0.0]))
    assert boxes[:, 0].tolist() == pytest.approx([10, 50, 10])  # where it was expected; else either
    assert heats[:, :, 4, 2] == pytest.approx(0.5, abs=1e-6)
    maps[:, :, 4, 3] = 0.0  # a corner between two cells
    assert head(maps, expected, torch.tensor([PRIOR_STRENGTH] * 3))[1][0, 0] == pytest.approx(12)


@torch.no_grad()
def test_heat_keeps_full_precision_where_the_rest_is_in_half() -> None:
    head = CornerHead(4).eval()
    maps = 20 * torch.rand(1, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    plain = head(maps, None, None)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(maps, None, None)[0], plain)


@torch.no_grad()
def test_what_is_around_a_long_target_is_what_the_crop_shows() -> None:
    tokens = TargetTokens(8, 4)
    maps = torch.rand(1, 8, 16, 16, generator=torch.Generator().manual_seed(0)) + 1
    found = tokens(maps, torch.tensor([[48.0, 20.0, 32.0, 88.0]])).tokens - tokens.token_embed
    # Beyond the crop there would be zeros, of which the norm makes the same token everywhere.
    around = found[0, 17:].unflatten(0, (4, 4))
    assert (around[0] - around[3]).abs().amax(dim=1).min() > 1e-3
    assert tokens.norm(torch.zeros(1, 1, 8))[0, 0].sub(around[0]).abs().amax(dim=1).min() > 1e-3


def test_a_box_whose_corners_crossed_lies_about_the_same_middle() -> None:
    assert clamp_box_size(torch.tensor([[10.0, 10.0, -6.0, 20.0]])).tolist() == [[5, 10, 4, 20]]


def test_the_presets_have_these_many_parameters() -> None:
    counts = {}
    for name in ("paper", "fast", "tiny"):
        with torch.device("meta"):
            network = build_network(preset(name), "track")
        counts[name] = round(sum(each.numel() for each in network.parameters()) / 1e6, 1)
    assert counts == {"paper": 14.6, "fast": 5.7, "tiny": 1.2}


@pytest.mark.parametrize("fields", [{"search_size": 100}, {"hidden_dim": 100}, {"num_stages": 0}, {"target_grid": 0}])
def test_a_configuration_that_cannot_be_is_an_input_error(fields: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"multiple of|1 or more"):
        preset("paper", tracking=fields)


@torch.no_grad()
def test_while_training_the_next_stage_goes_on_from_a_box_as_in_use() -> None:
    torch.manual_seed(0)
    network = build_network(preset("tiny", tracking=SMALL), "track").train()
    seen: list[torch.Tensor] = []
    network.tracking_head.refinements[0].register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    reference, search = torch.rand(2, 1, 3, 64, 64) * 2 - 1
    boxes = torch.tensor([[20.0, 16.0, 20.0, 24.0]])
    learned = network(reference, boxes, search).boxes[0]
    in_use = network.eval()(reference, boxes, search).boxes[0]
    assert torch.equal(seen[0], in_use) and torch.equal(seen[1], in_use)
    assert not torch.allclose(learned, in_use)
