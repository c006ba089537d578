"""The stabilizers that the package brings, on scenes they have not seen."""

import numpy as np
import pytest
import torch

from protoformer.app.stabilize_models import named_stabilizer
from protoformer.inference import StabilizeModel
from protoformer.inference.stabilize_render import looked_up
from protoformer.model.stabilize import REGRESSORS
from protoformer.show import picture
from protoformer.training import StabilizeTask, read_recipe
from protoformer.world import World, procedural_bank

UNSEEN = 11
"""A seed of scenes that nothing was trained on."""
SIZE = (120, 160)


@pytest.fixture(scope="module", params=REGRESSORS)
def model(request: pytest.FixtureRequest) -> StabilizeModel:
    """The package's model of each regressor."""
    return named_stabilizer(regressor=request.param, device="cpu")


@pytest.fixture(scope="module")
def steady_walk() -> list[np.ndarray]:
    """Frames of a walk without any shake."""
    world = World("handheld", UNSEEN, SIZE, shake=0.0, bank=procedural_bank(side=64, each=2))
    renderer = world.renderer([2])
    with torch.no_grad():
        views = (renderer.view(number / renderer.scenes.rate) for number in range(8))
        return [np.ascontiguousarray(picture(renderer.clean(view)[0])) for view in views]


@pytest.mark.usefixtures("few_textures")
def test_less_than_a_quarter_of_a_shake_is_left_by_one_that_sees_both_ways() -> None:
    recipe = read_recipe("stabilize-world").changed([f"data.seed={UNSEEN}", "run.validation_scenes=4"])
    field = named_stabilizer(regressor="field", device="cpu")
    scores = StabilizeTask(recipe).held_out(torch.device("cpu")).validate(field.network).scores
    assert scores["shake"] > 3 and scores["error"] < 0.25 * scores["shake"]


def test_a_steady_walk_is_hardly_touched(model: StabilizeModel, steady_walk: list[np.ndarray]) -> None:
    result = model.stabilize(steady_walk)
    assert result.trained and len(result.local) == len(steady_walk) and any(field.any() for field in result.local)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    for place in range(len(steady_walk)):
        across, down = looked_up(result.view(place), SIZE)
        assert np.hypot(across - x, down - y).mean() < 0.5
