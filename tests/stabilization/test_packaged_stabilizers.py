"""The packaged stabilization networks on unseen scenes."""

import numpy as np
import pytest
import torch

from protoformer.loading import load_stabilizer
from protoformer.models.config import REGRESSORS
from protoformer.stabilization.predictor import StabilizationPredictor
from protoformer.stabilization.rendering import sample_field
from protoformer.stabilization.training import StabilizeTask
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.texture_bank import procedural_bank
from protoformer.training.recipe import read_recipe
from protoformer.viz.colormaps import to_uint8

UNSEEN = 11
"""A seed of scenes that nothing was trained on."""
SIZE = (120, 160)


@pytest.fixture(scope="module", params=REGRESSORS)
def model(request: pytest.FixtureRequest) -> StabilizationPredictor:
    """The package's model of each regressor."""
    return load_stabilizer(regressor=request.param, device="cpu")


@pytest.fixture(scope="module")
def steady_walk() -> list[np.ndarray]:
    """Frames of a walk without any shake."""
    world = SyntheticScenes("handheld", UNSEEN, SIZE, shake=0.0, bank=procedural_bank(side=64, each=2))
    renderer = world.renderer([2])
    with torch.no_grad():
        views = (renderer.view(number / renderer.scenes.fps) for number in range(8))
        return [np.ascontiguousarray(to_uint8(renderer.clean(view)[0])) for view in views]


@pytest.mark.usefixtures("few_textures")
def test_less_than_a_quarter_of_a_shake_is_left_by_one_that_sees_both_ways() -> None:
    recipe = read_recipe("stabilize-synthetic").changed([f"data.seed={UNSEEN}", "run.validation_scenes=4"])
    field = load_stabilizer(regressor="field", device="cpu")
    scores = StabilizeTask(recipe).validation_set(torch.device("cpu")).validate(field.network).scores
    assert scores["shake"] > 3 and scores["error"] < 0.25 * scores["shake"]


def test_a_steady_walk_is_hardly_touched(model: StabilizationPredictor, steady_walk: list[np.ndarray]) -> None:
    result = model.stabilize(steady_walk)
    assert result.trained and len(result.local) == len(steady_walk) and any(field.any() for field in result.local)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    for place in range(len(steady_walk)):
        across, down = sample_field(result.view(place), SIZE)
        assert np.hypot(across - x, down - y).mean() < 0.5
