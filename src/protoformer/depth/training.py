"""Scene depth as a task of the loop."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.depth.losses import count_valid_depths, depth_loss
from protoformer.models.heads.depth import focal_length, metric_depth, optical_center
from protoformer.models.heads.flow import normalize_images
from protoformer.models.networks import build_network
from protoformer.models.runtime import full_precision
from protoformer.synthetic.samples import DepthSample
from protoformer.training.engine import load_initial_weights
from protoformer.training.recipe import Recipe
from protoformer.training.sources import DEPTH, Source, open_source
from protoformer.training.task import TaskLoss, ValidationScenes


class DepthTask:
    """Depth by a recipe. start: a network to begin with the weights of, or of another task, whose encoder it takes."""

    metrics: tuple[str, ...] = ("abs_rel", "delta1", "silog", "surprise", "edges")

    def __init__(self, recipe: Recipe, start: nn.Module | None = None) -> None:
        self.recipe, self.start = recipe, start

    def build(self) -> nn.Module:
        """The network that the recipe describes."""
        network = build_network("depth", self.recipe.model.config())
        if self.start is not None:
            load_initial_weights(network, self.start, self.recipe.model.start)
        return network

    def source(self, rank: int, ranks: int, device: torch.device, told: Callable[[str], None]) -> Source[DepthSample]:
        """The recipe's images."""
        return open_source(self.recipe.data, device, DEPTH, rank=rank, ranks=ranks, told=told)

    def held_out(self, device: torch.device) -> "ValidationDepths":
        """Scenes of the world that are never trained on."""
        return ValidationDepths(self.recipe, device)

    def tensors(self, batch: DepthSample) -> dict[str, Tensor]:
        """Images, depths, where they are known, and of each camera a focal length and what it looks at."""
        assert batch.intrinsics is not None  # as every kind of source makes sure
        return {
            **{"image": batch.image, "depth": batch.depth, "valid": batch.valid},
            **{"focal": focal_length(batch.intrinsics), "center": optical_center(batch.intrinsics)},
        }

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Pixels that count."""
        return self._counted(tensors).sum()

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """The loss of every update."""
        prediction = network(normalize_images(tensors["image"]), tensors["center"], every=True)
        with full_precision(weight):
            own = self.recipe.loss
            counted, depth, focal = self._counted(tensors), tensors["depth"], tensors["focal"]
            loss = depth_loss(prediction, depth, counted, focal, own.gamma, own.confidence, own.edges, weight)
        return TaskLoss(loss.total, (loss.abs_rel, loss.delta1, loss.silog, loss.surprise, loss.edges))

    def _counted(self, tensors: dict[str, Tensor]) -> Tensor:
        own = self.recipe.loss
        return count_valid_depths(tensors["depth"], tensors["valid"], own.nearest, own.farthest)


class ValidationDepths(ValidationScenes[DepthSample]):
    """What is predicted, and drawn, are depths in meters: N x 1 x H x W."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, DEPTH, device)
        self.nearest, self.farthest = recipe.loss.nearest, recipe.loss.farthest

    def predicted(self, network: nn.Module, batch: DepthSample) -> Tensor:
        """Depths by the true cameras."""
        assert batch.intrinsics is not None
        log: Tensor = network(normalize_images(batch.image), optical_center(batch.intrinsics)).logs[-1]
        return metric_depth(log.float(), focal_length(batch.intrinsics)).cpu()

    def scores(self, pairs: Iterable[tuple[DepthSample, Tensor]]) -> dict[str, float]:
        """In meters as predicted, over the pixels that training counts."""
        from protoformer.depth.evaluation import DepthMetric

        metric = DepthMetric(minimum=self.nearest, maximum=self.farthest)
        for batch, depth in pairs:
            metric.update(depth, batch.depth.cpu(), batch.valid.cpu())
        found = metric.compute().metric
        return {"abs_rel": found.abs_rel, "rmse": found.rmse, "delta1": found.delta1, "silog": found.silog}
