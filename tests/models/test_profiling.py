"""How long networks take."""

import pytest
from torch import Tensor, nn

from protoformer.models.config import preset
from protoformer.models.profiling import measure_forward_ms
from protoformer.models.protoformer import build_network


@pytest.mark.parametrize("task", ["flow", "depth"])
def test_a_forward_pass_is_timed_at_the_size_asked_for(task: str) -> None:
    network = build_network(preset("tiny", flow={"num_updates": 1}, depth={"num_updates": 1}), task).eval()
    seen: list[tuple[int, ...]] = []

    def look(_: nn.Module, images: tuple[Tensor, ...]) -> None:
        seen.extend(tuple(image.shape) for image in images)

    network.register_forward_pre_hook(look)
    assert measure_forward_ms(network, (64, 72)) > 0
    assert set(seen) == {(1, 3, 64, 72)} and len(seen) == 4 * (2 if task == "flow" else 1)
