"""Everything that a step changes, and how it is saved and restored."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protoformer.errors import InputError
from protoformer.training.average import Average
from protoformer.training.distributed import ranks
from protoformer.training.frugal import compile_parts, recompute_activations
from protoformer.training.graph import GraphedStep
from protoformer.training.guard import Guard
from protoformer.training.recipe import Recipe
from protoformer.training.step import Objective, Step, fused_adamw
from protoformer.training.task import Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric


GUARD = "guard."
"""What the names of a guard's tensors begin with."""


@dataclass(frozen=True)
class Engine:
    """A network with its optimizer, average and guard, and the step that trains it."""

    network: nn.Module
    optimizer: torch.optim.AdamW
    average: Average
    guard: Guard
    step: Step | GraphedStep

    def state(self, slim: bool = False) -> dict[str, Tensor]:
        """Every tensor that a step changes, by name; the tensors themselves, not copies, but for slim moments."""
        tensors = {f"model.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"ema.{name}": tensor for name, tensor in self.average.network.state_dict().items()}
        tensors["ema_updates"] = self.average.updates
        for name, parameter in self.network.named_parameters():
            for key, tensor in self.optimizer.state[parameter].items():
                narrow = slim and key != "step"
                tensors[f"optimizer.{name}.{key}"] = tensor.to(torch.bfloat16) if narrow else tensor
        return tensors | {f"{GUARD}{name}": tensor for name, tensor in self.guard.state().items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state` gave, read from a checkpoint."""
        state, kept = self.state(), {name: tensor for name, tensor in tensors.items() if not name.startswith(GUARD)}
        own = {name.removeprefix(GUARD): tensor for name, tensor in tensors.items() if name.startswith(GUARD)}
        tensors = kept | {f"{GUARD}{name}": tensor for name, tensor in Guard.completed(own).items()}
        for name in sorted(state.keys() | tensors.keys()):
            if name not in state or name not in tensors or state[name].shape != tensors[name].shape:
                raise InputError(
                    f"the checkpoint's tensor {name} does not fit the recipe's network; go on with the recipe that the "
                    "run began with, or start over with --fresh."
                )
            if name.startswith(("model.", "ema.")) and not bool(tensors[name].double().sum().isfinite()):
                raise InputError(
                    f"the checkpoint's tensor {name} has numbers that are not finite; take an earlier checkpoint, or "
                    "start over with --fresh."
                )
        for name, tensor in state.items():
            tensor.copy_(tensors[name])

    def share(self) -> None:
        """Give all processes the state of the first."""
        if ranks() > 1:
            for tensor in self.state().values():
                dist.broadcast(tensor, 0)


def build_engine(fabric: "Fabric", recipe: Recipe, task: Task[Any]) -> Engine:
    """The engine of a fresh run, on Fabric's device."""
    speed, device = recipe.run.speed, fabric.device
    compiled, graph = speed in ("compile", "both"), speed in ("graph", "both")
    if graph and (device.type != "cuda" or ranks() > 1):
        raise InputError(
            f"run.speed={speed} needs one process on a GPU; set run.speed to eager or compile, or run it without "
            "torchrun."
        )
    torch.manual_seed(recipe.data.seed)
    network = task.build().to(device).train()
    if device.type == "cuda":  # whose convolutions are fastest where a pixel's channels lie together
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = Average(network, recipe.optimizer.ema)  # a copy, so it comes before anything is wrapped
    if recipe.model.checkpoint_gradients:
        recompute_activations(network)
    if compiled:
        compile_parts(network)
    optimizer = fused_adamw(network, recipe.optimizer, device, graph=graph)
    for parameter in network.parameters():  # as it would by itself in its first step
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    guard = Guard(1 + len(task.metrics), device)
    objective = fabric.setup_module(Objective(network, task, bf16=recipe.run.precision == "bf16"))
    step = Step(fabric, objective, optimizer, average, guard, recipe.optimizer.clip)
    return Engine(network, optimizer, average, guard, GraphedStep(step) if graph else step)
