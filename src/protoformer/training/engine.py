"""The training state, how it is built, saved and restored, and one training step.

A step is forward, backward, gradient clipping, AdamW and the weight average; it is skipped if not finite or empty.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from protoformer.errors import InputError
from protoformer.models.encoder import Block, Stage
from protoformer.models.heads.cost_memory import CostMemory, CostTokens, MemoryLayer
from protoformer.models.heads.depth import DepthHead, DepthRefiner, DepthUpdate
from protoformer.models.heads.flow import CorrelationCosts, CostMemoryReader, FlowDecoder
from protoformer.models.heads.update import UpdateBlock
from protoformer.models.protoformer import ProtoFormer
from protoformer.training.distributed import max_over_ranks, mean_over_ranks, world_size
from protoformer.training.recipe import OptimizerSection, Recipe
from protoformer.training.task import Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric


MAX_BAD_STEPS = 10
"""Number of consecutive steps without a finite loss and gradient that stops a run."""


@dataclass(frozen=True)
class StepCounts:
    """Counts of a `NonFiniteGuard`.

    Attributes:
        good: Steps since the last `clear` that had a valid target and a finite loss and gradient.
        means: Means of the reported values over the good steps, NaN if there were none.
        skipped: Steps of the whole run that were not finite.
        fatal: Index of the first of MAX_BAD_STEPS consecutive steps that were not finite, or None.
        empty: Finite steps of the whole run that had no valid target.
        learned: Steps of the whole run that changed the weights.
    """

    good: int
    means: tuple[float, ...]
    skipped: int
    fatal: int | None
    empty: int = 0
    learned: int = 0


class NonFiniteGuard:
    """Counts good and bad steps in tensors on the device, so that a step does not synchronize it."""

    def __init__(self, num_values: int, device: torch.device) -> None:
        """Start with no steps; each reports `num_values` values, the loss and the metrics."""

        def integer(value: int) -> Tensor:
            return torch.full((), value, dtype=torch.int64, device=device)

        self.step, self.skipped, self.row = integer(0), integer(0), integer(0)
        self.first, self.fatal, self.good = integer(-1), integer(-1), integer(0)
        self.empty, self.learned = integer(0), integer(0)
        self.sums = torch.zeros(num_values, dtype=torch.float64, device=device)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint; without `fatal`, so that a run can be resumed after bad steps."""
        names = ("step", "skipped", "row", "first", "good", "sums", "empty", "learned")
        return {name: getattr(self, name) for name in names}

    @torch.no_grad()
    def count_step(self, bad: Tensor, values: Tensor, empty: Tensor | None = None) -> None:
        """Count a step with its values; the scalar `bad` is 1 if it was not finite, `empty` if it had no target."""
        is_bad = bad > 0
        is_empty = torch.zeros_like(is_bad) if empty is None else (empty > 0) & ~is_bad
        is_good = ~(is_bad | is_empty)
        self.first.copy_(torch.where(is_bad & (self.row == 0), self.step, self.first))
        self.row.copy_(torch.where(is_bad, self.row + 1, 0))
        self.fatal.copy_(torch.where((self.row >= MAX_BAD_STEPS) & (self.fatal < 0), self.first, self.fatal))
        self.skipped += is_bad
        self.empty += is_empty
        self.learned += is_good
        self.good += is_good
        self.sums += torch.where(is_good, values.double(), 0.0)
        self.step += 1

    def reset_row(self) -> None:
        """Restart the count of consecutive bad steps, so that a resumed run tolerates as many again."""
        self.row.zero_()

    def clear(self) -> None:
        """Restart the means."""
        self.good.zero_()
        self.sums.zero_()

    def read_counts(self, sums: Tensor | None = None) -> StepCounts:
        """Read the counts, which synchronizes the device; `sums` replaces the sums of this process."""
        sums = self.sums if sums is None else sums
        counts = torch.stack((self.good, self.skipped, self.fatal, self.empty, self.learned))
        good, skipped, fatal, empty, learned, *totals = torch.cat((counts.double(), sums)).tolist()
        means = tuple(total / good if good else float("nan") for total in totals)
        return StepCounts(int(good), means, int(skipped), None if fatal < 0 else int(fatal), int(empty), int(learned))

    def is_fatal(self) -> bool:
        """Return whether there were MAX_BAD_STEPS consecutive bad steps; synchronizes the device."""
        return int(self.fatal) >= 0


class WeightAverage:
    """Exponential moving average of all floating-point parameters and buffers, in float32; others are copied.

    After n updates the decay is min(decay, (1 + n) / (10 + n)), so that the random initial weights lose their influence
    early. With a decay of 0 the average equals the current weights. Nothing here synchronizes the device.

    Attributes:
        network: The averaged copy, in eval mode and without gradients.
        updates: Number of updates, a scalar tensor.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network).float().eval().requires_grad_(False)
        self.decay = decay
        device = next(network.parameters()).device
        self.updates = torch.zeros((), device=device)
        average, source = self.network.state_dict(), network.state_dict()
        averaged = [name for name, tensor in average.items() if decay and tensor.is_floating_point()]
        self._means, self._sources = [average[name] for name in averaged], [source[name] for name in averaged]
        self._copied = [(average[name], source[name]) for name in average if name not in set(averaged)]

    @torch.no_grad()
    def update(self, counts: Tensor) -> None:
        """Update the average; `counts` is a scalar, 1, or 0 to leave the average unchanged."""
        decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=self.decay)
        if self._means:
            change = torch._foreach_sub([source.float() for source in self._sources], self._means)
            torch._foreach_mul_(change, (1 - decay) * counts)
            torch._foreach_add_(self._means, change)
        for target, source in self._copied:
            target.copy_(source)
        self.updates += counts


class Objective(nn.Module):
    """A network and its loss as one module, which DDP wraps."""

    def __init__(self, network: nn.Module, task: Task[Any], bf16: bool) -> None:
        """Combine a network with its task; `bf16` uses autocast, but weights, ground truth and loss stay in float32."""
        super().__init__()
        self.network, self.task, self.bf16 = network, task, bf16

    def forward(self, tensors: dict[str, Tensor], weight: Tensor) -> Tensor:
        """Return the loss of a batch, normalized by `weight`, followed by the detached metrics, 1 + num_metrics."""
        with torch.autocast(weight.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.task.loss(self.network, tensors, weight)
        return torch.stack((loss.total, *(metric.detach() for metric in loss.metrics)))


def fused_adamw(network: nn.Module, settings: OptimizerSection, device: torch.device, graph: bool) -> torch.optim.AdamW:
    """Build a fused AdamW of all trained parameters, which can skip a step on the device through its `found_inf`.

    On CUDA the learning rate is a tensor, so that it can change between replays of a CUDA graph.
    """
    on_gpu = device.type == "cuda"
    return torch.optim.AdamW(
        [parameter for parameter in network.parameters() if parameter.requires_grad],
        lr=torch.tensor(settings.lr, device=device) if on_gpu else settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=graph,
    )


class Step:
    """Trains on one batch per call, without synchronizing the device.

    A loss or a gradient that is not finite in any process leaves the weights, moments and average unchanged in all
    processes; the guard counts the step as skipped.
    """

    def __init__(
        self,
        fabric: "Fabric",
        objective: nn.Module,
        optimizer: torch.optim.AdamW,
        average: WeightAverage,
        guard: NonFiniteGuard,
        max_grad_norm: float,
    ) -> None:
        """Combine the parts of a step; `objective` is an `Objective` set up by Fabric."""
        self.fabric, self.objective, self.optimizer = fabric, objective, optimizer
        self.average, self.guard, self.max_grad_norm = average, guard, max_grad_norm
        self.task: Task[Any] = objective.task  # type: ignore[assignment]
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def __call__(self, tensors: dict[str, Tensor], lr: float) -> None:
        """Train on a batch, given by its tensors on the device."""
        self.set_lr(lr)
        self.run(tensors)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the following steps."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def run(self, tensors: dict[str, Tensor]) -> None:
        """Run the step at the current learning rate."""
        self.optimizer.zero_grad(set_to_none=True)
        # Processes have different numbers of valid pixels, so each normalizes by the mean over all of them.
        targets = mean_over_ranks(self.task.weight(tensors).float())
        empty = (targets <= 0).all().float()
        values = self.objective(tensors, targets.clamp_min(1 / world_size()))
        self.fabric.backward(values[0])
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        bad = max_over_ranks((~(values[0].detach() + norm).isfinite()).float())
        # Without a valid target, weight decay and loss terms without targets would still change the weights.
        skip = torch.maximum(bad, empty)
        self.optimizer.found_inf = skip  # type: ignore[attr-defined]
        self.optimizer.step()
        self.average.update(1 - skip)
        self.guard.count_step(bad, values.detach(), empty)


COMPILED_MODULES = (Stage, UpdateBlock, CostMemory, DepthUpdate, DepthRefiner)
"""Large modules whose input shapes are constant during a run.

Look-ups and upsampling are not compiled: they gain little, and compiling the whole network takes minutes.
"""


def compile_parts(network: nn.Module) -> None:
    """Compile the large modules of a network in place; each is compiled for static shapes when it first runs."""
    for module in network.modules():
        if isinstance(module, COMPILED_MODULES):
            module.compile(dynamic=False)


def recompute_activations(network: nn.Module) -> None:
    """Enable activation checkpointing for the encoder's blocks and the decoder's updates, in place.

    Training takes less memory and about a third more time; values and gradients do not change. Eval mode and state
    dicts are not affected.
    """
    for module in network.modules():
        if isinstance(module, Block | UpdateBlock | CostTokens | MemoryLayer | DepthUpdate):
            module.forward = _checkpointed(module, module.forward)  # type: ignore[method-assign]
        elif isinstance(module, FlowDecoder | DepthHead):
            module._upsample = _checkpointed(module, module._upsample)  # type: ignore[method-assign]
        elif isinstance(module, CorrelationCosts | CostMemoryReader):
            module.prepare = _with_checkpointed_lookup(module, module.prepare)  # type: ignore[method-assign]


def _checkpointed(module: nn.Module, compute: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*inputs: Any) -> Any:
        if not module.training:
            return compute(*inputs)
        # The modules draw no random numbers, and the random state cannot be read during CUDA graph capture.
        return checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False)

    return forward


def _with_checkpointed_lookup(module: nn.Module, prepare: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: _checkpointed(module, prepare(*inputs))


WARM_UP = 3
"""Eager steps before the capture of a CUDA graph, in which libraries select algorithms and allocate memory."""


class GraphedStep:
    """A step that is captured once as a CUDA graph and then replayed on batches copied to its static inputs."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.static_inputs: dict[str, Tensor] = {}
        self.num_steps = 0
        self.side_stream = torch.cuda.Stream()  # one for all warm-up steps, so that they reuse each other's memory
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tensors: dict[str, Tensor], lr: float) -> None:
        """Train on a batch, as `Step` does."""
        self.step.set_lr(lr)
        self._copy_inputs(tensors)
        if self.num_steps < WARM_UP:
            self._run_eager()
        else:
            if self.graph is None:
                self.graph = self._capture()
            self.graph.replay()
        self.num_steps += 1

    def _copy_inputs(self, tensors: dict[str, Tensor]) -> None:
        if not self.static_inputs:
            self.static_inputs = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            static = self.static_inputs[name]
            if tensor.shape != static.shape:
                raise InputError(
                    f"a batch has {name} of shape {tuple(tensor.shape)} after {tuple(static.shape)}, but a CUDA graph "
                    "takes one shape only; set run.execution=eager."
                )
            static.copy_(tensor, non_blocking=True)

    def _run_eager(self) -> None:
        """Run the step on a side stream, as CUDA graph capture requires of the warm-up."""
        self.side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side_stream):
            self.step.run(self.static_inputs)
        torch.cuda.current_stream().wait_stream(self.side_stream)

    def _capture(self) -> torch.cuda.CUDAGraph:
        # Gradients must be allocated inside the capture, so that a replay overwrites them instead of accumulating.
        self.step.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # data threads may use CUDA meanwhile
            self.step.run(self.static_inputs)
        return graph


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
            for key, tensor in self.optimizer.state.get(parameter, {}).items():  # a frozen one has none
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
        # Earlier versions also wrote optimizer states of frozen parameters, which are always zero.
        frozen = (name for name, parameter in self.network.named_parameters() if not parameter.requires_grad)
        unused = tuple(f"optimizer.{name}." for name in frozen)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(unused)}
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
    if recipe.model.freeze_encoder:
        network.encoder.requires_grad_(False)
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
    for group in optimizer.param_groups:  # AdamW would do this in its first step; checkpoints need it before
        for parameter in group["params"]:
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


PRIOR_PARAMETERS = ("prototyping.log_width", "prototyping.log_temperature")
"""Endings of the names of the parameters of a spatial prior."""


def load_initial_weights(network: ProtoFormer, start: ProtoFormer, name: str | None) -> None:
    """Copy the weights of another network.

    All weights of a network of the same task are copied; of another task's network, only the encoder. Weights without a
    spatial prior can start a network with one, whose own parameters keep their initial values.

    Args:
        network: Network to initialize.
        start: Network to copy from.
        name: Name of the weights, for messages.

    Raises:
        InputError: If the weights do not fit.
    """
    same_task = network.tasks == start.tasks
    target, source = (network, start) if same_task else (network.encoder, start.encoder)
    encoder, start_encoder = network.config.encoder, start.config.encoder
    added: tuple[str, ...] = ()
    if encoder.spatial_prior and not start_encoder.spatial_prior:
        start_encoder, added = replace(start_encoder, spatial_prior=True), PRIOR_PARAMETERS
    shapes = {name: shape for name, shape in _get_shapes(target).items() if not name.endswith(added)}
    fits = encoder == start_encoder and shapes == _get_shapes(source)
    if same_task and "depth" in network.tasks:
        depth, start_depth = network.config.depth, start.config.depth
        fits = fits and all(getattr(depth, field) == getattr(start_depth, field) for field in DEPTH_FIELDS)
    if not fits:
        part = "network" if same_task else "encoder"
        raise InputError(
            f"the weights {name} are of another {part} than the recipe's; set model.preset and "
            "model.overrides to match."
        )
    target.load_state_dict(source.state_dict(), strict=not added)


def _get_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
