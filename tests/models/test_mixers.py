"""Mixers of the ablations, and synchronization across the images of a pair."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protoformer.flow.engine import FlowEngine
from protoformer.models.config import preset
from protoformer.models.encoder import Encoder
from protoformer.models.layers import WindowAttention
from protoformer.models.protoformer import build_network
from protoformer.models.prototyping import Prototyping
from protoformer.models.synchronization import CrossSynchronization

SIZE = (13, 18)


def tokens_of(size: tuple[int, int] = SIZE, channels: int = 32) -> Tensor:
    return torch.randn(2, size[0] * size[1], channels, generator=torch.Generator().manual_seed(0))


def window_attention(num_cells: int = 6) -> WindowAttention:
    torch.manual_seed(0)
    return WindowAttention(32, 2, num_cells)


def test_window_attention_equals_attention_of_each_pixel_to_its_window_and_the_cells():
    layer, tokens = window_attention(), tokens_of()
    actual, maps = layer(tokens, SIZE), tokens.view(2, *SIZE, 32)
    cells = F.adaptive_avg_pool2d(maps.permute(0, 3, 1, 2), (2, 3)).flatten(2).transpose(1, 2)
    for y, x in ((0, 0), (7, 8), (12, 17), (12, 3)):
        top, left = y // 8 * 8, x // 8 * 8
        visible = torch.cat((maps[:, top : top + 8, left : left + 8].flatten(1, 2), cells), dim=1)
        expected = super(WindowAttention, layer).forward(maps[:, y, x][:, None], visible)
        torch.testing.assert_close(actual.view(2, *SIZE, 32)[:, y, x], expected[:, 0])


def test_the_cost_of_window_attention_is_linear():
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    for side in (64, 128):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            WindowAttention(32, 2, 100)(torch.empty(1, side * side, 32), (side, side))
        counts.append(counter.get_total_flops())
    assert 3.8 < counts[1] / counts[0] <= 4.0


@pytest.mark.parametrize("mixer", ["attention", "none"])
def test_networks_with_other_mixers_train_and_have_no_prototypes(mixer):
    network = build_network(preset("tiny", encoder={"mixer": mixer}), "flow").train()
    frames = torch.rand(2, 1, 3, 64, 72)
    prediction = network(*frames, return_all=True, return_prototypes=True)
    assert all(stage == () for stage in prediction.prototypes)
    (prediction.flows[-1].abs().mean() + prediction.log_scales[-1].mean()).backward()
    assert [name for name, each in network.named_parameters() if each.grad is None] == []
    for task in ("depth", "track", "stabilize"):
        build_network(preset("tiny", encoder={"mixer": mixer}), task)


def test_mixers_differ_in_nothing_but_the_mixer():
    names = {
        mixer: {
            name
            for name, _ in Encoder(preset("tiny", encoder={"mixer": mixer}).encoder).named_parameters()
            if ".mixer." not in name
        }
        for mixer in ("prototypes", "attention", "none")
    }
    assert names["prototypes"] == names["attention"]
    assert names["attention"] - names["none"] == {
        f"stages.{stage}.blocks.0.norm.{name}" for stage in (0, 1) for name in ("weight", "bias")
    }


def cross(spatial_prior: bool = False) -> CrossSynchronization:
    torch.manual_seed(0)
    return CrossSynchronization(32, 2, Prototyping(32, 2, 6, num_iterations=1, spatial_prior=spatial_prior))


@pytest.mark.parametrize("spatial_prior", [False, True])
def test_pixels_get_the_update_of_the_other_images_prototypes(spatial_prior):
    module = cross(spatial_prior)
    maps1, maps2 = (tokens_of()[image].T.reshape(1, 32, *SIZE) for image in (0, 1))
    new1, new2 = module(maps1, maps2)
    swapped2, swapped1 = module(maps2, maps1)
    torch.testing.assert_close((new1, new2), (swapped1, swapped2))
    tokens1, tokens2 = (module.norm(each.flatten(2).transpose(1, 2)) for each in (maps1, maps2))
    others = module.prototyping(tokens2, SIZE)
    others = type(others)(others.centers, others.memberships, SIZE)
    update, _ = module.synchronization(tokens1, others)
    torch.testing.assert_close(new1, maps1 + update.transpose(1, 2).reshape(1, 32, *SIZE))


def test_cross_image_is_an_option_that_learns():
    torch.manual_seed(0)
    network = build_network(preset("tiny", flow={"cross_image": True}), "flow")
    assert build_network(preset("tiny"), "flow").flow_head.cross_image is None
    frames = torch.rand(2, 1, 3, 64, 72)
    prediction = network.train()(*frames, return_all=True)
    (prediction.flows[-1].abs().mean() + prediction.log_scales[-1].mean()).backward()
    assert [name for name, each in network.named_parameters() if each.grad is None] == []


def test_with_cross_image_a_video_encodes_each_frame_once(monkeypatch):
    from protoformer.flow.tiling import plan_flow
    from protoformer.models.protoformer import ProtoFormer

    network = build_network(preset("tiny", flow={"cross_image": True}), "flow").eval()
    calls = []
    encode = ProtoFormer.encode_flow_frame
    monkeypatch.setattr(
        ProtoFormer, "encode_flow_frame", lambda self, frames: calls.append(len(frames)) or encode(self, frames)
    )
    plan = plan_flow((64, 72), network.config, torch.device("cpu"))
    engine = FlowEngine(network, torch.device("cpu"), plan)
    frames = engine.encode(list(torch.rand(3, 3, 64, 72)))
    assert sum(calls) == 3
    flows = list(engine.flows(list(itertools.pairwise(frames))))
    assert sum(calls) == 3 and len(flows) == 2
