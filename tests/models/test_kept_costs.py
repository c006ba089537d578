"""Which kind of costs a network keeps, where, and how many bytes that is."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import protoformer as pf
from protoformer.models.heads import flow as flow_decoder
from protoformer.models.heads.correlation import Correlation, all_pairs_bytes, row_bytes
from protoformer.models.heads.flow import cost_bytes
from protoformer.models.kernels import dispatch
from protoformer.models.kernels.dispatch import stores_half_costs, use_version
from protoformer.models.protoformer import build_network

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the costs that networks have made since."""
    made: list[str] = []
    choose = flow_decoder._build_correlation

    def chosen(*arguments: object) -> Correlation:
        found = choose(*arguments)  # type: ignore[arg-type]
        made.append(type(found).__name__)
        return found

    monkeypatch.setattr(flow_decoder, "_build_correlation", chosen)
    return made


@contextmanager
def products(half: bool, gradients: bool) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, enabled=half), torch.set_grad_enabled(gradients):
        yield


def test_a_cpu_in_use_and_in_half_precision_keeps_rows_and_no_other_does(kinds: list[str]) -> None:
    network = build_network(pf.PRESETS["tiny"], "flow").eval()
    images = torch.rand(2, 1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for half, gradients, low_memory in (
        (True, False, False),
        (False, False, False),
        (True, True, False),
        (True, False, True),
    ):
        with products(half, gradients):
            network(*images, num_updates=1, low_memory=low_memory)
    with products(True, False), use_version("plain"):
        network(*images, num_updates=1)
    assert kinds == [
        "RowCorrelation",
        "StoredCorrelation",
        "StoredCorrelation",
        "OnDemandCorrelation",
        "StoredCorrelation",
    ]


def test_costs_are_halved_on_a_cpu_and_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "TRITON_AVAILABLE", True)
    assert stores_half_costs(CPU, True) and stores_half_costs(GPU, True)
    assert not stores_half_costs(CPU, False) and not stores_half_costs(GPU, False)
    monkeypatch.setattr(dispatch, "TRITON_AVAILABLE", False)
    assert not stores_half_costs(GPU, True)
    with use_version("plain"):
        assert not stores_half_costs(CPU, True)


def test_the_bytes_are_those_of_the_kind_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "TRITON_AVAILABLE", True)
    whole = all_pairs_bytes((55, 128), 4)
    assert cost_bytes((55, 128), 4, 4, CPU, half=True) == row_bytes((55, 128), 4, 4)
    assert cost_bytes((55, 128), 4, 4, GPU, half=True) == whole // 2
    assert cost_bytes((55, 128), 4, 4, CPU, half=False) == cost_bytes((55, 128), 4, 4, GPU, half=False) == whole
