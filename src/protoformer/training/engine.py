"""Everything that a step changes, and how it is saved and restored."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protoformer.errors import InputError
from protoformer.models.config import ModelConfig
from protoformer.models.heads.depth import DepthNetwork
from protoformer.training.distributed import world_size
from protoformer.training.recipe import Recipe
from protoformer.training.step import (
    GraphedStep,
    NonFiniteGuard,
    Objective,
    Step,
    WeightAverage,
    compile_parts,
    fused_adamw,
    recompute_activations,
)
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
    average: WeightAverage
    guard: NonFiniteGuard
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
        tensors = kept | {f"{GUARD}{name}": tensor for name, tensor in NonFiniteGuard.completed(own).items()}
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
        if world_size() > 1:
            for tensor in self.state().values():
                dist.broadcast(tensor, 0)


def build_engine(fabric: "Fabric", recipe: Recipe, task: Task[Any]) -> Engine:
    """The engine of a fresh run, on Fabric's device."""
    speed, device = recipe.run.speed, fabric.device
    compiled, graph = speed in ("compile", "both"), speed in ("graph", "both")
    if graph and (device.type != "cuda" or world_size() > 1):
        raise InputError(
            f"run.speed={speed} needs one process on a GPU; set run.speed to eager or compile, or run it without "
            "torchrun."
        )
    torch.manual_seed(recipe.data.seed)
    network = task.build().to(device).train()
    if device.type == "cuda":  # whose convolutions are fastest where a pixel's channels lie together
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = WeightAverage(network, recipe.optimizer.ema)  # a copy, so it comes before anything is wrapped
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
    guard = NonFiniteGuard(1 + len(task.metrics), device)
    objective = fabric.setup_module(Objective(network, task, bf16=recipe.run.precision == "bf16"))
    step = Step(fabric, objective, optimizer, average, guard, recipe.optimizer.clip)
    return Engine(network, optimizer, average, guard, GraphedStep(step) if graph else step)


ENCODER = (
    "embedding",
    "widths",
    "depths",
    "head_width",
    "prototypes",
    "iterations",
    "update",
    "normalize",
    "residual",
    "synchronization",
    "components",
)
"""The fields of a configuration that an encoder is made of."""
DEPTH = ("nearest", "farthest", "depth_pixels")
"""Those by which a depth network's numbers mean something else, though its weights have the same shapes."""


def load_initial_weights(network: nn.Module, start: nn.Module, name: str | None) -> None:
    """Give a network the weights of another one, whose name is for messages.

    Networks of one task share all of them; of another task's the encoder, `features`, is taken, and the decoder stays
    as it is. `InputError` where they do not fit.
    """
    ours, theirs = cast(Any, network), cast(Any, start)
    whole = type(network) is type(start)
    target, source = (ours, theirs) if whole else (ours.features, theirs.features)
    fields = ENCODER + DEPTH if isinstance(network, DepthNetwork) and whole else ENCODER
    if not _alike(ours.config, theirs.config, fields) or _shapes(target) != _shapes(source):
        what = "another network" if whole else "another encoder"
        raise InputError(
            f"the weights {name} are of {what} than the recipe's; set model.preset and model.fields to theirs."
        )
    target.load_state_dict(source.state_dict())


def _alike(one: ModelConfig, other: ModelConfig, fields: tuple[str, ...]) -> bool:
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
