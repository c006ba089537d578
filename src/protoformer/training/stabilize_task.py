"""Stabilization as a task of the loop."""

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.geometry.trails import Trails
from protoformer.model.flow import normalised
from protoformer.model.networks import build_network
from protoformer.model.precision import full_precision
from protoformer.model.stabilize import StabilizePrediction
from protoformer.training.held_out import HeldOutScenes
from protoformer.training.recipe import Recipe
from protoformer.training.sample_kind import SampleKind
from protoformer.training.sources import Source, open_source
from protoformer.training.stabilize_losses import corner_lengths, stabilize_loss, valid_cells
from protoformer.training.stabilize_sources import WorldWindows
from protoformer.training.starting import begin_with
from protoformer.training.task import TaskLoss
from protoformer.world import StabilityWindows


class StabilizeTask:
    """Stabilization by a recipe, whose `data.crop` is the working size.

    start: a network to begin with the weights of, if not with random ones; of another task's, the encoder's alone.
    """

    metrics: tuple[str, ...] = ("error", "shake", "share", "distance", "consistency", "shape", "alignment", "borders")

    def __init__(self, recipe: Recipe, start: nn.Module | None = None) -> None:
        self.recipe, self.start = recipe, start
        self.config = recipe.model.config()
        self.kind: SampleKind[StabilityWindows] = SampleKind(WorldWindows(self.config), None)

    def build(self) -> nn.Module:
        """The network that the recipe describes."""
        network = build_network("stabilize", self.config)
        if self.start is not None:
            begin_with(network, self.start, self.recipe.model.start)
        return network

    def source(
        self, rank: int, ranks: int, device: torch.device, told: Callable[[str], None]
    ) -> Source[StabilityWindows]:
        """The recipe's windows."""
        return open_source(self.recipe.data, device, self.kind, rank=rank, ranks=ranks, told=told)

    def held_out(self, device: torch.device) -> "HeldOutWindows":
        """Windows of the world that are never trained on."""
        return HeldOutWindows(self.recipe, self.kind, device)

    def tensors(self, batch: StabilityWindows) -> dict[str, Tensor]:
        """All but the names."""
        fields = (field.name for field in dataclasses.fields(batch) if field.name != "names")
        return {name: getattr(batch, name) for name in fields}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Cells whose warp is known."""
        return valid_cells(tensors["valid"])

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """The loss of both frames of every window."""
        windows = StabilityWindows(**tensors)  # type: ignore[arg-type]  # which has no names
        prediction = _prediction(network, windows)
        with full_precision(weight):
            loss = stabilize_loss(prediction, windows, self.recipe.loss, weight)
        return TaskLoss(loss.total, tuple(getattr(loss, name) for name in self.metrics))


class HeldOutWindows(HeldOutScenes[StabilityWindows]):
    """What is predicted is the last warp of both frames: N x 2 x 2 x h x w, pixels."""

    def predicted(self, network: nn.Module, batch: StabilityWindows) -> Tensor:
        """Warps."""
        warps: Tensor = _prediction(network, batch).warps[-1].unflatten(0, tuple(batch.warp.shape[:2]))
        return warps.float().cpu()

    def scores(self, pairs: Iterable[tuple[StabilityWindows, Tensor]]) -> dict[str, float]:
        """Of all windows: the mean error and shake at the corners, and their ratio; as in `StabilizeLoss`."""
        errors, shakes = [torch.zeros(0)], [torch.zeros(0)]
        for batch, found in pairs:
            off, far = corner_lengths(found, batch.warp.cpu(), batch.valid.cpu())
            errors.append(off.flatten())
            shakes.append(far.flatten())
        error, shake = (float(torch.cat(each).mean()) for each in (errors, shakes))
        return {"error": error, "shake": shake, "share": error / max(shake, 1e-3)}


def _prediction(network: nn.Module, windows: StabilityWindows) -> StabilizePrediction:
    trails = Trails(windows.places.flatten(0, 1), windows.trust.flatten(0, 1))
    found: StabilizePrediction = network(normalised(windows.unstable.flatten(0, 1)), trails)
    return found
