"""Segmentation into regions without a network, as baselines for the regions of prototypes."""

from collections.abc import Callable

import cv2
import numpy as np
import torch
from torch import Tensor

from protoformer.errors import InputError
from protoformer.geometry.warps import cell_of_pixel, grid_shape, pixel_grid

COMPACTNESS = 10.0
"""Lab color distance equivalent to the distance between the centers of two regions, SLIC's usual value."""
NUM_ITERATIONS = 10


def slic_regions(image: Tensor, count: int) -> Tensor:
    """Compute about `count` superpixels by scikit-image's SLIC: 3 x H x W in [0, 1] to H x W, int64."""
    try:
        from skimage.segmentation import slic
    except ImportError:
        raise InputError(
            "SLIC needs scikit-image, which is not installed; run: pip install 'protoformer[bench]'."
        ) from None
    pixels = image.permute(1, 2, 0).double().cpu().numpy()
    labels = slic(pixels, n_segments=count, compactness=COMPACTNESS, max_num_iter=NUM_ITERATIONS, start_label=0)
    return torch.from_numpy(np.asarray(labels, dtype=np.int64))


def k_means_regions(image: Tensor, count: int) -> Tensor:
    """Cluster color and position by k-means, initialized with a grid: 3 x H x W in [0, 1] to H x W, int64.

    Unlike in SLIC, pixels are assigned to centers at any distance, and regions may be disconnected.
    """
    height, width = image.shape[1:]
    lab = cv2.cvtColor(np.ascontiguousarray(image.permute(1, 2, 0).float().cpu().numpy()), cv2.COLOR_RGB2Lab)
    positions = pixel_grid(height, width).flatten(1).T.numpy() * (COMPACTNESS / np.sqrt(height * width / count))
    points = np.concatenate((lab.reshape(-1, 3), positions), axis=1).astype(np.float32)
    initial_labels = cell_of_pixel((height, width), grid_shape(count)).to(torch.int32)[:, None].numpy().copy()
    criteria = (cv2.TERM_CRITERIA_COUNT, NUM_ITERATIONS, 0.0)
    _, labels, _ = cv2.kmeans(points, count, initial_labels, criteria, 1, cv2.KMEANS_USE_INITIAL_LABELS)
    return torch.from_numpy(np.asarray(labels, dtype=np.int64)).view(height, width)


BASELINES: dict[str, Callable[[Tensor, int], Tensor]] = {"SLIC": slic_regions, "k-means": k_means_regions}
"""Functions from an image, 3 x H x W in [0, 1], and the number of regions to labels, H x W."""
