"""Latent Synchronization (LS): update every feature with the prototype it is assigned to.

The input is the features of one image, HW x C, and its K prototypes from Cross-Attention Prototyping, K x C.

1. Assignment: each pixel is assigned to the prototype of largest cosine similarity (hard argmax, no gradient). With
   the spatial prior of `prototyping` it is that of largest cosine / temperature - |x - c|^2 / (2 w^2). Features and
   prototypes are compared as they are, without another projection: a prototype starts as a mean of these features, and
   each M-step adds a mean of their value projections, so that the learned projection decides how far it moves from it.
2. Masked cross-attention: queries are projected from the features, keys and values from the prototypes, and each pixel
   attends only to its assigned prototype. The softmax over a single prototype is identically 1, which would give
   queries and keys no gradient, so the attended value is multiplied, in each head, by
   sigmoid(alpha cos(q, k) + beta) with learned alpha and beta.
3. A feed-forward network with ratio 2 (linear, GELU, linear).

The encoder block adds the result to the features (residual). The equations of steps 1 and 2 in plain torch stand in
`kernels/reference.py` (`nearest_prototype`, `gated`). The modules of the rows "synchronization" of the paper's ablation
are in `ablations`.
"""

import torch
from torch import Tensor, nn

from protoformer.models import ablations
from protoformer.models.kernels import fused
from protoformer.models.kernels.reference import PriorCoefficients
from protoformer.models.layers import TokenNorm
from protoformer.models.prototyping import Prototypes, Prototyping
from protoformer.models.runtime import map_size, maps_to_tokens, tokens_to_maps


class LatentSynchronization(nn.Module):
    """Gated cross-attention from each pixel to its nearest prototype, followed by a feed-forward network.

    The gate sigmoid(alpha cos(q, k) + beta) replaces the softmax, which is identically 1 over one prototype and would
    leave queries and keys without gradient. The caller adds the residual.

    Args:
        channels: C, channels of features and prototypes; a multiple of `heads`.
        heads: Number of attention heads; alpha and beta are learned for each head.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.alpha = nn.Parameter(torch.ones(heads))
        self.beta = nn.Parameter(torch.zeros(heads))
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, features: Tensor, prototypes: Prototypes) -> ablations.SynchronizationOutput:
        """Compute the update of the features.

        Args:
            features: B x HW x C.
            prototypes: K prototypes of the same maps.

        Returns:
            The update to add to the features, B x HW x C, and the assignment, B x HW, int64.
        """
        prior = None if prototypes.prior is None else prototypes.prior.assignment_prior()
        return self.synchronize(features, prototypes.centers, prior)

    def synchronize(
        self, features: Tensor, centers: Tensor, prior: PriorCoefficients | None = None
    ) -> ablations.SynchronizationOutput:
        """Compute the update as `forward`, from the prototypes alone (B x K x C) and the prior of the assignment."""
        return fused.synchronize_and_feed(
            features,
            centers,
            self.query,
            self.key(centers),
            self.value(centers),
            self.alpha,
            self.beta,
            self.feed_forward,
            prior,
        )


class CrossSynchronization(nn.Module):
    """Synchronize the features of two images with the prototypes of each other.

    Each image is clustered by CAP, and its features get the update of LS from the prototypes of the other image
    (residual). Both images are treated alike, and positions play no part in the assignment, because things move between
    the images: a spatial prior acts in CAP only, and its temperature has no effect. The module works on features of an
    encoder, so that each frame of a video is still encoded once.

    Args:
        channels: C, channels of the features.
        heads: Number of attention heads.
        prototyping: Clusters each image.
    """

    def __init__(self, channels: int, heads: int, prototyping: Prototyping) -> None:
        super().__init__()
        self.norm = TokenNorm(channels)
        self.prototyping = prototyping
        self.synchronization = LatentSynchronization(channels, heads)

    def forward(self, maps1: Tensor, maps2: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new features of both images, B x C x H x W like `maps1` and `maps2`."""
        size, maps = map_size(maps1), torch.cat((maps1, maps2))
        tokens = self.norm(maps_to_tokens(maps))
        centers1, centers2 = self.prototyping(tokens, size).centers.chunk(2)
        update, _ = self.synchronization.synchronize(tokens, torch.cat((centers2, centers1)))
        new1, new2 = (maps + tokens_to_maps(update, size)).chunk(2)
        return new1, new2


SYNCHRONIZATIONS: dict[str, type[nn.Module]] = {"ls": LatentSynchronization, **ablations.SYNCHRONIZATIONS}
"""Synchronization modules by the name that the configuration field `synchronization` gives them; all but "ls" are
ablations."""
