"""Networks of shapes alone."""

import pytest
import torch
from torch import nn

from protoformer.models.config import PRESETS, TASKS
from protoformer.models.protoformer import build_network
from protoformer.models.runtime import meta_init


@pytest.mark.parametrize("task", TASKS)
def test_a_network_of_shapes_alone_has_those_of_the_real_one(task: str) -> None:
    with meta_init():
        shapes = build_network(PRESETS["tiny"], task)
    assert all(parameter.is_meta for parameter in shapes.parameters())
    real = build_network(PRESETS["tiny"], task).state_dict()
    assert {name: each.shape for name, each in shapes.state_dict().items()} == {n: r.shape for n, r in real.items()}


def test_tensors_that_have_numbers_are_filled_all_the_same() -> None:
    with meta_init():
        drawn = nn.init.normal_(torch.zeros(4, 4, device="cpu"))
        assert nn.init.kaiming_normal_(torch.zeros(2, 2)).is_meta
    assert drawn.device.type == "cpu" and drawn.all()
