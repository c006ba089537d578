"""Optical flow as a task of the loop."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.flow.losses import flow_loss, valid_pixels
from protoformer.models.heads.flow import normalize_images
from protoformer.models.networks import build_network
from protoformer.models.runtime import full_precision
from protoformer.synthetic.samples import FlowSample
from protoformer.training.engine import load_initial_weights
from protoformer.training.recipe import Recipe
from protoformer.training.sources import FLOW, Source, open_source
from protoformer.training.task import TaskLoss, ValidationScenes


class FlowTask:
    """Flow by a recipe. start: a network to begin with the weights of, if not with random ones."""

    metrics: tuple[str, ...] = ("epe", "distance", "surprise", "matching")

    def __init__(self, recipe: Recipe, start: nn.Module | None = None) -> None:
        self.recipe, self.start = recipe, start

    def build(self) -> nn.Module:
        """The network that the recipe describes."""
        network = build_network("flow", self.recipe.model.config())
        if self.start is not None:
            load_initial_weights(network, self.start, self.recipe.model.start)
        return network

    def source(self, rank: int, ranks: int, device: torch.device, told: Callable[[str], None]) -> Source[FlowSample]:
        """The recipe's pairs."""
        return open_source(self.recipe.data, device, rank=rank, ranks=ranks, told=told)

    def held_out(self, device: torch.device) -> "ValidationFlows":
        """Scenes of the world that are never trained on."""
        return ValidationFlows(self.recipe, FLOW, device)

    def tensors(self, batch: FlowSample) -> dict[str, Tensor]:
        """Images, motion, where it is known, and what the second images hide of the first, where that is known."""
        hidden = torch.zeros_like(batch.valid) if batch.occlusion is None else batch.occlusion
        found = {"first": batch.first, "second": batch.second, "flow": batch.flow, "valid": batch.valid}
        return {**found, "hidden": hidden}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Pixels that count."""
        return valid_pixels(tensors["flow"], tensors["valid"]).sum()

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """The loss of every update."""
        prediction = network(normalize_images(tensors["first"]), normalize_images(tensors["second"]), every=True)
        with full_precision(weight):
            own, hidden = self.recipe.loss, tensors["hidden"]
            loss = flow_loss(
                prediction, tensors["flow"], tensors["valid"], own.gamma, own.confidence, weight, hidden, own.matching
            )
        return TaskLoss(loss.total, (loss.epe, loss.distance, loss.surprise, loss.matching))


class ValidationFlows(ValidationScenes[FlowSample]):
    """What is predicted, and drawn, is motion in pixels: N x 2 x H x W."""

    def predicted(self, network: nn.Module, batch: FlowSample) -> Tensor:
        """Motion from the first images to the second."""
        flow: Tensor = network(normalize_images(batch.first), normalize_images(batch.second)).flows[-1]
        return flow.float().cpu()

    def scores(self, pairs: Iterable[tuple[FlowSample, Tensor]]) -> dict[str, float]:
        """End-point error (pixels), Fl and outliers at 1 px (percent) over all pixels that training counts."""
        from protoformer.flow.evaluation import FlowMetric

        metric = FlowMetric()
        for batch, flow in pairs:
            truth, valid = batch.flow.cpu(), batch.valid.cpu()
            metric.update(flow, truth, valid_pixels(truth, valid))
        found = metric.compute()
        return {"epe": found.epe, "fl": found.fl, "px1": found.px1}
