"""The running mean of weights."""

import torch
from torch import nn

from protoformer.training.step import WeightAverage

COUNTS, DOES_NOT = torch.ones(()), torch.zeros(())


def constant(value: float) -> nn.Linear:
    network = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        network.weight.fill_(value)
    return network


def put(network: nn.Linear, value: float) -> None:
    with torch.no_grad():
        network.weight.fill_(value)


def test_the_decay_grows_with_the_updates_up_to_its_own() -> None:
    network = constant(0.0)
    average, expected = WeightAverage(network, decay=0.3), 0.0
    for count in range(6):
        put(network, float(count + 1))
        average.update(COUNTS)
        decay = min(0.3, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * (count + 1)
        assert torch.allclose(average.network.weight, torch.tensor(expected))
    assert average.updates == 6


def test_a_skipped_step_leaves_the_average_as_it_was() -> None:
    network = constant(1.0)
    average = WeightAverage(network, decay=0.9)
    put(network, 3.0)
    average.update(COUNTS)
    before = average.network.weight.clone()
    put(network, 5.0)
    average.update(DOES_NOT)
    assert torch.equal(average.network.weight, before) and average.updates == 1


def test_a_decay_of_nothing_is_the_network_itself() -> None:
    network = constant(0.1)
    average = WeightAverage(network, decay=0.0)
    put(network, 0.7)
    average.update(COUNTS)
    assert torch.equal(average.network.weight, network.weight)


def test_floating_buffers_are_averaged_and_others_copied_in_eval_mode() -> None:
    network = nn.BatchNorm1d(1).train()
    average = WeightAverage(network, decay=0.5)
    network(torch.tensor([[0.0], [2.0]]))
    average.update(COUNTS)
    assert average.network.num_batches_tracked == 1
    assert torch.allclose(average.network.running_mean, 0.9 * network.running_mean)  # (1 - 1/10) of the way from 0
    assert not average.network.training and not average.network.weight.requires_grad


def test_the_average_of_half_precision_is_in_float32() -> None:
    assert WeightAverage(constant(1.0).bfloat16(), decay=0.5).network.weight.dtype == torch.float32
