"""The state of every generator of random numbers that a program may draw from."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The states of torch, uint8."""
    states = {"random.torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def random_record() -> dict[str, Any]:
    """Python's and numpy's states, for json."""
    version, numbers, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    state = {**numpy["state"], "key": numpy["state"]["key"].tolist()}
    return {"python": [version, list(numbers), gauss], "numpy": {**numpy, "state": state}}


def restore_random(tensors: dict[str, Tensor], record: dict[str, Any], device: torch.device) -> None:
    """Take over what the two others gave. A GPU's state is passed over where there is none, and the other way round."""
    torch.set_rng_state(tensors["random.torch"])
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)
    version, numbers, gauss = record["python"]
    random.setstate((version, tuple(numbers), gauss))
    state = {**record["numpy"]["state"], "key": np.array(record["numpy"]["state"]["key"], dtype=np.uint32)}
    np.random.set_state({**record["numpy"], "state": state})
