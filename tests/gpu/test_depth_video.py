"""The depth of a clip on a GPU, where the network is recorded as a graph, is that of a CPU."""

import pytest
import torch

from protoformer.errors import UntrainedWarning
from protoformer.loading import load


def test_a_recorded_network_gives_the_depth_of_a_cpu(on_gpu: None, exact_convolutions: None) -> None:
    """In float32 they are 1e-6 apart; other frames, or weights that are 1 % off, give other depths by 3e-3 and more."""
    frames = list(torch.rand(14, 3, 60, 80, generator=torch.Generator().manual_seed(0)))
    found = {}
    for device in ("cpu", "cuda"):
        with pytest.warns(UntrainedWarning):
            model = load("tiny", device, task="depth")
        video = model.depth_video(frames, batch_size=3, precision="full", focal=80.0)
        found[device] = torch.stack([step.depth for step in video])
    assert found["cuda"].device.type == "cpu"
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-4, atol=0)
