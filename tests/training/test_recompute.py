"""Activations computed again: the same numbers out of less memory."""

import copy

import pytest
import torch
from torch import Tensor, nn

from protoformer.model import build_flow, preset
from protoformer.training import flow_loss
from protoformer.training.recompute import recompute_activations

SIZE = (64, 64)


def trained_once(network: nn.Module) -> tuple[dict[str, Tensor], int]:
    """Gradients of a step, and the bytes that were kept for its backward pass."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 1, 3, *SIZE, generator=generator)
    flow, valid = torch.ones(1, 2, *SIZE), torch.ones(1, 1, *SIZE, dtype=torch.bool)
    weights = {parameter.data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = flow_loss(network(first, second, every=True), flow, valid).total
    loss.backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}, sum(kept.values())


@pytest.mark.parametrize("decoder", ["recurrent", "memory"])
def test_gradients_are_the_same_and_less_is_kept(decoder: str) -> None:
    torch.manual_seed(0)
    plain = build_flow(preset("tiny", decoder=decoder)).train()
    frugal = copy.deepcopy(plain)
    recompute_activations(frugal)
    expected, all_of_it = trained_once(plain)
    found, some = trained_once(frugal)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert some < 0.5 * all_of_it
    assert list(frugal.state_dict()) == list(plain.state_dict())


def test_a_network_in_use_is_as_before() -> None:
    torch.manual_seed(0)
    plain = build_flow(preset("tiny")).eval()
    frugal = copy.deepcopy(plain)
    recompute_activations(frugal)
    first, second = torch.rand(2, 1, 3, *SIZE)
    with torch.no_grad():
        assert torch.equal(frugal(first, second).flows[-1], plain(first, second).flows[-1])
