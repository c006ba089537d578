"""Optical flow task of the trainer."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.flow.losses import flow_loss, valid_pixels
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import full_precision, normalize_images
from protoformer.synthetic.samples import FlowSample
from protoformer.training.engine import load_initial_weights
from protoformer.training.prototype_losses import label_maps, mean_errors, prototype_weights
from protoformer.training.recipe import Recipe
from protoformer.training.sources import FLOW, Source, open_source
from protoformer.training.task import TaskLoss, ValidationScenes


class FlowTask:
    """Optical flow training as described by a recipe.

    Args:
        recipe: training recipe.
        start: network whose weights initialize training; None for random weights.
    """

    def __init__(self, recipe: Recipe, start: ProtoFormer | None = None) -> None:
        self.recipe, self.start = recipe, start
        self.prototype_weights = prototype_weights(recipe, "motion", "instances")
        self.metrics: tuple[str, ...] = ("epe", "distance", "nll", "matching", *self.prototype_weights)

    def build(self) -> ProtoFormer:
        """Build the network of the recipe."""
        network = build_network(self.recipe.model.config(), "flow")
        if self.start is not None:
            load_initial_weights(network, self.start, self.recipe.model.init_weights)
        return network

    def source(
        self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]
    ) -> Source[FlowSample]:
        """Open the recipe's source of image pairs."""
        return open_source(self.recipe.data, device, rank=rank, num_ranks=num_ranks, on_message=on_message)

    def validation_set(self, device: torch.device) -> "ValidationFlows":
        """Return synthetic validation scenes that are never trained on."""
        return ValidationFlows(self.recipe, FLOW, device)

    def tensors(self, batch: FlowSample) -> dict[str, Tensor]:
        """Collect the tensors of the loss; the occlusion mask ("occlusion") is all False if it is unknown."""
        occlusion = torch.zeros_like(batch.valid) if batch.occlusion is None else batch.occlusion
        tensors = {"first": batch.first, "second": batch.second, "flow": batch.flow, "valid": batch.valid}
        if "instances" in self.prototype_weights:
            tensors["instances"] = label_maps(batch.instances, batch.valid)
        return {**tensors, "occlusion": occlusion}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Count the pixels that enter the loss."""
        return valid_pixels(tensors["flow"], tensors["valid"]).sum()

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """Compute the sequence loss over all updates, and the losses on the prototypes of the first images."""
        images, weights = (normalize_images(tensors[name]) for name in ("first", "second")), self.prototype_weights
        prediction = network(*images, return_all=True, return_prototypes=bool(weights))
        with full_precision(weight):
            options, occlusion = self.recipe.loss, tensors["occlusion"]
            loss = flow_loss(
                prediction,
                tensors["flow"],
                tensors["valid"],
                options.gamma,
                options.confidence,
                weight,
                occlusion,
                options.matching,
            )
            mask, truth = valid_pixels(tensors["flow"], tensors["valid"]), {**tensors, "motion": tensors["flow"]}
            errors = mean_errors(prediction.prototypes, {name: truth[name] for name in weights}, mask, weight)
        total = loss.total + sum(weights[name] * error for name, error in errors.items())
        return TaskLoss(total, (loss.epe, loss.distance, loss.nll, loss.matching, *errors.values()))


class ValidationFlows(ValidationScenes[FlowSample]):
    """Validation scenes whose predictions are flow in pixels, N x 2 x H x W."""

    def predict(self, network: nn.Module, batch: FlowSample) -> Tensor:
        """Predict the flow from the first images to the second."""
        flow: Tensor = network(normalize_images(batch.first), normalize_images(batch.second)).flows[-1]
        return flow.float().cpu()

    def compute_scores(self, pairs: Iterable[tuple[FlowSample, Tensor]]) -> dict[str, float]:
        """Compute end-point error (pixels), Fl and 1 px outliers (percent) over the pixels that enter the loss."""
        from protoformer.flow.evaluation import FlowMetric

        metric = FlowMetric()
        for batch, flow in pairs:
            truth, valid = batch.flow.cpu(), batch.valid.cpu()
            metric.update(flow, truth, valid_pixels(truth, valid))
        scores = metric.compute()
        return {"epe": scores.epe, "fl": scores.fl, "px1": scores.px1}
