"""Depth task of the trainer."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.depth.losses import depth_loss, valid_depth_mask
from protoformer.models.heads.depth import focal_length, metric_depth, principal_point
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import full_precision, normalize_images
from protoformer.synthetic.samples import DepthSample
from protoformer.training.engine import load_initial_weights
from protoformer.training.prototype_losses import label_maps, mean_errors, prototype_weights
from protoformer.training.recipe import Recipe
from protoformer.training.sources import DEPTH, Source, open_source
from protoformer.training.task import TaskLoss, ValidationScenes


class DepthTask:
    """Depth training as described by a recipe.

    Args:
        recipe: training recipe.
        start: network whose weights initialize training, or whose encoder does if it is of another task; None for
            random weights.
    """

    def __init__(self, recipe: Recipe, start: ProtoFormer | None = None) -> None:
        self.recipe, self.start = recipe, start
        self.prototype_weights = prototype_weights(recipe, "plane", "instances")
        self.metrics: tuple[str, ...] = ("abs_rel", "delta1", "silog", "nll", "edges", *self.prototype_weights)

    def build(self) -> ProtoFormer:
        """Build the network of the recipe."""
        network = build_network(self.recipe.model.config(), "depth")
        if self.start is not None:
            load_initial_weights(network, self.start, self.recipe.model.init_weights)
        return network

    def source(
        self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]
    ) -> Source[DepthSample]:
        """Open the recipe's source of images."""
        return open_source(self.recipe.data, device, DEPTH, rank=rank, num_ranks=num_ranks, on_message=on_message)

    def validation_set(self, device: torch.device) -> "ValidationDepths":
        """Return synthetic validation scenes that are never trained on."""
        return ValidationDepths(self.recipe, device)

    def tensors(self, batch: DepthSample) -> dict[str, Tensor]:
        """Collect the tensors of the loss, with the focal length and optical center of each camera."""
        assert batch.intrinsics is not None  # ensured by every kind of source
        labels = {}
        if "instances" in self.prototype_weights:
            labels["instances"] = label_maps(batch.instances, batch.valid)
        return {
            **labels,
            **{"image": batch.image, "depth": batch.depth, "valid": batch.valid},
            **{"focal": focal_length(batch.intrinsics), "center": principal_point(batch.intrinsics)},
        }

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Count the pixels that enter the loss."""
        return self._mask(tensors).sum()

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """Compute the sequence loss over all updates, and the losses on prototypes."""
        images, weights = normalize_images(tensors["image"]), self.prototype_weights
        prediction = network(images, tensors["center"], return_all=True, return_prototypes=bool(weights))
        with full_precision(weight):
            options = self.recipe.loss
            mask, depth, focal = self._mask(tensors), tensors["depth"], tensors["focal"]
            loss = depth_loss(prediction, depth, mask, focal, options.gamma, options.confidence, options.edges, weight)
            truth = {**tensors, "plane": 1 / depth.clamp_min(options.min_depth)}
            errors = mean_errors(prediction.prototypes, {name: truth[name] for name in weights}, mask, weight)
        total = loss.total + sum(weights[name] * error for name, error in errors.items())
        metrics = (loss.abs_rel, loss.delta1, loss.silog, loss.nll, loss.edges)
        return TaskLoss(total, (*metrics, *errors.values()))

    def _mask(self, tensors: dict[str, Tensor]) -> Tensor:
        options = self.recipe.loss
        return valid_depth_mask(tensors["depth"], tensors["valid"], options.min_depth, options.max_depth)


class ValidationDepths(ValidationScenes[DepthSample]):
    """Validation scenes whose predictions are depths in meters, N x 1 x H x W."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, DEPTH, device)
        self.nearest, self.farthest = recipe.loss.min_depth, recipe.loss.max_depth

    def predict(self, network: nn.Module, batch: DepthSample) -> Tensor:
        """Predict depth with the true cameras."""
        assert batch.intrinsics is not None
        log: Tensor = network(normalize_images(batch.image), principal_point(batch.intrinsics)).log_depths[-1]
        return metric_depth(log.float(), focal_length(batch.intrinsics)).cpu()

    def compute_scores(self, pairs: Iterable[tuple[DepthSample, Tensor]]) -> dict[str, float]:
        """Compute metric scores over the pixels that enter the loss."""
        from protoformer.depth.evaluation import DepthMetric

        metric = DepthMetric(minimum=self.nearest, maximum=self.farthest)
        for batch, depth in pairs:
            metric.update(depth, batch.depth.cpu(), batch.valid.cpu())
        scores = metric.compute().metric
        return {"abs_rel": scores.abs_rel, "rmse": scores.rmse, "delta1": scores.delta1, "silog": scores.silog}
