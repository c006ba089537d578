"""Training and validation of the tracking network."""

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from protoformer.geometry.regions import box_iou
from protoformer.models.heads.tracking import TrackingPrediction
from protoformer.models.protoformer import ProtoFormer, build_network
from protoformer.models.runtime import full_precision, normalize_images
from protoformer.synthetic.samples import TrackPairs
from protoformer.tracking.data import ClipPairs, SyntheticPairs
from protoformer.tracking.losses import targets_of, track_loss
from protoformer.training.engine import load_initial_weights
from protoformer.training.prefetch import to_device
from protoformer.training.recipe import Recipe
from protoformer.training.sources import SampleKind, Source, open_source
from protoformer.training.task import EXAMPLES, Example, TaskLoss, ValidationScenes


class TrackTask:
    """Tracking task of a recipe.

    `data.crop_size` of the recipe is the size of the synthetic frames; the model configuration sets that of the crops.

    Attributes:
        recipe: Recipe to train.
        start: Network with initial weights, or None for random ones. If it belongs to another task, only its encoder is
            used.
        config: Model configuration of the recipe.
        kind: Sample types of synthetic scenes and datasets.
    """

    metrics: tuple[str, ...] = ("iou", "distance", "overlap", "corners", "score", "accuracy")

    def __init__(self, recipe: Recipe, start: ProtoFormer | None = None) -> None:
        self.recipe, self.start = recipe, start
        self.config = recipe.model.config()
        self.kind: SampleKind[TrackPairs] = SampleKind(SyntheticPairs(self.config), ClipPairs(self.config))

    def build(self) -> ProtoFormer:
        """Build the network of the recipe, with its initial weights."""
        network = build_network(self.config, "track")
        if self.start is not None:
            load_initial_weights(network, self.start, self.recipe.model.init_weights)
        return network

    def source(
        self, rank: int, num_ranks: int, device: torch.device, on_message: Callable[[str], None]
    ) -> Source[TrackPairs]:
        """Open the training pairs of the recipe for one process. on_message: callback for log messages."""
        return open_source(self.recipe.data, device, self.kind, rank=rank, num_ranks=num_ranks, on_message=on_message)

    def validation_set(self, device: torch.device) -> "ValidationPairs":
        """Return synthetic validation pairs, which are never used for training."""
        return ValidationPairs(self.recipe, self.kind, device)

    def tensors(self, batch: TrackPairs) -> dict[str, Tensor]:
        """Return all tensors of a batch, by field name."""
        fields = (field.name for field in dataclasses.fields(batch) if field.name != "names")
        return {name: getattr(batch, name) for name in fields}

    def weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Count the located and the judged targets: 2."""
        return targets_of(tensors["located"], tensors["judged"])

    def loss(self, network: nn.Module, tensors: dict[str, Tensor], weight: Tensor) -> TaskLoss:
        """Compute the loss of all stages and of the score."""
        pairs = TrackPairs(**tensors)  # type: ignore[arg-type]  # without names
        prediction = _run_network(network, pairs)
        with full_precision(weight):
            loss = track_loss(prediction, pairs, weight, self.recipe.loss.corners)
        return TaskLoss(loss.total, tuple(getattr(loss, name) for name in self.metrics))


class ValidationPairs(ValidationScenes[TrackPairs]):
    """Validation pairs; a prediction is a box, in pixels of the search crop, and a score in [0, 1]: N x 5."""

    def predict(self, network: nn.Module, batch: TrackPairs) -> Tensor:
        """Predict boxes and scores, N x 5, on the CPU."""
        prediction = _run_network(network, batch)
        return torch.cat((prediction.boxes[-1], prediction.score_logits.sigmoid()[:, None]), dim=1).float().cpu()

    def compute_scores(self, pairs: Iterable[tuple[TrackPairs, Tensor]]) -> dict[str, float]:
        """Compute validation scores.

        Args:
            pairs: Batches and their predictions.

        Returns:
            `iou`: mean IoU of located targets; `success_50`: fraction of them with an IoU above 0.5; `score_accuracy`:
            accuracy of the score at a threshold of 0.5. NaN if no pair has a located, or a scored, target.
        """
        ious, correct = [torch.zeros(0)], [torch.zeros(0)]
        for batch, predicted in pairs:
            located, judged = batch.located.cpu(), batch.judged.cpu()
            ious.append(box_iou(predicted[:, :4], batch.boxes.cpu())[located])
            correct.append(((predicted[:, 4] > 0.5) == located)[judged].float())
        iou, accuracy = torch.cat(ious), torch.cat(correct)
        means = {"iou": iou.mean(), "success_50": (iou > 0.5).float().mean(), "score_accuracy": accuracy.mean()}
        return {name: float(mean) for name, mean in means.items()}

    @torch.no_grad()
    def examples(self, network: nn.Module) -> tuple[Example, ...]:
        """Return the first located target of each of the first batches, with its prediction."""
        examples = []
        for batch in self._render()[:EXAMPLES]:
            index = int(batch.located.float().argmax())
            fields = {field.name: getattr(batch, field.name)[index : index + 1] for field in dataclasses.fields(batch)}
            sample = to_device(TrackPairs(**fields), torch.device("cpu"))
            examples.append(Example(sample.names[0], sample, self.predict(network, batch)[index]))
        return tuple(examples)


def _run_network(network: nn.Module, pairs: TrackPairs) -> TrackingPrediction:
    prediction: TrackingPrediction = network(
        normalize_images(pairs.reference), pairs.reference_boxes, normalize_images(pairs.search)
    )
    return prediction
