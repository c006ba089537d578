"""How long networks take."""

import pytest
from torch import Tensor, nn

from protoformer.models.config import preset
from protoformer.models.networks import build_network
from protoformer.models.profiling import measure_forward_ms


@pytest.mark.parametrize("task", ["flow", "depth"])
def test_a_forward_pass_is_timed_at_the_size_asked_for(task: str) -> None:
    network = build_network(task, preset("tiny", updates=1, depth_updates=1)).eval()
    seen: list[tuple[int, ...]] = []

    def look(_: nn.Module, images: tuple[Tensor, ...]) -> None:
        seen.extend(tuple(image.shape) for image in images)

    network.register_forward_pre_hook(look)
    assert measure_forward_ms(network, (64, 72)) > 0
    assert set(seen) == {(1, 3, 64, 72)} and len(seen) == 4 * (2 if task == "flow" else 1)
