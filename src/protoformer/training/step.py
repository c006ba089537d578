"""One step of training: forward, backward, clip, AdamW, average; skipped if it is not finite or has no target."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from protoformer.training.average import Average
from protoformer.training.distributed import mean_over_ranks, most_over_ranks, ranks
from protoformer.training.guard import Guard
from protoformer.training.recipe import OptimizerSection
from protoformer.training.task import Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Objective(nn.Module):
    """A network and what it is judged by, as one module: tensors of a batch to its loss and metrics.

    bf16: whether products are of bfloat16; the weights, the truth and the loss are not.
    """

    def __init__(self, network: nn.Module, task: Task[Any], bf16: bool) -> None:
        super().__init__()
        self.network, self.task, self.bf16 = network, task, bf16

    def forward(self, tensors: dict[str, Tensor], weight: Tensor) -> Tensor:
        """The total and the task's metrics: a vector of 1 + metrics. weight: scalar, what the loss is divided by."""
        with torch.autocast(weight.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.task.loss(self.network, tensors, weight)
        return torch.stack((loss.total, *(metric.detach() for metric in loss.metrics)))


def fused_adamw(network: nn.Module, settings: OptimizerSection, device: torch.device, graph: bool) -> torch.optim.AdamW:
    """AdamW that can skip a step on the device, by its `found_inf`; on CUDA its rate is a tensor, as graphs need it."""
    on_gpu = device.type == "cuda"
    return torch.optim.AdamW(
        network.parameters(),
        lr=torch.tensor(settings.rate, device=device) if on_gpu else settings.rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=graph,
    )


class Step:
    """Calling it trains on one batch. Nothing in it waits for the device.

    fabric: runs the backward pass. objective: set up by it. A loss or a gradient that is not finite, in any process,
    leaves weights, moments and average as they were, in all of them; the guard counts it.
    """

    def __init__(
        self,
        fabric: "Fabric",
        objective: nn.Module,
        optimizer: torch.optim.AdamW,
        average: Average,
        guard: Guard,
        clip: float,
    ) -> None:
        self.fabric, self.objective, self.optimizer = fabric, objective, optimizer
        self.average, self.guard, self.clip = average, guard, clip
        self.task: Task[Any] = objective.task  # type: ignore[assignment]
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def __call__(self, tensors: dict[str, Tensor], rate: float) -> None:
        """tensors: of the batch, on the device. rate: of learning."""
        self.set_rate(rate)
        self.run(tensors)

    def set_rate(self, rate: float) -> None:
        """Learn at this rate from the next step on."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def run(self, tensors: dict[str, Tensor]) -> None:
        """The step itself."""
        self.optimizer.zero_grad(set_to_none=True)
        # A mean over the samples of all processes, of which each has its own number of valid pixels.
        targets = mean_over_ranks(self.task.weight(tensors).float())
        empty = (targets <= 0).all().float()
        values = self.objective(tensors, targets.clamp_min(1 / ranks()))
        self.fabric.backward(values[0])
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        bad = most_over_ranks((~(values[0].detach() + norm).isfinite()).float())
        # Without a target, weight decay and terms that need none would still change the weights.
        skip = torch.maximum(bad, empty)
        self.optimizer.found_inf = skip  # type: ignore[attr-defined]
        self.optimizer.step()
        self.average.update(1 - skip)
        self.guard.note(bad, values.detach(), empty)
