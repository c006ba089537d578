"""A short training run in memory: enough for a small network to learn a small world."""

from collections.abc import Callable, Iterable

import torch

from protoformer.model import FlowNetwork
from protoformer.model.flow import normalised
from protoformer.training.losses import FlowLoss, flow_loss
from protoformer.training.schedule import one_cycle
from protoformer.world import FlowSample


def fit_flow(
    network: FlowNetwork,
    batches: Iterable[FlowSample],
    steps: int,
    peak_rate: float = 1e-3,
    after_step: Callable[[int, FlowLoss], None] | None = None,
) -> FlowNetwork:
    """Train a flow network on the first `steps` batches: AdamW, one-cycle, gradient clip 1. Returns it, in eval mode.

    after_step: called with the number of the step and its loss.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=peak_rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: one_cycle(step, steps))
    network.train()
    for step, batch in zip(range(steps), batches, strict=False):
        prediction = network(normalised(batch.first), normalised(batch.second), every=True)
        loss = flow_loss(prediction, batch.flow, batch.valid)
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if after_step:
            after_step(step, loss)
    return network.eval()
