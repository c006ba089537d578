"""Weights as safetensors files that say which network they belong to.

A file is checked in the order of what each check costs: for weights of the package their SHA-256; the header; the
configuration in it, whose numbers are bounded; the names and shapes of the tensors against those of the network that it
describes, of which nothing but shapes is built; and only then are numbers read, which must be finite.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from protoformer.errors import InputError, shortened
from protoformer.io.files import open_input, shown, write_atomically
from protoformer.models.config import ModelConfig
from protoformer.models.layers import meta_init
from protoformer.models.networks import NETWORKS, build_network

MAX_HEADER_BYTES = 2**22
"""The longest header that is read; those of this package have some 50 kB."""
DTYPE_BYTES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2},
    **{"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8},
}
"""Bytes of a number of each type."""
MAX_DIMENSIONS = 8
"""Of a tensor; a network has 5 at most."""
METADATA = "__metadata__"


@dataclass(frozen=True)
class StoredShape:
    """A tensor of a file.

    dtype: a key of `DTYPE_BYTES`. begin, end: where its bytes lie, counted from the end of the header.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorHeader:
    """What a file says that it holds: its tensors and its metadata, both by name."""

    tensors: dict[str, StoredShape]
    metadata: dict[str, str]


def read_tensor_header(file: BinaryIO, size: int) -> TensorHeader:
    """Read the header at the beginning of a file of `size` bytes.

    Raises:
        ValueError: With the reason, where it is not a header, or does not describe exactly this many bytes.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError("its header is longer than the file")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, and at most {MAX_HEADER_BYTES} are read")
    content = parsed_json(file.read(length))
    if not isinstance(content, dict):
        raise ValueError("its header is not a JSON object")
    metadata = content.pop(METADATA, {})
    if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
        raise ValueError("its metadata is not made of texts")
    tensors = {name: _tensor(name, entry) for name, entry in content.items()}
    _check_places(tensors, size - 8 - length)
    return TensorHeader(tensors, metadata)


def parsed_json(data: bytes | str) -> Any:
    """Parse JSON, refusing what Python's parser lets pass: a key given twice, NaN, and nesting without end.

    Raises:
        ValueError: With the reason, where it is not such JSON.
    """
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"its JSON has {shown(name)} twice")
        found[name] = value
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"its JSON has the number {text}")


def _tensor(name: str, entry: Any) -> StoredShape:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header does not describe {shown(name)} by a type, a shape and a place")
    dtype, shape, places = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ValueError(f"{shown(name)} has numbers of the unknown type {shown(dtype)}")
    if not (_whole_numbers(shape) and _whole_numbers(places) and len(places) == 2):
        raise ValueError(f"{shown(name)} has a shape or a place that is not made of whole numbers")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{shown(name)} has {len(shape)} dimensions, and at most {MAX_DIMENSIONS} are read")
    begin, end = places
    if math.prod(shape) * DTYPE_BYTES[dtype] != end - begin:
        raise ValueError(f"{shown(name)} has other bytes than its shape {shown(shape)} needs")
    return StoredShape(dtype, tuple(shape), begin, end)


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 for value in values
    )


def _check_places(tensors: dict[str, StoredShape], size: int) -> None:
    """Tensors follow one another without gaps and overlaps, from the end of the header to that of the file."""
    reached = 0
    for name, tensor in sorted(tensors.items(), key=lambda each: (each[1].begin, each[1].end)):
        if tensor.begin != reached:
            raise ValueError(f"{shown(name)} does not begin where the tensor before it ends")
        reached = tensor.end
    if reached != size:
        raise ValueError(f"its tensors take {reached} bytes, and the file has {size} for them")


KEY = "protoformer"
"""The entry of the file's metadata that holds our json."""
LENDER = "flow"
"""The task whose encoder others of the package may borrow."""
ENCODER = "features."
"""What the names of an encoder's tensors begin with."""
DTYPES = ("F16", "BF16", "F32")
"""Types that weights may have in a file; they are float32 in memory."""
DIGESTS = "SHA256SUMS"
"""The file beside the package's weights that holds their SHA-256; `sha256sum *.safetensors > SHA256SUMS` makes it."""


@dataclass(frozen=True)
class StoredNetwork:
    """A network read from a file, the name of its task, and whether its weights were trained or are random."""

    network: nn.Module
    task: str
    trained: bool


def packaged_weights(task: str) -> Path | None:
    """The weights of a task that came with the package, or None if it brings none."""
    path = _package_folder() / f"{task}.safetensors"
    return path if path.is_file() else None


def _package_folder() -> Path:
    return Path(str(resources.files("protoformer") / "weights"))


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


@dataclass(frozen=True)
class _Description:
    """What a file says of its weights. borrowed: the digest of the encoder that it leaves out, if it does."""

    task: str
    trained: bool
    config: ModelConfig
    borrowed: str | None


def load_weights(path: str | os.PathLike[str]) -> StoredNetwork:
    """Read what `save_weights` wrote; never runs code from the file, nor takes more memory than its tensors need.

    Raises:
        InputError: If the file is not one of weights, is damaged, describes a network that this version does not
            build, holds other tensors than that network has, or numbers that are not finite.
    """
    try:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
            _check_digest(path, file)
            header = read_tensor_header(file, size)
            about = _described(path, header)
            lent = {} if about.borrowed is None else _lent(path)
            _check_borrowed(path, about.borrowed, lent)
            network = _fitting(path, header.tensors, about, lent)
            file.seek(0)
            tensors = load(file.read())
    except (SafetensorError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _foreign(path, error) from None
    _check_finite(path, tensors)
    network = _filled(network, about, tensors | lent)
    return StoredNetwork(network, about.task, about.trained)


def _foreign(path: str | os.PathLike[str], error: Exception) -> InputError:
    reason = shortened(error, 300).removesuffix(".")
    return InputError(f"{path} does not hold weights of this package ({reason}); give a file that it wrote.")


def _check_digest(path: str | os.PathLike[str], file: BinaryIO) -> None:
    """Refuse weights inside the package that are not those it was released with; others have no known digest."""
    folder = Path(path).resolve().parent
    if folder != _package_folder().resolve():
        return
    found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto
    file.seek(0)
    if packaged_digests().get(Path(path).name) != found:
        raise InputError(
            f"{path} is not the file that this package was released with, by its SHA-256; install the package again, "
            "or keep weights of your own in another folder."
        )


def packaged_digests() -> dict[str, str]:
    """The SHA-256 of every file of weights in the package, in hexadecimal digits, by the name of the file."""
    try:
        lines = (_package_folder() / DIGESTS).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        raise InputError(
            f"{_package_folder() / DIGESTS}, which holds the digests of the package's weights, cannot be read; install "
            "the package again."
        ) from None
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _described(path: str | os.PathLike[str], header: TensorHeader) -> _Description:
    if KEY not in header.metadata:
        raise ValueError(f"its metadata has no entry {KEY!r}")
    about = parsed_json(header.metadata[KEY])
    if not isinstance(about, dict) or not {"task", "trained", "config"} <= about.keys():
        raise ValueError("its metadata does not name a task and a configuration")
    task, borrowed = about["task"], about.get("borrowed")
    if not isinstance(task, str) or not isinstance(borrowed, str | None):
        raise ValueError("its metadata has a task or a lender that is not a text")
    if task not in NETWORKS:
        raise InputError(f"{path} holds weights for {shortened(task)}, which this version does not do; update it.")
    try:
        config = ModelConfig.from_dict(about["config"])
    except InputError as error:
        raise _foreign(path, error) from None
    return _Description(task, about["trained"] is True, config, borrowed)


def _check_borrowed(path: str | os.PathLike[str], borrowed: str | None, lent: dict[str, Tensor]) -> None:
    if borrowed is not None and borrowed != _digest(lent):
        raise InputError(
            f"{path} was made for other weights of {LENDER} than this package has; use the version that wrote it."
        )


def _fitting(
    path: str | os.PathLike[str], stored: Mapping[str, StoredShape], about: _Description, lent: Mapping[str, Tensor]
) -> nn.Module:
    """Return the network that is described, without numbers, if these are its tensors by name, shape and type."""
    with meta_init():
        try:
            network = build_network(about.task, about.config)
        except InputError as error:  # it would be too large
            raise _foreign(path, error) from None
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tensor.shape for name, tensor in stored.items()}
    found |= {name: tuple(tensor.shape) for name, tensor in lent.items()}
    if found != wanted:
        name = min(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise InputError(
            f"{path} does not fit the network it describes (its tensor {shown(name)} has the shape "
            f"{shown(found.get(name))}, and the network {shown(wanted.get(name))}); give a file that this version "
            "wrote."
        )
    for name, tensor in stored.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{shown(name)} has numbers of type {tensor.dtype}, and weights have {', '.join(DTYPES)}")
    return network


def _check_finite(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        # A sum in float64 is finite if all its terms are, and takes an eighth of the time of looking at each of them.
        if not bool(tensor.sum(dtype=torch.float64).isfinite()):
            raise InputError(
                f"{path} holds numbers that are not finite, in {name}: its training failed or the file is damaged; "
                "give other weights."
            )


def _filled(network: nn.Module, about: _Description, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a network with these weights, as float32. network: as described, without numbers."""
    network.load_state_dict(tensors, assign=True)
    if any(buffer.is_meta for buffer in network.buffers()):  # what is computed, and not stored
        with torch.random.fork_rng(devices=[]):
            network = build_network(about.task, about.config)
        network.load_state_dict(tensors)
    return network.float()


def _lent(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The encoder that others may borrow, by the names of its tensors. path: of the borrower, for the message."""
    lender = packaged_weights(LENDER)
    if lender is None:
        raise InputError(f"{path} borrows the encoder of {LENDER}, whose weights this package lacks; install them.")
    try:
        with open_input(lender) as file:
            _check_digest(lender, file)
            return _encoder_of(load(file.read()))
    except SafetensorError as error:
        raise _foreign(lender, error) from None


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
