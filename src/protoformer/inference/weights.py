"""Weights as safetensors files that say which network they belong to."""

import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from protoformer.errors import InputError
from protoformer.files import checked_input, write_atomically
from protoformer.model import ModelConfig
from protoformer.model.networks import NETWORKS, build_network

KEY = "protoformer"
"""The entry of the file's metadata that holds our json."""


@dataclass(frozen=True)
class StoredNetwork:
    """A network read from a file, the name of its task, and whether its weights were trained or are random."""

    network: nn.Module
    task: str
    trained: bool


def packaged_weights(task: str) -> Path | None:
    """The weights of a task that came with the package, or None if it brings none."""
    path = Path(str(resources.files("protoformer") / "weights" / f"{task}.safetensors"))
    return path if path.is_file() else None


def save_weights(
    network: nn.Module, path: str | os.PathLike[str], trained: bool, task: str = "flow", half: bool = False
) -> None:
    """Write a network's weights and configuration, whole or not at all; half: weights in float16, in half the bytes."""
    about = json.dumps({"task": task, "trained": trained, "config": _config(network).as_dict()})
    kind = torch.float16 if half else torch.float32
    tensors = {name: tensor.detach().cpu().to(kind).contiguous() for name, tensor in network.state_dict().items()}
    write_atomically(path, save(tensors, metadata={KEY: about}))


def load_weights(path: str | os.PathLike[str]) -> StoredNetwork:
    """Read what `save_weights` wrote; never runs code from the file."""
    data = checked_input(path).read_bytes()
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = json.loads(header["__metadata__"][KEY])
        config = ModelConfig.from_dict(about["config"])
        task, trained = str(about["task"]), about["trained"] is True
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} does not hold weights of this package ({error}); give a file that it wrote."
        ) from None
    if task not in NETWORKS:
        raise InputError(f"{path} holds weights for {task}, which this version does not do; update it.")
    with torch.device("meta"):  # shapes alone, so that a false description cannot claim memory
        network = build_network(task, config)
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError:
        raise InputError(
            f"{path} does not fit the network it describes; give a file that this version wrote."
        ) from None
    if any(buffer.is_meta for buffer in network.buffers()):  # what is computed, and not stored
        with torch.random.fork_rng(devices=[]):
            network = build_network(task, config)
        network.load_state_dict(tensors)
    return StoredNetwork(network.float(), task, trained)


def _config(network: nn.Module) -> ModelConfig:
    config = network.config
    assert isinstance(config, ModelConfig)
    return config
