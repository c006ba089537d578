"""Weights as safetensors files that say which network they belong to."""

import hashlib
import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from protoformer.errors import InputError
from protoformer.files import checked_input, write_atomically
from protoformer.model import ModelConfig
from protoformer.model.initialization import shapes_alone
from protoformer.model.networks import NETWORKS, build_network

KEY = "protoformer"
"""The entry of the file's metadata that holds our json."""
LENDER = "flow"
"""The task whose encoder others of the package may borrow."""
ENCODER = "features."
"""What the names of an encoder's tensors begin with."""


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
    network: nn.Module,
    path: str | os.PathLike[str],
    trained: bool,
    task: str = "flow",
    half: bool = False,
    borrow: bool = False,
) -> None:
    """Write a network's weights and configuration, whole or not at all.

    half: weights in float16, in half the bytes. borrow: leave out the encoder, which must be that of flow's weights in
    the package; the file can be read where those are.
    """
    about = {"task": task, "trained": trained, "config": _config(network).as_dict()}
    kind = torch.float16 if half else torch.float32
    tensors = {name: tensor.detach().cpu().to(kind).contiguous() for name, tensor in network.state_dict().items()}
    if borrow:
        lent = _lent(path)
        own = _encoder_of(tensors)
        if own.keys() != lent.keys() or not all(torch.equal(own[name].float(), lent[name].float()) for name in own):
            raise InputError(f"{path} cannot borrow the encoder of {LENDER}, since its own is another; save it whole.")
        tensors = {name: tensor for name, tensor in tensors.items() if name not in lent}
        about["borrowed"] = _digest(lent)
    write_atomically(path, save(tensors, metadata={KEY: json.dumps(about)}))


def load_weights(path: str | os.PathLike[str]) -> StoredNetwork:
    """Read what `save_weights` wrote; never runs code from the file."""
    data = checked_input(path).read_bytes()
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = json.loads(header["__metadata__"][KEY])
        config = ModelConfig.from_dict(about["config"])
        task, trained, borrowed = str(about["task"]), about["trained"] is True, about.get("borrowed")
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} does not hold weights of this package ({error}); give a file that it wrote."
        ) from None
    if task not in NETWORKS:
        raise InputError(f"{path} holds weights for {task}, which this version does not do; update it.")
    if borrowed is not None:
        lent = _lent(path)
        if borrowed != _digest(lent):
            raise InputError(
                f"{path} was made for other weights of {LENDER} than this package has; use the version that wrote it."
            )
        tensors |= lent
    with shapes_alone():  # so that a false description cannot claim memory
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


def _lent(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The encoder that others may borrow, by the names of its tensors. path: of the borrower, for the message."""
    lender = packaged_weights(LENDER)
    if lender is None:
        raise InputError(f"{path} borrows the encoder of {LENDER}, whose weights this package lacks; install them.")
    return _encoder_of(load(lender.read_bytes()))


def _encoder_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(ENCODER)}


def _digest(tensors: dict[str, Tensor]) -> str:
    """Which weights these are: the SHA-256 of their names and numbers."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].numpy().tobytes())
    return found.hexdigest()


def _config(network: nn.Module) -> ModelConfig:
    config = network.config
    assert isinstance(config, ModelConfig)
    return config
