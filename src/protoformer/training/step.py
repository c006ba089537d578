"""One step of training: forward, backward, clip, AdamW, average; skipped if it is not finite or has no target."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from protoformer.errors import InputError
from protoformer.models.encoder import Block, Stage
from protoformer.models.heads.cost_memory import CostMemory, CostTokens, MemoryLayer
from protoformer.models.heads.depth import DepthDecoder, DepthRefiner, DepthUpdate
from protoformer.models.heads.flow import CorrelationCosts, FlowDecoder, MemoryCosts
from protoformer.models.heads.update import UpdateBlock
from protoformer.training.distributed import mean_over_ranks, most_over_ranks, world_size
from protoformer.training.recipe import OptimizerSection
from protoformer.training.task import Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric


ROW = 10
"""Steps in a row without a finite loss and gradient that stop a run."""


@dataclass(frozen=True)
class CountedSteps:
    """What a guard has seen.

    good: steps since the last `clear` that had a target, and whose loss and gradient were finite. means: of the values
    of these steps, NaN if there were none. In the run's life: skipped, steps that were not finite; empty, others that
    had no valid target; learned, the rest, which changed the weights. fatal: the number of the first step of a row of
    ROW or more that were not finite, or None.
    """

    good: int
    means: tuple[float, ...]
    skipped: int
    fatal: int | None
    empty: int = 0
    learned: int = 0


class NonFiniteGuard:
    """Counts steps, good and bad, in tensors on the device: nobody waits for it until somebody asks.

    values: how many numbers a step reports.
    """

    def __init__(self, values: int, device: torch.device) -> None:
        def whole(value: int) -> Tensor:
            return torch.full((), value, dtype=torch.int64, device=device)

        self.step, self.skipped, self.row = whole(0), whole(0), whole(0)
        self.first, self.fatal, self.good = whole(-1), whole(-1), whole(0)
        self.empty, self.learned = whole(0), whole(0)
        self.sums = torch.zeros(values, dtype=torch.float64, device=device)

    def state(self) -> dict[str, Tensor]:
        """The tensors that a run needs to go on; not the row that stopped it, which whoever goes on has seen."""
        names = ("step", "skipped", "row", "first", "good", "sums", "empty", "learned")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def completed(state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add what states of earlier versions lack, who took every finite step for one that taught something."""
        if "step" not in state or "skipped" not in state:
            return state
        return {"empty": torch.zeros_like(state["step"]), "learned": state["step"] - state["skipped"], **state}

    @torch.no_grad()
    def note(self, bad: Tensor, values: Tensor, empty: Tensor | None = None) -> None:
        """One step: whether it was not finite, its values, and whether it had no valid target (scalars, 0 or 1)."""
        is_bad = bad > 0
        is_empty = torch.zeros_like(is_bad) if empty is None else (empty > 0) & ~is_bad
        taught = ~(is_bad | is_empty)
        self.first.copy_(torch.where(is_bad & (self.row == 0), self.step, self.first))
        self.row.copy_(torch.where(is_bad, self.row + 1, 0))
        self.fatal.copy_(torch.where((self.row >= ROW) & (self.fatal < 0), self.first, self.fatal))
        self.skipped += is_bad
        self.empty += is_empty
        self.learned += taught
        self.good += taught
        self.sums += torch.where(taught, values.double(), 0.0)
        self.step += 1

    def end_row(self) -> None:
        """Begin a new row: whoever was told of this one may go on, and bear as many bad steps again."""
        self.row.zero_()

    def clear(self) -> None:
        """Begin a new mean."""
        self.good.zero_()
        self.sums.zero_()

    def counted(self, sums: Tensor | None = None) -> CountedSteps:
        """What was seen, which waits for the device. sums: those of all processes, their mean, where there are more."""
        sums = self.sums if sums is None else sums
        counts = torch.stack((self.good, self.skipped, self.fatal, self.empty, self.learned))
        good, skipped, fatal, empty, learned, *totals = torch.cat((counts.double(), sums)).tolist()
        means = tuple(total / good if good else float("nan") for total in totals)
        return CountedSteps(int(good), means, int(skipped), None if fatal < 0 else int(fatal), int(empty), int(learned))

    def is_fatal(self) -> bool:
        """Whether a row stops the run; waits for the device."""
        return int(self.fatal) >= 0


class WeightAverage:
    """An exponential moving average of every floating parameter and buffer, in float32; others are copied.

    It is a network of its own, `network`, in eval mode and without gradients. After n updates the decay is
    min(decay, (1 + n) / (10 + n)), so that the first weights, which are random, are soon forgotten. A decay of 0 is no
    average: it has the weights as they are. Nothing here waits for the device.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network).float().eval().requires_grad_(False)
        self.decay = decay
        device = next(network.parameters()).device
        self.updates = torch.zeros((), device=device)
        ours, theirs = self.network.state_dict(), network.state_dict()
        moving = [name for name, tensor in ours.items() if decay and tensor.is_floating_point()]
        self._means, self._sources = [ours[name] for name in moving], [theirs[name] for name in moving]
        self._copied = [(ours[name], theirs[name]) for name in ours if name not in set(moving)]

    @torch.no_grad()
    def update(self, counts: Tensor) -> None:
        """Take the network's weights in. counts: scalar, 1, or 0 to leave the average as it is."""
        decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=self.decay)
        if self._means:
            change = torch._foreach_sub([source.float() for source in self._sources], self._means)
            torch._foreach_mul_(change, (1 - decay) * counts)
            torch._foreach_add_(self._means, change)
        for ours, theirs in self._copied:
            ours.copy_(theirs)
        self.updates += counts


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
        average: WeightAverage,
        guard: NonFiniteGuard,
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
        values = self.objective(tensors, targets.clamp_min(1 / world_size()))
        self.fabric.backward(values[0])
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        bad = most_over_ranks((~(values[0].detach() + norm).isfinite()).float())
        # Without a target, weight decay and terms that need none would still change the weights.
        skip = torch.maximum(bad, empty)
        self.optimizer.found_inf = skip  # type: ignore[attr-defined]
        self.optimizer.step()
        self.average.update(1 - skip)
        self.guard.note(bad, values.detach(), empty)


PARTS = (Stage, UpdateBlock, CostMemory, DepthUpdate, DepthRefiner)
"""What is large, and of one shape in a whole run.

Look-ups and upsampling between them stay as they are: they gain little, and a graph of all takes minutes to make.
"""


def compile_parts(network: nn.Module) -> None:
    """Compile the parts of a network when they first run, each for the shapes it sees; in place."""
    for module in network.modules():
        if isinstance(module, PARTS):
            module.compile(dynamic=False)


def recompute_activations(network: nn.Module) -> None:
    """Keep only what goes into each block of the encoder and each part of the decoder's updates; in place.

    It takes less memory and about a third more time. Values and gradients stay as they are. Networks in eval mode are
    not touched by it, and neither are state dicts.
    """
    for module in network.modules():
        if isinstance(module, Block | UpdateBlock | CostTokens | MemoryLayer | DepthUpdate):
            module.forward = _recomputed(module, module.forward)  # type: ignore[method-assign]
        elif isinstance(module, FlowDecoder | DepthDecoder):
            module._upsample = _recomputed(module, module._upsample)  # type: ignore[method-assign]
        elif isinstance(module, CorrelationCosts | MemoryCosts):
            module.prepare = _with_recomputed_reader(module, module.prepare)  # type: ignore[method-assign]


def _recomputed(module: nn.Module, compute: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*inputs: Any) -> Any:
        if not module.training:
            return compute(*inputs)
        # Nothing here is random, and a CUDA graph that is being recorded cannot be asked for a random state.
        return checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False)

    return forward


def _with_recomputed_reader(module: nn.Module, prepare: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: _recomputed(module, prepare(*inputs))


WARM_UP = 3
"""Steps that run as they are before one is recorded: libraries choose and allocate in the first ones."""


class GraphedStep:
    """A step that is recorded once and then replayed, with every batch copied to where the recorded one lay."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.held: dict[str, Tensor] = {}
        self.done = 0
        self.side = torch.cuda.Stream()  # one for all: memory that a step frees is then the next one's
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tensors: dict[str, Tensor], rate: float) -> None:
        """As a `Step`."""
        self.step.set_rate(rate)
        self._take(tensors)
        if self.done < WARM_UP:
            self._beside()
        else:
            if self.graph is None:
                self.graph = self._recorded()
            self.graph.replay()
        self.done += 1

    def _take(self, tensors: dict[str, Tensor]) -> None:
        if not self.held:
            self.held = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if tensor.shape != self.held[name].shape:
                raise InputError(
                    f"a batch has {name} of {tuple(tensor.shape)} after {tuple(self.held[name].shape)}, and a recorded "
                    "step takes one size only; set run.speed=eager."
                )
            self.held[name].copy_(tensor, non_blocking=True)

    def _beside(self) -> None:
        """Run the step on a stream of its own, as recording demands of the steps before it."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.step.run(self.held)
        torch.cuda.current_stream().wait_stream(self.side)

    def _recorded(self) -> torch.cuda.CUDAGraph:
        # Gradients must be born inside the recording: a replay then writes them anew instead of adding to the last.
        self.step.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # threads that read data may go on
            self.step.run(self.held)
        return graph
