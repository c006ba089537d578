"""The flow network: two decoders, one interface."""

import pytest
import torch

from protoformer.models import layers as attention
from protoformer.models.config import PRESETS, preset
from protoformer.models.layers import Attention
from protoformer.models.profiling import count_flow_operations, count_parameters, count_parts
from protoformer.models.protoformer import build_network

DECODERS = ("recurrent", "memory")


def pair(height: int, width: int, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second = 2 * torch.rand(2, batch, 3, height, width, generator=generator) - 1
    return first, second


def network(decoder: str, matching: bool = True, aggregation: str = "prototypes") -> torch.nn.Module:
    torch.manual_seed(0)
    built = build_network(
        preset("tiny", flow={"decoder": decoder, "global_matching": matching, "aggregation": aggregation}), "flow"
    ).eval()
    # The last layer starts near zero, which would hide most differences.
    torch.nn.init.normal_(built.flow_head.decoder.update.delta_head[-1].weight, std=0.05)
    torch.nn.init.constant_(built.flow_head.decoder.update.aggregation.strength, 1.0)
    return built


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("size", [(1, 1), (15, 15), (40, 130), (131, 67)])
def test_flow_and_its_scale_have_the_images_size(decoder, size):
    with torch.no_grad():
        prediction = network(decoder)(*pair(*size, batch=2))
    assert prediction.flows[-1].shape == (2, 2, *size)
    assert prediction.log_scales[-1].shape == (2, 1, *size)
    assert prediction.flows[-1].isfinite().all()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("aggregation", ["pixels", "prototypes"])
def test_storing_all_pairs_or_not_gives_the_same_flow(decoder, aggregation):
    built = network(decoder, aggregation=aggregation)
    with torch.no_grad():
        stored, lean = (built(*pair(72, 80), low_memory=low).flows[-1] for low in (False, True))
    assert stored.abs().max() > 0.1
    assert torch.allclose(stored, lean, atol=1e-3)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_pairs_flow_does_not_depend_on_what_else_is_in_the_batch(decoder):
    built, (first, second) = network(decoder), pair(64, 72, batch=3)
    with torch.no_grad():
        together = built(first, second).flows[-1]
        alone = built(first[1:2], second[1:2]).flows[-1]
    assert torch.allclose(together[1:2], alone, atol=1e-3)


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_update_is_returned_on_request_and_the_last_alone_otherwise(decoder):
    built = network(decoder)
    with torch.no_grad():
        every = built(*pair(64, 64), num_updates=3, return_all=True)
        last = built(*pair(64, 64), num_updates=3)
    assert (len(every.flows), len(last.flows)) == (3, 1)
    assert torch.equal(every.flows[-1], last.flows[-1])


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_warm_start_is_where_refinement_begins(decoder):
    built = network(decoder)
    torch.nn.init.zeros_(built.flow_head.decoder.update.delta_head[-1].weight)
    torch.nn.init.zeros_(built.flow_head.decoder.update.delta_head[-1].bias)
    start = torch.tensor([5.0, -3.0]).view(1, 2, 1, 1).expand(1, 2, 50, 70)
    with torch.no_grad():
        flow = built(*pair(50, 70), init_flow=start).flows[-1]
    assert torch.allclose(flow, start, atol=1e-4)


@pytest.mark.parametrize("decoder", DECODERS)
def test_training_reaches_every_parameter(decoder):
    built = network(decoder).train()
    prediction = built(*pair(64, 64), return_all=True)
    total = sum(flow.abs().mean() for flow in prediction.flows) + sum(s.abs().mean() for s in prediction.log_scales)
    total = total - prediction.matches.log_probs.mean()
    total.backward()
    assert [name for name, parameter in built.named_parameters() if parameter.grad is None] == []


def test_prototypes_of_the_first_image_come_on_request():
    first, second = pair(64, 64)
    with torch.no_grad():
        built = network("recurrent")
        asked = built(first, second, return_prototypes=True).prototypes
        alone = built.encoder(first, return_prototypes=True).prototypes
    assert torch.allclose(asked[0][0].centers, alone[0][0].centers, atol=1e-4)
    assert asked[0][0].centers.shape[0] == 1


def test_a_start_of_another_size_and_no_updates_are_refused():
    first, second = pair(64, 64)
    with pytest.raises(ValueError, match=r"B x 2 x H x W like the images, not \(1, 2, 8, 8\)"):
        network("recurrent")(first, second, init_flow=torch.zeros(1, 2, 8, 8))
    with pytest.raises(ValueError, match="at least one update, not 0"):
        network("recurrent")(first, second, num_updates=0)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("aggregation", ["pixels", "prototypes"])
def test_half_precision_is_close_and_learns(decoder, aggregation):
    # Without matching: of random features another cell may be the likeliest one by a rounding.
    built = network(decoder, matching=False, aggregation=aggregation)
    with torch.no_grad():
        exact = built(*pair(64, 72)).flows[-1]
    with torch.autocast("cpu", torch.bfloat16):
        lowered = built(*pair(64, 72)).flows[-1]
    assert (lowered - exact).norm() < 0.1 * exact.norm()
    lowered.abs().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in built.parameters() if parameter.grad is not None)


def test_attention_in_pieces_is_the_same_attention(monkeypatch):
    layer, tokens = Attention(32, 2), torch.randn(10, 5, 32)
    whole = layer(tokens, tokens)
    monkeypatch.setattr(attention, "MAX_BATCH", 3)
    assert torch.allclose(layer(tokens, tokens), whole, atol=1e-6)


def test_the_expected_error_has_a_least_and_its_gradient_never_dies():
    built = network("recurrent").train()
    torch.nn.init.constant_(built.flow_head.decoder.update.delta_head[-1].bias, -20.0)
    log_scale = built(*pair(64, 64)).log_scales[-1]
    assert log_scale.min() >= -4.0 - 1e-5
    log_scale.sum().backward()
    assert built.flow_head.decoder.update.delta_head[-1].bias.grad[2] > 0


def test_batches_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"the same shape, B x 3 x H x W, not \(1, 3, 8, 8\) and \(1, 3, 8, 9\)"):
        network("recurrent")(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 9))


def test_the_papers_network_has_two_unshared_encoders_and_11_9_million_parameters():
    with torch.device("meta"):
        built = build_network(PRESETS["paper"], "flow")
    counts = count_parts(built)
    assert abs(count_parameters(built) - 11.9e6) < 0.3e6
    assert sum(counts.values()) == count_parameters(built)
    assert counts["feature encoder"] == counts["context encoder"]


@pytest.mark.parametrize("name", PRESETS)
def test_the_parts_of_a_network_add_up(name):
    with torch.device("meta"):
        built = build_network(PRESETS[name], "flow")
    assert sum(count_parts(built).values()) == count_parameters(built)


def test_operations_grow_with_the_updates_by_the_same_amount_each():
    counts = [
        count_flow_operations(preset("tiny", flow={"num_updates": updates}), 128, 256) for updates in (1, 2, 3, 8)
    ]
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0
    assert counts[3] - counts[0] == 7 * (counts[1] - counts[0])


@torch.no_grad()
def test_estimates_that_are_not_upsampled_are_those_that_upsampling_averages() -> None:
    net = network("recurrent")
    first, second = pair(68, 92)
    features = net.encode_flow_frame(torch.cat((first, second)))
    fine, coarse = (net.decode_flow(first, features[:1], features[1:], 2, upsampled=each) for each in (True, False))
    assert fine.flows[-1].shape == (1, 2, 68, 92) and coarse.flows[-1].shape == (1, 2, 9, 12)
    assert coarse.log_scales[-1].shape == (1, 1, 9, 12)
    for axis in range(2):  # convex combinations stay within the range of what they combine
        low, high = coarse.flows[-1][:, axis].aminmax()
        assert fine.flows[-1][:, axis].min() >= low - 1e-4 and fine.flows[-1][:, axis].max() <= high + 1e-4
