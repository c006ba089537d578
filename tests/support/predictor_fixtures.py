import numpy as np
import pytest
import torch

import protoformer as pf
from protoformer.synthetic.layers import random_scene
from protoformer.synthetic.samples import FlowSample


@pytest.fixture(scope="session")
def tiny() -> pf.FlowPredictor:
    """The smallest network, with its random weights."""
    with pytest.warns(pf.UntrainedWarning):
        return pf.load("tiny", device="cpu")


@pytest.fixture(scope="session")
def tiny_depth() -> pf.DepthPredictor:
    """The smallest depth network with random weights that say something: untouched ones say nearly the same everywhere.

    From one pixel to the next and from frame to frame its depth varies by some per cent, as that of trained ones.
    """
    with pytest.warns(pf.UntrainedWarning):
        model = pf.load("tiny", device="cpu", task="depth")
    with torch.no_grad():
        for name, weights in model.network.named_parameters():
            if "change" in name and weights.std() < 0.01 and weights.dim() == 4:
                weights.mul_(10)
    return model


@pytest.fixture(scope="session")
def scene() -> FlowSample:
    """A pair of 61x37 images."""
    return random_scene((37, 61), seed=1, motion=4.0).render()


@pytest.fixture(scope="session")
def result(tiny: pf.FlowPredictor, scene: FlowSample) -> pf.FlowResult:
    """What the smallest network says of the pair."""
    return tiny.flow(scene.first, scene.second)


@pytest.fixture(scope="session")
def frames() -> list[np.ndarray]:
    """Five frames of 72x64 pixels: a pattern that moves by two pixels a frame."""
    random = np.random.default_rng(5)
    wide = np.kron(random.integers(0, 256, (16, 24, 3)), np.ones((4, 4, 1))).astype(np.uint8)
    return [np.ascontiguousarray(wide[:, 2 * number : 2 * number + 72]) for number in range(5)]


@pytest.fixture
def clip() -> list[torch.Tensor]:
    """Three images of 40x24 pixels."""
    return list(torch.rand(3, 3, 24, 40, generator=torch.Generator().manual_seed(3)))
