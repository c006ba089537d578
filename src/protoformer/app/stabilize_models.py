"""The stabilizing models that commands and the page offer, by regressor."""

from protoformer.errors import InputError
from protoformer.inference import StabilizeModel, load
from protoformer.inference.weights import packaged_weights
from protoformer.model.stabilize import REGRESSORS

MODEL = "stabilize"
"""The model that is loaded where nobody names one."""


def named_stabilizer(model: str = MODEL, regressor: str | None = None, device: str | None = None) -> StabilizeModel:
    """A model by its name or file. regressor: the one it must have; None takes the model's own.

    The package's model of another regressor than its usual one lies in a file of its own, or else is not trained.
    """
    if regressor is not None and regressor not in REGRESSORS:
        raise InputError(f"there is no regressor {regressor!r}; choose one of {', '.join(REGRESSORS)}.")
    if model == MODEL and regressor == "grid":
        stored = packaged_weights(f"{MODEL}-grid")
        if stored is None:
            return load("fast", device, task="stabilize", regressor="grid")
        return load(stored, device, task="stabilize")
    loaded = load(model, device, task="stabilize")
    own = loaded.network.config.regressor
    if regressor is not None and own != regressor:
        raise InputError(f"{model} has the regressor {own}, not {regressor}; ask for {own}, or give another model.")
    return loaded


def live_regressor(model: str) -> str | None:
    """What to ask a model for where frames are decided live: the package's for its grid, others for what they have."""
    return "grid" if model == MODEL else None
