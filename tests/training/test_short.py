"""Both decoders learn what motion is."""

from collections.abc import Iterator

import pytest
import torch

from protoformer.model import build_flow, preset
from protoformer.training import fit_flow
from protoformer.training.short import one_cycle
from protoformer.world import FlowSample, Layer, LayeredScene, join, noise
from protoformer.world.layers import motion_about

SIZE = (64, 64)
FARTHEST = 6.0


def pan(seed: int, shift: tuple[float, float] | None = None) -> FlowSample:
    """A camera pan over a texture of its own; without a shift, one of up to 6 px either way."""
    generator = torch.Generator().manual_seed(seed)
    texture = noise(*SIZE, generator, falloff=0.5)
    u, v = shift or (FARTHEST * (2 * torch.rand(2, generator=generator) - 1)).tolist()
    return LayeredScene((Layer(texture, motion_about((0.0, 0.0), (u, v), 0.0, 1.0)),), SIZE).render()


def pans(batch: int = 8) -> Iterator[FlowSample]:
    seed = 1000
    while True:
        yield join([pan(seed + index) for index in range(batch)])
        seed += batch


@pytest.mark.long
@pytest.mark.parametrize("decoder", ["memory", "recurrent"])
def test_a_short_training_recovers_a_known_pan_of_a_texture_never_seen(decoder):
    torch.manual_seed(0)
    network = fit_flow(build_flow(preset("tiny", decoder=decoder)), pans(batch=4), steps=500, peak_rate=2e-3)
    shifts = [(5.0, -3.0), (-4.0, 2.0), (2.5, 5.5), (0.0, 0.0)]
    known = join([pan(seed, shift) for seed, shift in enumerate(shifts)])
    with torch.no_grad():
        prediction = network(2 * known.first - 1, 2 * known.second - 1)
    errors = (prediction.flows[-1] - known.flow).norm(dim=1).mean(dim=(1, 2))
    assert errors.max() < 1.0


def test_the_same_seed_trains_the_same_network():
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        network = fit_flow(build_flow(preset("tiny")), pans(batch=1), steps=2)
        return torch.cat([parameter.flatten() for parameter in network.parameters()])

    assert torch.equal(trained(), trained())


@pytest.mark.parametrize("steps", [1, 2, 19, 20, 300])
def test_the_rate_rises_over_a_twentieth_of_the_steps_and_falls_to_the_end(steps):
    rates = [one_cycle(step, steps) for step in range(steps)]
    peak = max(1, round(0.05 * steps)) - 1
    assert rates[peak] == 1
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0 < rates[-1] <= 1
    assert one_cycle(steps, steps) == 0


def test_training_stops_after_the_steps_asked_for_and_reports_each():
    seen = []
    network = fit_flow(
        build_flow(preset("tiny")), pans(batch=1), steps=3, after_step=lambda step, loss: seen.append((step, loss))
    )
    assert [step for step, _ in seen] == [0, 1, 2]
    assert not network.training
