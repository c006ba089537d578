"""Regions that need no network, to compare those of prototypes with."""

from collections.abc import Callable

import cv2
import numpy as np
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.warps import cell_of_pixel, grid_shape, pixel_grid

COMPACTNESS = 10.0
"""Units of Lab color that weigh as much as the distance between the centers of two regions: SLIC's usual choice."""
ROUNDS = 10


def slic_regions(image: Tensor, count: int) -> Tensor:
    """Superpixels by scikit-image's SLIC: 3 x H x W in [0, 1] to H x W, int64, of about `count` labels."""
    try:
        from skimage.segmentation import slic
    except ImportError:
        raise InputError(
            "SLIC is scikit-image's, which is not installed; install it by pip install 'protoformer[bench]'."
        ) from None
    pixels = image.permute(1, 2, 0).double().cpu().numpy()
    found = slic(pixels, n_segments=count, compactness=COMPACTNESS, max_num_iter=ROUNDS, start_label=0)
    return torch.from_numpy(np.asarray(found, dtype=np.int64))


def k_means_regions(image: Tensor, count: int) -> Tensor:
    """k-means over color and position, from a grid of cells on: 3 x H x W in [0, 1] to H x W, int64.

    What SLIC does, but for two things: a center reaches pixels anywhere, and its region may fall into pieces.
    """
    height, width = image.shape[1:]
    lab = cv2.cvtColor(np.ascontiguousarray(image.permute(1, 2, 0).float().cpu().numpy()), cv2.COLOR_RGB2Lab)
    places = pixel_grid(height, width).flatten(1).T.numpy() * (COMPACTNESS / np.sqrt(height * width / count))
    points = np.concatenate((lab.reshape(-1, 3), places), axis=1).astype(np.float32)
    start = cell_of_pixel((height, width), grid_shape(count)).to(torch.int32)[:, None].numpy().copy()
    ending = (cv2.TERM_CRITERIA_COUNT, ROUNDS, 0.0)
    _, labels, _ = cv2.kmeans(points, count, start, ending, 1, cv2.KMEANS_USE_INITIAL_LABELS)
    return torch.from_numpy(np.asarray(labels, dtype=np.int64)).view(height, width)


REGIONS: dict[str, Callable[[Tensor, int], Tensor]] = {"SLIC": slic_regions, "k-means": k_means_regions}
"""From an image, 3 x H x W in [0, 1], and how many regions there are to be, to their labels, H x W."""
