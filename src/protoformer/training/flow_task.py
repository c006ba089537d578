"""Optical flow as a task of the loop."""

import dataclasses
from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor, nn

from protoformer.errors import InputError
from protoformer.metrics import FlowMetric
from protoformer.model import FlowNetwork, build_flow
from protoformer.model.flow import normalised
from protoformer.model.precision import full_precision
from protoformer.training.losses import counted_pixels, flow_loss
from protoformer.training.recipe import DataSection, Recipe
from protoformer.training.sources import Source, open_source
from protoformer.training.task import Example, TaskLoss, Validated
from protoformer.world import FlowSample

HELD_OUT = 1_000_003
"""Added to the data's seed for scenes that are never trained on."""
TOGETHER = 4
"""Held-out scenes that are looked at at once."""
EXAMPLES = 3


class FlowTask:
    """Flow by a recipe. start: a network to begin with the weights of, if not with random ones."""

    metrics: tuple[str, ...] = ("epe", "distance", "surprise")

    def __init__(self, recipe: Recipe, start: nn.Module | None = None) -> None:
        self.recipe, self.start = recipe, start

    def build(self) -> nn.Module:
        """The network that the recipe describes."""
        network = build_flow(self.recipe.model.config())
        if self.start is not None:
            if not isinstance(self.start, FlowNetwork) or self.start.config != network.config:
                raise InputError(
                    f"the weights {self.recipe.model.start} are of another network than the recipe's; "
                    "set model.preset and model.fields to theirs."
                )
            network.load_state_dict(self.start.state_dict())
        return network

    def source(self, rank: int, ranks: int, device: torch.device, told: Callable[[str], None]) -> Source[FlowSample]:
        """The recipe's pairs."""
        return open_source(self.recipe.data, device, rank=rank, ranks=ranks, told=told)

    def held_out(self, device: torch.device) -> "HeldOutScenes":
        """Scenes of the world from another seed, of the recipe's families and size."""
        data = self.recipe.data
        scenes = dataclasses.replace(
            data, source="world", seed=(data.seed + HELD_OUT) % 2**31, batch=TOGETHER, workers=0
        )
        return HeldOutScenes(scenes, self.recipe.run.validation_scenes, device)

    def tensors(self, batch: FlowSample) -> dict[str, Tensor]:
        """Images, motion, and where it is known."""
        return {"first": batch.first, "second": batch.second, "flow": batch.flow, "valid": batch.valid}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Pixels that count."""
        return counted_pixels(tensors["flow"], tensors["valid"]).sum()

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """The loss of every update."""
        prediction = network(normalised(tensors["first"]), normalised(tensors["second"]), every=True)
        with full_precision(weight):
            settings = self.recipe.loss
            loss = flow_loss(prediction, tensors["flow"], tensors["valid"], settings.gamma, settings.confidence, weight)
        return TaskLoss(loss.total, (loss.epe, loss.distance, loss.surprise))


class HeldOutScenes:
    """The first scenes of a world, rendered when they are first asked for and then kept on the device."""

    def __init__(self, data: DataSection, scenes: int, device: torch.device) -> None:
        self.data, self.count, self.device = data, scenes, device
        self._batches: tuple[FlowSample, ...] = ()

    def validate(self, network: nn.Module) -> Validated:
        """End-point error (pixels), Fl and outliers at 1 px (percent) over all pixels that training counts."""
        metric = FlowMetric()
        for batch in self._rendered():
            flow = _flow_of(network, batch)
            truth, valid = batch.flow.cpu(), batch.valid.cpu()
            metric.update(flow, truth, counted_pixels(truth, valid))
        scores = metric.compute()
        return Validated("world", {"epe": scores.epe, "fl": scores.fl, "px1": scores.px1})

    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        """The first scene of each of the first batches, which tend to be of different families."""
        found = []
        for batch in self._rendered()[:EXAMPLES]:
            one = _first(1, batch, torch.device("cpu"))
            found.append(Example(one.names[0], one, _flow_of(network, batch)[0]))
        return tuple(found)

    def _rendered(self) -> tuple[FlowSample, ...]:
        if not self._batches and self.count:
            wanted = -(-self.count // TOGETHER)
            source = open_source(self.data, self.device)
            *whole, last = islice(source.batches(0), wanted)
            self._batches = (*whole, _first(self.count - TOGETHER * len(whole), last, self.device))
        return self._batches


def _first(count: int, batch: FlowSample, device: torch.device) -> FlowSample:
    """The first samples of a batch, on a device."""
    return FlowSample(
        first=batch.first[:count].to(device),
        second=batch.second[:count].to(device),
        flow=batch.flow[:count].to(device),
        valid=batch.valid[:count].to(device),
        names=batch.names[:count],
    )


@torch.no_grad()
def _flow_of(network: nn.Module, batch: FlowSample) -> Tensor:
    flow: Tensor = network(normalised(batch.first), normalised(batch.second)).flows[-1]
    return flow.float().cpu()
