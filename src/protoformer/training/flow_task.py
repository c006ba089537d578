"""Optical flow as a task of the loop."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.model.flow import normalised
from protoformer.model.networks import build_network
from protoformer.model.precision import full_precision
from protoformer.training.held_out import HeldOutScenes
from protoformer.training.losses import counted_pixels, flow_loss
from protoformer.training.recipe import Recipe
from protoformer.training.sample_kind import FLOW
from protoformer.training.sources import Source, open_source
from protoformer.training.starting import begin_with
from protoformer.training.task import TaskLoss
from protoformer.world import FlowSample


class FlowTask:
    """Flow by a recipe. start: a network to begin with the weights of, if not with random ones."""

    metrics: tuple[str, ...] = ("epe", "distance", "surprise", "matching")

    def __init__(self, recipe: Recipe, start: nn.Module | None = None) -> None:
        self.recipe, self.start = recipe, start

    def build(self) -> nn.Module:
        """The network that the recipe describes."""
        network = build_network("flow", self.recipe.model.config())
        if self.start is not None:
            begin_with(network, self.start, self.recipe.model.start)
        return network

    def source(self, rank: int, ranks: int, device: torch.device, told: Callable[[str], None]) -> Source[FlowSample]:
        """The recipe's pairs."""
        return open_source(self.recipe.data, device, rank=rank, ranks=ranks, told=told)

    def held_out(self, device: torch.device) -> "HeldOutFlows":
        """Scenes of the world that are never trained on."""
        return HeldOutFlows(self.recipe, FLOW, device)

    def tensors(self, batch: FlowSample) -> dict[str, Tensor]:
        """Images, motion, where it is known, and what the second images hide of the first, where that is known."""
        hidden = torch.zeros_like(batch.valid) if batch.occlusion is None else batch.occlusion
        found = {"first": batch.first, "second": batch.second, "flow": batch.flow, "valid": batch.valid}
        return {**found, "hidden": hidden}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Pixels that count."""
        return counted_pixels(tensors["flow"], tensors["valid"]).sum()

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """The loss of every update."""
        prediction = network(normalised(tensors["first"]), normalised(tensors["second"]), every=True)
        with full_precision(weight):
            own, hidden = self.recipe.loss, tensors["hidden"]
            loss = flow_loss(
                prediction, tensors["flow"], tensors["valid"], own.gamma, own.confidence, weight, hidden, own.matching
            )
        return TaskLoss(loss.total, (loss.epe, loss.distance, loss.surprise, loss.matching))


class HeldOutFlows(HeldOutScenes[FlowSample]):
    """What is predicted, and drawn, is motion in pixels: N x 2 x H x W."""

    def predicted(self, network: nn.Module, batch: FlowSample) -> Tensor:
        """Motion from the first images to the second."""
        flow: Tensor = network(normalised(batch.first), normalised(batch.second)).flows[-1]
        return flow.float().cpu()

    def scores(self, pairs: Iterable[tuple[FlowSample, Tensor]]) -> dict[str, float]:
        """End-point error (pixels), Fl and outliers at 1 px (percent) over all pixels that training counts."""
        from protoformer.metrics import FlowMetric

        metric = FlowMetric()
        for batch, flow in pairs:
            truth, valid = batch.flow.cpu(), batch.valid.cpu()
            metric.update(flow, truth, counted_pixels(truth, valid))
        found = metric.compute()
        return {"epe": found.epe, "fl": found.fl, "px1": found.px1}
