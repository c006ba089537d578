"""Both decoders learn flow in a short training run."""

from collections.abc import Callable, Iterable, Iterator

import pytest
import torch

from protoformer.flow.losses import FlowLoss, flow_loss
from protoformer.models.config import preset
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import normalize_images
from protoformer.synthetic.layers import Layer, LayeredScene, affine_about
from protoformer.synthetic.samples import FlowSample, join
from protoformer.synthetic.textures import noise
from protoformer.training.schedule import one_cycle

SIZE = (64, 64)
MAX_DEPTH = 6.0


def fit_flow(
    network: ProtoFormer,
    batches: Iterable[FlowSample],
    steps: int,
    peak_rate: float = 1e-3,
    after_step: Callable[[int, FlowLoss], None] | None = None,
) -> ProtoFormer:
    """Train a flow network on the first `steps` batches: AdamW, one-cycle, gradient clip 1. Returns it, in eval mode.

    after_step: called with the number of the step and its loss.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=peak_rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, steps))
    network.train()
    for step, batch in zip(range(steps), batches, strict=False):
        prediction = network(normalize_images(batch.first), normalize_images(batch.second), return_all=True)
        loss = flow_loss(prediction, batch.flow, batch.valid)
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if after_step:
            after_step(step, loss)
    return network.eval()


def pan(seed: int, shift: tuple[float, float] | None = None) -> FlowSample:
    """A camera pan over a texture of its own; without a shift, one of up to 6 px either way."""
    generator = torch.Generator().manual_seed(seed)
    texture = noise(*SIZE, generator, falloff=0.5)
    u, v = shift or (MAX_DEPTH * (2 * torch.rand(2, generator=generator) - 1)).tolist()
    return LayeredScene((Layer(texture, affine_about((0.0, 0.0), (u, v), 0.0, 1.0)),), SIZE).render()


def pans(batch: int = 8) -> Iterator[FlowSample]:
    seed = 1000
    while True:
        yield join([pan(seed + index) for index in range(batch)])
        seed += batch


@pytest.mark.long
@pytest.mark.parametrize("decoder", ["memory", "recurrent"])
def test_a_short_training_recovers_a_known_pan_of_a_texture_never_seen(decoder):
    torch.manual_seed(0)
    network = fit_flow(
        build_network(preset("tiny", flow={"decoder": decoder}), "flow"), pans(batch=4), steps=800, peak_rate=2e-3
    )
    shifts = [(5.0, -3.0), (-4.0, 2.0), (2.5, 5.5), (0.0, 0.0)]
    known = join([pan(seed, shift) for seed, shift in enumerate(shifts)])
    with torch.no_grad():
        prediction = network(2 * known.first - 1, 2 * known.second - 1)
    errors = (prediction.flows[-1] - known.flow).norm(dim=1).mean(dim=(1, 2))
    assert errors.max() < 1.0


def test_the_same_seed_trains_the_same_network():
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        network = fit_flow(build_network(preset("tiny"), "flow"), pans(batch=1), steps=2)
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
        build_network(preset("tiny"), "flow"),
        pans(batch=1),
        steps=3,
        after_step=lambda step, loss: seen.append((step, loss)),
    )
    assert [step for step, _ in seen] == [0, 1, 2]
    assert not network.training
