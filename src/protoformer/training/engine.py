"""The training state (network, optimizer, weight average, guard) and how it is built, saved and restored."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from protoformer.errors import InputError
from protoformer.models.protoformer import ProtoFormer
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


@dataclass(frozen=True)
class Engine:
    """The state of a training run and the step that updates it.

    Attributes:
        network: The network that is trained.
        optimizer: Its optimizer.
        average: Moving average of its weights.
        guard: Counts of finite and skipped steps.
        step: Trains on one batch.
    """

    network: nn.Module
    optimizer: torch.optim.AdamW
    average: WeightAverage
    guard: NonFiniteGuard
    step: Step | GraphedStep

    def state(self, slim: bool = False) -> dict[str, Tensor]:
        """Return every tensor that a step changes, by name.

        Args:
            slim: Return the optimizer's moments as bfloat16 copies; all other tensors are the originals.
        """
        tensors = {f"model.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"ema.{name}": tensor for name, tensor in self.average.network.state_dict().items()}
        tensors["ema_updates"] = self.average.updates
        for name, parameter in self.network.named_parameters():
            for key, tensor in self.optimizer.state[parameter].items():
                is_moment = key != "step"
                tensors[f"optimizer.{name}.{key}"] = tensor.to(torch.bfloat16) if slim and is_moment else tensor
        return tensors | {f"guard.{name}": tensor for name, tensor in self.guard.state().items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors of `state`, read from a checkpoint.

        Raises:
            InputError: If a tensor is missing, has another shape, or a weight is not finite.
        """
        state = self.state()
        for name in sorted(state.keys() | tensors.keys()):
            if name not in state or name not in tensors or state[name].shape != tensors[name].shape:
                raise InputError(
                    f"the checkpoint's tensor {name} does not fit the recipe's network; resume with the recipe that "
                    "the run was started with, or start over with --fresh."
                )
            if name.startswith(("model.", "ema.")) and not bool(tensors[name].double().sum().isfinite()):
                raise InputError(
                    f"the checkpoint's tensor {name} has values that are not finite; use an earlier checkpoint, or "
                    "start over with --fresh."
                )
        for name, tensor in state.items():
            tensor.copy_(tensors[name])

    def broadcast(self) -> None:
        """Copy the state of rank 0 to all processes."""
        if world_size() > 1:
            for tensor in self.state().values():
                dist.broadcast(tensor, 0)


def build_engine(fabric: "Fabric", recipe: Recipe, task: Task[Any]) -> Engine:
    """Build the engine of a new run on Fabric's device.

    Args:
        fabric: A launched Fabric.
        recipe: Recipe of the run.
        task: The recipe's task.

    Raises:
        InputError: If the recipe's `run.execution` needs a single GPU process and this is not one.
    """
    speed, device = recipe.run.execution, fabric.device
    use_compile, use_graph = speed in ("compile", "both"), speed in ("graph", "both")
    if use_graph and (device.type != "cuda" or world_size() > 1):
        raise InputError(
            f"run.execution={speed} needs one process on a GPU; set run.execution to eager or compile, or run it "
            "without torchrun."
        )
    torch.manual_seed(recipe.data.seed)
    network = task.build().to(device).train()
    if device.type == "cuda":  # where channels-last convolutions are fastest
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = WeightAverage(
        network, recipe.optimizer.ema_decay
    )  # copies the network, so this comes before any wrapping
    if recipe.model.activation_checkpointing:
        recompute_activations(network)
    if use_compile:
        compile_parts(network)
    optimizer = fused_adamw(network, recipe.optimizer, device, graph=use_graph)
    for parameter in network.parameters():  # AdamW would do this in its first step; checkpoints need it before
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    guard = NonFiniteGuard(1 + len(task.metrics), device)
    objective = fabric.setup_module(Objective(network, task, bf16=recipe.run.precision == "bf16"))
    step = Step(fabric, objective, optimizer, average, guard, recipe.optimizer.max_grad_norm)
    return Engine(network, optimizer, average, guard, GraphedStep(step) if use_graph else step)


DEPTH_FIELDS = ("min_depth", "max_depth", "max_pixels")
"""Fields that change the meaning of a depth network's output but not the shapes of its weights."""


def load_initial_weights(network: ProtoFormer, start: ProtoFormer, name: str | None) -> None:
    """Copy the weights of another network.

    All weights of a network of the same task are copied; of another task's network, only the encoder.

    Args:
        network: Network to initialize.
        start: Network to copy from.
        name: Name of the weights, for messages.

    Raises:
        InputError: If the weights do not fit.
    """
    same_task = network.tasks == start.tasks
    target, source = (network, start) if same_task else (network.encoder, start.encoder)
    fits = network.config.encoder == start.config.encoder and _get_shapes(target) == _get_shapes(source)
    if same_task and "depth" in network.tasks:
        depth, start_depth = network.config.depth, start.config.depth
        fits = fits and all(getattr(depth, field) == getattr(start_depth, field) for field in DEPTH_FIELDS)
    if not fits:
        part = "network" if same_task else "encoder"
        raise InputError(
            f"the weights {name} are of another {part} than the recipe's; set model.preset and "
            "model.overrides to match."
        )
    target.load_state_dict(source.state_dict())


def _get_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
