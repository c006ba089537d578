"""Traces of the encoder layers, and layers with one prototype removed."""

from threading import Thread

import pytest
import torch
import torch.nn.functional as F

from protoformer.explain.tracing import layer_mixer, trace_encoder, trajectory, without_prototype
from protoformer.models.config import preset
from protoformer.models.encoder import Encoder
from protoformer.models.kernels.reference import nearest_prototype

IMAGES = torch.rand(2, 3, 48, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1


def encoder(**fields: object) -> Encoder:
    torch.manual_seed(0)
    return Encoder(preset("tiny", encoder=fields).encoder).eval()


@pytest.mark.parametrize("fields", [{}, {"components": "ls"}, {"components": "cap"}, {"update": "k_means"}], ids=str)
@torch.no_grad()
def test_the_last_step_of_a_trace_is_what_the_network_used(fields: dict[str, object]) -> None:
    network = encoder(**fields)
    expected = network(IMAGES, return_prototypes=True).prototypes
    traces = trace_encoder(network, IMAGES)
    assert [(each.stage, each.block, each.stride) for each in traces] == [(1, 1, 4), (2, 1, 8)]
    for trace, (used,) in zip(traces, expected, strict=True):
        assert torch.equal(trace.states[-1].centers, used.centers)
        assert torch.equal(trace.assignments[-1], used.owners)
        assert len(trace.states) == len(trace.assignments) == trace.prototyping.num_iterations + 1
        again = trajectory(trace.prototyping, trace.tokens, trace.size, trace.prototyping.num_iterations)
        torch.testing.assert_close(again[-1].centers, used.centers)


def test_assignments_of_earlier_steps_use_their_prototypes() -> None:
    for trace in trace_encoder(encoder(), IMAGES):
        pooled = F.adaptive_avg_pool2d(trace.tokens.transpose(1, 2).unflatten(2, trace.size), trace.prototyping.grid)
        torch.testing.assert_close(trace.states[0].centers, pooled.flatten(2).transpose(1, 2))
        for (centers, prior), assigned in zip(trace.states, trace.assignments, strict=True):
            near = None if prior is None else prior.assignment_prior()
            assert torch.equal(nearest_prototype(trace.tokens, centers, near), assigned)


@torch.no_grad()
def test_calls_from_another_thread_are_not_traced() -> None:
    network = encoder()
    alone = trace_encoder(network, IMAGES)

    def run_other_thread(*_: object) -> None:
        hook.remove()
        other = Thread(target=network, args=(IMAGES.flip(3),))
        other.start()
        other.join()

    hook = layer_mixer(network, 2, 1).register_forward_pre_hook(run_other_thread)
    for one, two in zip(alone, trace_encoder(network, IMAGES), strict=True):
        assert torch.equal(one.tokens, two.tokens)


def test_tracing_does_not_change_the_network() -> None:
    network = encoder()
    before = network(IMAGES).features
    trace_encoder(network, IMAGES)
    assert all(torch.equal(one, other) for one, other in zip(before, network(IMAGES).features, strict=True))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("fields", [{}, {"components": "cap"}, {"synchronization": "fc"}], ids=str)
@torch.no_grad()
def test_removing_a_prototype_changes_only_its_pixels(fields: dict[str, object]) -> None:
    network = encoder(**fields)
    trace = trace_encoder(network, IMAGES)[1]
    mixer = layer_mixer(network, 2, 1)
    before, _ = mixer(trace.tokens, trace.size)
    removed = int(trace.assignments[-1][0].mode().values)
    with without_prototype(mixer, removed):
        after, _ = mixer(trace.tokens, trace.size)
    changed = (after - before).abs().sum(dim=-1) > 1e-5
    assert not changed[1].any()
    mask = trace.assignments[-1][0] == removed
    if fields.get("components") != "cap":  # soft memberships depend on every prototype
        assert torch.equal(changed[0], mask)
    assert changed[0][mask].all()
    assert torch.equal(mixer(trace.tokens, trace.size)[0], before)
