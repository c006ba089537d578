"""The depth of a clip on a GPU, where the network runs as a CUDA graph, equals that on a CPU."""

import pytest
import torch

from protoformer.errors import UntrainedWarning
from protoformer.loading import load


def test_depth_from_a_cuda_graph_equals_that_on_a_cpu(requires_gpu: None, exact_convolutions: None) -> None:
    """In float32 they differ by 1e-6; with another frame, or weights changed by 1 %, by 3e-3 or more."""
    frames = list(torch.rand(14, 3, 60, 80, generator=torch.Generator().manual_seed(0)))
    depths = {}
    for device in ("cpu", "cuda"):
        with pytest.warns(UntrainedWarning):
            model = load("tiny", device, task="depth")
        video = model.depth_video(frames, batch_size=3, precision="full", focal=80.0)
        depths[device] = torch.stack([step.depth for step in video])
    assert depths["cuda"].device.type == "cpu"
    torch.testing.assert_close(depths["cuda"], depths["cpu"], rtol=1e-4, atol=0)
