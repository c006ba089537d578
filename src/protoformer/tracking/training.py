"""Tracking as a task of the loop."""

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.geometry.boxes import box_iou
from protoformer.models.heads.flow import normalize_images
from protoformer.models.heads.tracking import TrackPrediction
from protoformer.models.networks import build_network
from protoformer.models.runtime import full_precision
from protoformer.synthetic.samples import TrackPairs
from protoformer.tracking.data import ClipPairs, SyntheticPairs
from protoformer.tracking.losses import targets_of, track_loss
from protoformer.training.engine import load_initial_weights
from protoformer.training.prefetch import to_device
from protoformer.training.recipe import Recipe
from protoformer.training.sources import SampleKind, Source, open_source
from protoformer.training.task import EXAMPLES, Example, TaskLoss, ValidationScenes


class TrackTask:
    """Tracking by a recipe, whose `data.crop` is the size of the world's frames; the network says that of its crops.

    start: a network to begin with the weights of, if not with random ones; of another task's, the encoder's alone.
    """

    metrics: tuple[str, ...] = ("iou", "distance", "overlap", "corners", "doubt", "right")

    def __init__(self, recipe: Recipe, start: nn.Module | None = None) -> None:
        self.recipe, self.start = recipe, start
        self.config = recipe.model.config()
        self.kind: SampleKind[TrackPairs] = SampleKind(SyntheticPairs(self.config), ClipPairs(self.config))

    def build(self) -> nn.Module:
        """The network that the recipe describes."""
        network = build_network("track", self.config)
        if self.start is not None:
            load_initial_weights(network, self.start, self.recipe.model.start)
        return network

    def source(self, rank: int, ranks: int, device: torch.device, told: Callable[[str], None]) -> Source[TrackPairs]:
        """The recipe's pairs of crops."""
        return open_source(self.recipe.data, device, self.kind, rank=rank, ranks=ranks, told=told)

    def held_out(self, device: torch.device) -> "ValidationPairs":
        """Pairs of the world that are never trained on."""
        return ValidationPairs(self.recipe, self.kind, device)

    def tensors(self, batch: TrackPairs) -> dict[str, Tensor]:
        """All but the names."""
        fields = (field.name for field in dataclasses.fields(batch) if field.name != "names")
        return {name: getattr(batch, name) for name in fields}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Targets that are located, and those that are judged: 2."""
        return targets_of(tensors["located"], tensors["judged"])

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """The loss of every stage, and of the score."""
        pairs = TrackPairs(**tensors)  # type: ignore[arg-type]  # which has no names
        prediction = _prediction(network, pairs)
        with full_precision(weight):
            loss = track_loss(prediction, pairs, weight, self.recipe.loss.corners)
        return TaskLoss(loss.total, tuple(getattr(loss, name) for name in self.metrics))


class ValidationPairs(ValidationScenes[TrackPairs]):
    """What is predicted, and drawn, is a box, search pixels, and a score in [0, 1]: N x 5."""

    def predicted(self, network: nn.Module, batch: TrackPairs) -> Tensor:
        """Boxes and scores."""
        found = _prediction(network, batch)
        return torch.cat((found.boxes[-1], found.score_logits.sigmoid()[:, None]), dim=1).float().cpu()

    def scores(self, pairs: Iterable[tuple[TrackPairs, Tensor]]) -> dict[str, float]:
        """Mean overlap with located targets, share of them found by more than half, share of the scores that are right.

        NaN where no pair has a target, or none can be judged.
        """
        overlaps, rights = [torch.zeros(0)], [torch.zeros(0)]
        for batch, found in pairs:
            located, judged = batch.located.cpu(), batch.judged.cpu()
            overlaps.append(box_iou(found[:, :4], batch.boxes.cpu())[located])
            rights.append(((found[:, 4] > 0.5) == located)[judged].float())
        overlap, right = torch.cat(overlaps), torch.cat(rights)
        means = {"iou": overlap.mean(), "found": (overlap > 0.5).float().mean(), "right": right.mean()}
        return {name: float(mean) for name, mean in means.items()}

    @torch.no_grad()
    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        """Of each of the first batches the first target that is located, if one is."""
        found = []
        for batch in self._rendered()[:EXAMPLES]:
            place = int(batch.located.float().argmax())
            fields = {each.name: getattr(batch, each.name)[place : place + 1] for each in dataclasses.fields(batch)}
            one = to_device(TrackPairs(**fields), torch.device("cpu"))
            found.append(Example(one.names[0], one, self.predicted(network, batch)[place]))
        return tuple(found)


def _prediction(network: nn.Module, pairs: TrackPairs) -> TrackPrediction:
    found: TrackPrediction = network(
        normalize_images(pairs.reference), pairs.reference_boxes, normalize_images(pairs.search)
    )
    return found
