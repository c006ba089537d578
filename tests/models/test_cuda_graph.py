"""On a GPU a clip is computed by recorded graphs, which give what the same calls give without."""

import pytest
import torch

import protoformer as pf
from protoformer.models.runtime import WARM_UP, CudaGraph

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def test_a_replay_gives_what_the_function_gives_and_keeps_it() -> None:
    calls = []

    def function(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(1)
        return (one @ other, one + 1)

    graphed = CudaGraph(function)
    kept = []
    for seed in range(WARM_UP + 3):
        for size in (8, 16):
            one, other = torch.rand(2, size, size, generator=torch.Generator().manual_seed(seed)).cuda()
            kept.append((graphed(one, other), (one @ other, one + 1)))
    assert len(calls) == 2 * (WARM_UP + 1)
    for found, expected in kept:
        for mine, right in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, right)


def test_a_clip_has_the_flow_of_its_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 they are 1e-6 pixels apart, flows of other pairs 0.04 and more, and weights 1 % off make 0.02."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cuda")
    frames = list(torch.rand(8, 3, 64, 96, generator=torch.Generator().manual_seed(0)))
    for batch, zoom in ((1, None), (3, None), (3, 1.5)):
        for number, step in enumerate(model.flow_video(frames, batch_size=batch, precision="full", zoom=zoom)):
            pair = model.flow(frames[number], frames[number + 1], zoom=zoom)
            torch.testing.assert_close(step.flow, pair.flow, atol=1e-3, rtol=0)
