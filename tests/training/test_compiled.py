"""Which parts of a network are compiled; that they compute the same takes a minute, and is tested on a GPU."""

from typing import Any

import pytest
from torch import nn

from protoformer.model import build_flow, preset
from protoformer.training.compiled import compile_parts


@pytest.mark.parametrize(
    ("decoder", "parts"),
    [
        ("recurrent", ["features.stages.0", "features.stages.1", "decoder.update"]),
        ("memory", ["features.stages.0", "features.stages.1", "decoder.costs.memory", "decoder.update"]),
    ],
)
def test_stages_the_memory_of_costs_and_updates_are_compiled_for_their_shapes(
    decoder: str, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[nn.Module, dict[str, Any]]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: compiled.append((module, options)))
    network = build_flow(preset("tiny", decoder=decoder))
    compile_parts(network)
    names = {module: name for name, module in network.named_modules()}
    assert [(names[module], options) for module, options in compiled] == [(part, {"dynamic": False}) for part in parts]
