"""Activations computed again are the same numbers out of less memory; and which parts of a network are compiled.

That compiled parts compute the same takes a minute, and is tested on a GPU.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protoformer.depth.losses import depth_loss
from protoformer.flow.losses import flow_loss
from protoformer.models.config import preset
from protoformer.models.protoformer import build_network
from protoformer.training.engine import compile_parts, recompute_activations

SIZE = (64, 64)


def trained_once(network: nn.Module) -> tuple[dict[str, Tensor], int]:
    """Gradients of a step, and the bytes that were kept for its backward pass."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(2, 1, 3, *SIZE, generator=generator)
    flow, valid = torch.ones(1, 2, *SIZE), torch.ones(1, 1, *SIZE, dtype=torch.bool)
    depth, focal = torch.full((1, 1, *SIZE), 2.0), torch.tensor([60.0])
    weights = {parameter.data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if network.tasks == ("depth",):
            loss = depth_loss(network(first, return_all=True), depth, valid, focal).total
        else:
            loss = flow_loss(network(first, second, return_all=True), flow, valid).total
    loss.backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}, sum(kept.values())


NETWORKS = {
    "recurrent": lambda: build_network(preset("tiny", flow={"decoder": "recurrent"}), "flow"),
    "memory": lambda: build_network(preset("tiny", flow={"decoder": "memory"}), "flow"),
    "depth": lambda: build_network(preset("tiny"), "depth"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_the_same_and_less_is_kept(name: str) -> None:
    torch.manual_seed(0)
    plain = NETWORKS[name]().train()
    frugal = copy.deepcopy(plain)
    recompute_activations(frugal)
    expected, all_of_it = trained_once(plain)
    found, some = trained_once(frugal)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert some < 0.5 * all_of_it
    assert list(frugal.state_dict()) == list(plain.state_dict())


def test_a_network_in_use_is_as_before() -> None:
    torch.manual_seed(0)
    plain = build_network(preset("tiny"), "flow").eval()
    frugal = copy.deepcopy(plain)
    recompute_activations(frugal)
    first, second = torch.rand(2, 1, 3, *SIZE)
    with torch.no_grad():
        assert torch.equal(frugal(first, second).flows[-1], plain(first, second).flows[-1])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("recurrent", ["encoder.stages.0", "encoder.stages.1", "flow_head.decoder.update"]),
        (
            "memory",
            ["encoder.stages.0", "encoder.stages.1", "flow_head.decoder.costs.memory", "flow_head.decoder.update"],
        ),
        (
            "depth",
            [
                "encoder.stages.0",
                "encoder.stages.1",
                "depth_head.stages.0",
                "depth_head.stages.1",
                "depth_head.update",
                "depth_head.refiner",
            ],
        ),
    ],
)
def test_stages_the_memory_of_costs_and_updates_are_compiled_for_their_shapes(
    name: str, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[nn.Module, dict[str, Any]]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: compiled.append((module, options)))
    network = NETWORKS[name]()
    compile_parts(network)
    names = {module: name for name, module in network.named_modules()}
    assert [(names[module], options) for module, options in compiled] == [(part, {"dynamic": False}) for part in parts]
