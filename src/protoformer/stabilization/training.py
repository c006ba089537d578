"""Training and validation of the stabilization network."""

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.geometry.motion_fields import Trajectories
from protoformer.models.heads.stabilization import StabilizationPrediction
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import full_precision, normalize_images
from protoformer.stabilization.data import SyntheticWindows
from protoformer.stabilization.losses import corner_lengths, stabilize_loss, valid_cells
from protoformer.synthetic.samples import StabilityWindows
from protoformer.training.engine import load_initial_weights
from protoformer.training.recipe import Recipe
from protoformer.training.sources import SampleKind, Source, open_source
from protoformer.training.task import TaskLoss, ValidationScenes


class StabilizeTask:
    """Stabilization task of a recipe, whose `data.crop_size` is the working size.

    Attributes:
        recipe: Recipe to train.
        start: Network with initial weights, or None for random ones. If it belongs to another task, only its encoder is
            used.
        config: Model configuration of the recipe.
        kind: Sample types of synthetic scenes and datasets.
    """

    metrics: tuple[str, ...] = (
        "error",
        "shake",
        "relative_error",
        "distance",
        "consistency",
        "shape",
        "alignment",
        "borders",
    )

    def __init__(self, recipe: Recipe, start: ProtoFormer | None = None) -> None:
        self.recipe, self.start = recipe, start
        self.config = recipe.model.config()
        self.kind: SampleKind[StabilityWindows] = SampleKind(SyntheticWindows(self.config), None)

    def build(self) -> ProtoFormer:
        """Build the network of the recipe, with its initial weights."""
        network = build_network(self.config, "stabilize")
        network.encoder.requires_grad_(False)  # it is that of flow, which both tasks share
        if self.start is not None:
            load_initial_weights(network, self.start, self.recipe.model.init_weights)
        return network

    def source(
        self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]
    ) -> Source[StabilityWindows]:
        """Open the training windows of the recipe for one process. on_message: callback for log messages."""
        return open_source(self.recipe.data, device, self.kind, rank=rank, num_ranks=num_ranks, on_message=on_message)

    def validation_set(self, device: torch.device) -> "ValidationWindows":
        """Return synthetic validation windows, which are never used for training."""
        return ValidationWindows(self.recipe, self.kind, device)

    def tensors(self, batch: StabilityWindows) -> dict[str, Tensor]:
        """Return all tensors of a batch, by field name."""
        fields = (field.name for field in dataclasses.fields(batch) if field.name != "names")
        return {name: getattr(batch, name) for name in fields}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Count the cells with a valid warp."""
        return valid_cells(tensors["valid"])

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """Compute the loss of both frames of every window."""
        windows = StabilityWindows(**tensors)  # type: ignore[arg-type]  # without names
        prediction = _run_network(network, windows)
        with full_precision(weight):
            loss = stabilize_loss(prediction, windows, self.recipe.loss, weight)
        return TaskLoss(loss.total, tuple(getattr(loss, name) for name in self.metrics))


class ValidationWindows(ValidationScenes[StabilityWindows]):
    """Validation windows; a prediction is the last warp of both frames, N x 2 x 2 x h x w, pixels."""

    def predict(self, network: nn.Module, batch: StabilityWindows) -> Tensor:
        """Predict warps, N x 2 x 2 x h x w, pixels, on the CPU."""
        warps: Tensor = _run_network(network, batch).warps[-1].unflatten(0, tuple(batch.warp.shape[:2]))
        return warps.float().cpu()

    def compute_scores(self, pairs: Iterable[tuple[StabilityWindows, Tensor]]) -> dict[str, float]:
        """Compute the mean error and shake at the corners of all windows and their ratio, as in `StabilizeLoss`."""
        errors, shakes = [torch.zeros(0)], [torch.zeros(0)]
        for batch, predicted in pairs:
            error_lengths, shake_lengths = corner_lengths(predicted, batch.warp.cpu(), batch.valid.cpu())
            errors.append(error_lengths.flatten())
            shakes.append(shake_lengths.flatten())
        error, shake = (float(torch.cat(each).mean()) for each in (errors, shakes))
        return {"error": error, "shake": shake, "relative_error": error / max(shake, 1e-3)}


def _run_network(network: nn.Module, windows: StabilityWindows) -> StabilizationPrediction:
    trajectories = Trajectories(windows.displacements.flatten(0, 1), windows.confidence.flatten(0, 1))
    prediction: StabilizationPrediction = network(normalize_images(windows.unstable.flatten(0, 1)), trajectories)
    return prediction
