"""Pretrained weights: safetensors files with the tasks and configuration of their network in the metadata.

Loading checks a file before it reads the tensors, cheapest check first: the SHA-256 of packaged weights; the header;
the configuration, whose values are bounded; names and shapes of the tensors against those of the network, which is
built on the meta device. Last, all values must be finite.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from protoformer.errors import InputError, shorten
from protoformer.io.files import open_input, short_repr, write_atomically
from protoformer.models.config import HEADS, SECTIONS, TASKS, ModelConfig
from protoformer.models.runtime import float32_by_default, meta_init

MAX_PARAMETERS = 2**28
"""Largest number of parameters of a network, 1 GiB of float32; the largest preset has less than a tenth."""
WEIGHTS_NAME = "model.safetensors"
"""File name of the weights in a folder of `save_pretrained`."""
MAX_HEADER_BYTES = 2**22
"""Largest header that is read; headers of this package have about 50 kB."""
DTYPE_BYTES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2},
    **{"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8},
}
"""Bytes of a value of each safetensors dtype."""
MAX_DIMENSIONS = 8
"""Largest number of dimensions of a tensor; networks use at most 5."""
METADATA = "__metadata__"
"""Key of the metadata in a safetensors header."""


@dataclass(frozen=True)
class StoredShape:
    """Header entry of one tensor.

    Attributes:
        dtype: A key of `DTYPE_BYTES`.
        shape: Shape of the tensor.
        begin: Offset of the first byte, from the end of the header.
        end: Offset after the last byte.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorHeader:
    """Header of a safetensors file.

    Attributes:
        tensors: Header entries by name.
        metadata: Metadata by name.
    """

    tensors: dict[str, StoredShape]
    metadata: dict[str, str]


def read_tensor_header(file: BinaryIO, size: int) -> TensorHeader:
    """Read the header at the beginning of a file of `size` bytes.

    Raises:
        ValueError: If the header is not valid or does not describe exactly `size` bytes; the message has the reason.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError("its header is longer than the file")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, and at most {MAX_HEADER_BYTES} are read")
    content = parse_json(file.read(length))
    if not isinstance(content, dict):
        raise ValueError("its header is not a JSON object")
    metadata = content.pop(METADATA, {})
    if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
        raise ValueError("its metadata has values that are not strings")
    tensors = {name: _parse_entry(name, entry) for name, entry in content.items()}
    _check_offsets(tensors, size - 8 - length)
    return TensorHeader(tensors, metadata)


def parse_json(data: bytes | str) -> Any:
    """Parse JSON strictly: duplicate keys, NaN, infinities and very deep nesting are errors.

    Raises:
        ValueError: If the data is not valid; the message has the reason.
    """
    try:
        return json.loads(data, object_pairs_hook=_build_unique_dict, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _build_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"its JSON has {short_repr(name)} twice")
        result[name] = value
    return result


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"its JSON has the number {text}")


def _parse_entry(name: str, entry: Any) -> StoredShape:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header does not describe {short_repr(name)} by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ValueError(f"{short_repr(name)} has the unknown dtype {short_repr(dtype)}")
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"{short_repr(name)} has a shape or offsets that are not whole numbers")
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{short_repr(name)} has {len(shape)} dimensions, and at most {MAX_DIMENSIONS} are read")
    begin, end = offsets
    if math.prod(shape) * DTYPE_BYTES[dtype] != end - begin:
        raise ValueError(
            f"{short_repr(name)} does not have the number of bytes that its shape {short_repr(shape)} needs"
        )
    return StoredShape(dtype, tuple(shape), begin, end)


def _are_sizes(values: Any) -> bool:
    """Return whether values are a list of integers from 0 to 2^63 - 1."""
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 for value in values
    )


def _check_offsets(tensors: dict[str, StoredShape], size: int) -> None:
    """Check that the tensors fill the `size` bytes after the header without gaps and overlaps."""
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            raise ValueError(f"{short_repr(name)} does not begin where the tensor before it ends")
        position = tensor.end
    if position != size:
        raise ValueError(f"its tensors take {position} bytes, and the file has {size} for them")


KEY = "protoformer"
"""Key of the metadata entry with the tasks and configuration, as JSON."""
SHARED_TASK = "flow"
"""Task whose packaged encoder the weights of other tasks may share."""
ENCODER_PREFIX = "encoder."
"""Prefix of the names of the encoder's tensors."""
DTYPES = ("F16", "BF16", "F32")
"""Allowed dtypes of weights in a file; in memory they are float32."""
DIGESTS = "SHA256SUMS"
"""File with the SHA-256 of the packaged weights, written by `sha256sum *.safetensors > SHA256SUMS`."""


def packaged_weights(task: str) -> Path | None:
    """Return the path of the packaged weights of a task, or None if there are none."""
    path = _package_folder() / f"{task}.safetensors"
    return path if path.is_file() else None


def _package_folder() -> Path:
    return Path(str(resources.files("protoformer") / "weights"))


class PretrainedNetwork(nn.Module, PyTorchModelHubMixin):
    """Base class of `ProtoFormer`: building from a configuration, and weights in files, in the package and on the Hub.

    Attributes:
        config: Configuration of the encoder and of the heads.
        tasks: Names of its tasks.
        trained: Whether the weights were trained.
        encoder: Encoder of the tasks that have none of their own.
        task_encoders: Encoders of the tasks that were trained separately.
    """

    config: ModelConfig
    tasks: tuple[str, ...]
    trained: bool
    encoder: Any
    task_encoders: nn.ModuleDict

    @classmethod
    def build(cls, config: ModelConfig, tasks: tuple[str, ...], separate_encoders: tuple[str, ...] = ()) -> Self:
        """Build a network with random weights; see `protoformer.build_network`."""
        count = parameter_count(cls, config, tasks, separate_encoders)  # type: ignore[arg-type]
        if count > MAX_PARAMETERS:
            raise InputError(
                f"the network of {', '.join(tasks)} would have {count} parameters, and at most {MAX_PARAMETERS} are "
                "built; choose smaller widths or fewer layers."
            )
        with float32_by_default():
            return cls(config, tasks, separate_encoders)

    @classmethod
    def load_weights(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file written by `save_weights`; the weights of the network are float32.

        No code from the file is executed, and no more memory is used than its tensors need.

        Raises:
            InputError: If the file does not hold weights, is damaged, describes a network that this version cannot
                build, does not have the tensors of that network, or has values that are not finite.
        """
        try:
            with open_input(path) as file:
                size = os.fstat(file.fileno()).st_size
                _check_digest(path, file)
                header = read_tensor_header(file, size)
                description = _parse_description(path, header)
                shared = {} if description.borrowed is None else _load_shared_encoder(path)
                _check_shared_encoder(path, description.borrowed, shared)
                network = _build_checked(cls, path, header.tensors, description, shared)
                file.seek(0)
                tensors = load(file.read())
        except (SafetensorError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise _invalid_file_error(path, error) from None
        _check_finite(path, tensors)
        return _fill_network(network, description, tensors | shared)

    def save_weights(
        self, path: str | os.PathLike[str], trained: bool, half: bool = False, borrow: bool = False
    ) -> None:
        """Write the weights and configuration to a file atomically.

        Args:
            path: File to write.
            trained: Whether the weights were trained.
            half: Store the weights in float16.
            borrow: Leave out the encoder, which must equal that of the packaged flow weights; loading then needs these.

        Raises:
            InputError: If `borrow` is set and the encoder is not that of the packaged flow weights.
        """
        description: dict[str, Any] = {"tasks": self.tasks, "trained": trained, "config": self.config.as_dict()}
        if self.task_encoders:
            description["separate_encoders"] = list(self.task_encoders)
        dtype = torch.float16 if half else torch.float32
        tensors = {name: tensor.detach().cpu().to(dtype).contiguous() for name, tensor in self.state_dict().items()}
        if borrow:
            shared = _load_shared_encoder(path)
            own = _select_encoder(tensors)
            if own.keys() != shared.keys() or not all(
                torch.equal(own[name].float(), shared[name].float()) for name in own
            ):
                raise InputError(
                    f"{path} cannot borrow the encoder of {SHARED_TASK}, since its own is another; save it whole."
                )
            tensors = {name: tensor for name, tensor in tensors.items() if name not in shared}
            description["borrowed"] = _compute_digest(shared)
        write_atomically(path, save(tensors, metadata={KEY: json.dumps(description)}))

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Self:  # type: ignore[override]
        """Load trained weights.

        The packaged weights "fast" were trained without the spatial prior that the preset "fast" has, so that
        `preset("fast")` does not describe them. To build their architecture again, use `config` of the loaded network:
        `ProtoFormer(net.config, net.tasks, net.task_encoders)`.

        Args:
            name: "fast", the weights in the package, of all tasks; a folder written by `save_pretrained`; or a
                repository of the Hugging Face Hub.
            **options: Arguments of huggingface_hub, such as `revision` and `token`.

        Raises:
            InputError: If there are no such weights or they are damaged.
        """
        if os.fspath(name) == "fast":
            return load_packaged(cls)
        # The configuration is in the weights file, so the mixin need not build it from config.json.
        return super().from_pretrained(Path(name) if isinstance(name, os.PathLike) else name, config=None, **options)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:  # called by the mixin
        folder = Path(model_id)
        names = ("revision", "cache_dir", "force_download", "local_files_only", "token")
        download = {name: options[name] for name in names if name in options}
        path = folder / WEIGHTS_NAME if folder.is_dir() else Path(hf_hub_download(model_id, WEIGHTS_NAME, **download))
        return cls.load_weights(path)

    def _save_pretrained(self, save_directory: Path) -> None:  # called by the mixin's save_pretrained and push_to_hub
        self.save_weights(save_directory / WEIGHTS_NAME, self.trained)
        text = json.dumps(self.config.as_dict(), indent=2) + "\n"
        write_atomically(save_directory / "config.json", text.encode())


Network = TypeVar("Network", bound=PretrainedNetwork)


@lru_cache(maxsize=32)
def parameter_count(
    network_class: type[PretrainedNetwork],
    config: ModelConfig,
    tasks: tuple[str, ...],
    separate_encoders: tuple[str, ...] = (),
) -> int:
    """Return the number of parameters of a network, counted on the meta device."""
    with meta_init():
        network = network_class(config, tasks, separate_encoders)
        return sum(parameter.numel() for parameter in network.parameters())


@dataclass(frozen=True)
class _Description:
    """Description of a network in the metadata of a file.

    Attributes:
        tasks: Its tasks, names of `TASKS`.
        trained: Whether the weights were trained.
        config: Configuration of the network.
        separate_encoders: Tasks with an encoder of their own.
        borrowed: Digest of the shared encoder, or None if the file has its own encoder.
    """

    tasks: tuple[str, ...]
    trained: bool
    config: ModelConfig
    separate_encoders: tuple[str, ...]
    borrowed: str | None

    def build(self, network_class: type[Network]) -> Network:
        """Build the network with random weights."""
        return network_class.build(self.config, self.tasks, self.separate_encoders)


def _invalid_file_error(path: str | os.PathLike[str], error: Exception) -> InputError:
    reason = shorten(error, 300).removesuffix(".")
    return InputError(f"{path} does not hold weights of this package ({reason}); give a file that it wrote.")


def _check_digest(path: str | os.PathLike[str], file: BinaryIO) -> None:
    """Check the SHA-256 of a file in the folder of the packaged weights; other files are not checked."""
    folder = Path(path).resolve().parent
    if folder != _package_folder().resolve():
        return
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has readinto
    file.seek(0)
    if packaged_digests().get(Path(path).name) != digest:
        raise InputError(
            f"{path} is not the file that this package was released with, by its SHA-256; install the package again, "
            "or keep weights of your own in another folder."
        )


def packaged_digests() -> dict[str, str]:
    """Return the SHA-256, in hexadecimal digits, of every packaged file of weights, by file name.

    Raises:
        InputError: If the file with the digests cannot be read.
    """
    try:
        lines = (_package_folder() / DIGESTS).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        raise InputError(
            f"{_package_folder() / DIGESTS}, which holds the digests of the package's weights, cannot be read; install "
            "the package again."
        ) from None
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _parse_description(path: str | os.PathLike[str], header: TensorHeader) -> _Description:
    if KEY not in header.metadata:
        raise ValueError(f"its metadata has no entry {KEY!r}")
    description = parse_json(header.metadata[KEY])
    if not isinstance(description, dict) or not {"tasks", "trained", "config"} <= description.keys():
        raise ValueError("its metadata does not name tasks and a configuration")
    tasks, separate = description["tasks"], description.get("separate_encoders", [])
    borrowed = description.get("borrowed")
    if not _are_names(tasks) or not tasks or not _are_names(separate) or not isinstance(borrowed, str | None):
        raise ValueError("its metadata has tasks that are not names, or a digest that is not a string")
    for task in (*tasks, *separate):
        if task not in TASKS:
            raise InputError(f"{path} holds weights for {shorten(task)}, which this version does not do; update it.")
    try:
        config = ModelConfig.from_dict(description["config"])
    except InputError as error:
        raise _invalid_file_error(path, error) from None
    return _Description(tuple(tasks), description["trained"] is True, config, tuple(separate), borrowed)


def _are_names(values: Any) -> bool:
    """Return whether values are a list of different strings, at most one for each task."""
    are_strings = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return are_strings and len(values) <= len(TASKS) and len(set(values)) == len(values)


def _check_shared_encoder(path: str | os.PathLike[str], digest: str | None, shared: dict[str, Tensor]) -> None:
    if digest is not None and digest != _compute_digest(shared):
        raise InputError(
            f"{path} was made for other weights of {SHARED_TASK} than this package has; use the version that wrote it."
        )


def _build_checked(
    network_class: type[Network],
    path: str | os.PathLike[str],
    stored: Mapping[str, StoredShape],
    description: _Description,
    shared: Mapping[str, Tensor],
) -> Network:
    """Build the described network on the meta device and check the tensors' names, shapes and dtypes against it."""
    with meta_init():
        try:
            network = description.build(network_class)
        except InputError as error:  # the network would be too large
            raise _invalid_file_error(path, error) from None
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in shared.items()}
    if shapes != expected:
        name = min(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
        raise InputError(
            f"{path} does not fit the network it describes (its tensor {short_repr(name)} has the shape "
            f"{short_repr(shapes.get(name))}, and the network {short_repr(expected.get(name))}); give a file that this "
            "version wrote."
        )
    for name, tensor in stored.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{short_repr(name)} has the dtype {tensor.dtype}, and weights have {', '.join(DTYPES)}")
    return network


def _check_finite(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        # The sum in float64 is finite if all terms are, and takes an eighth of the time of an elementwise check.
        if not bool(tensor.sum(dtype=torch.float64).isfinite()):
            raise InputError(
                f"{path} holds numbers that are not finite, in {name}: its training failed or the file is damaged; "
                "give other weights."
            )


def _fill_network(network: Network, description: _Description, tensors: Mapping[str, Tensor]) -> Network:
    """Load weights into a network on the meta device; the result is float32."""
    network.load_state_dict(tensors, assign=True)
    if any(buffer.is_meta for buffer in network.buffers()):  # buffers that are computed and not stored
        with torch.random.fork_rng(devices=[]):
            network = description.build(type(network))
        network.load_state_dict(tensors)
    network.trained = description.trained
    return network.float()


def _load_shared_encoder(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Load the tensors of the shared encoder by name. path: File that needs them, for the error message."""
    shared_path = packaged_weights(SHARED_TASK)
    if shared_path is None:
        raise InputError(
            f"{path} borrows the encoder of {SHARED_TASK}, whose weights this package lacks; install them."
        )
    try:
        with open_input(shared_path) as file:
            _check_digest(shared_path, file)
            return _select_encoder(load(file.read()))
    except SafetensorError as error:
        raise _invalid_file_error(shared_path, error) from None


def _select_encoder(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(ENCODER_PREFIX)}


def _compute_digest(tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of the names and values of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def load_packaged(network_class: type[Network]) -> Network:
    """Load the packaged weights of all tasks into one network.

    The weights come from separate trainings: tasks whose encoder is not that of flow get an encoder of their own.

    Raises:
        InputError: If packaged weights are missing or damaged.
    """
    networks = {}
    for task in TASKS:
        path = packaged_weights(task)
        if path is None:
            raise InputError(f"the package has no weights of {task}; install it again.")
        networks[task] = network_class.load_weights(path)
    return merge_networks(networks, network_class)


def merge_networks(networks: Mapping[str, Network], network_class: type[Network]) -> Network:
    """Merge networks of one task each, which keep their modules, into one network.

    Args:
        networks: A network for each task; they share the encoder section of their configurations.
        network_class: Class of the result.

    Raises:
        InputError: If the encoders have different configurations.
    """
    first = next(iter(networks.values()))
    if any(network.config.encoder != first.config.encoder for network in networks.values()):
        raise InputError("networks with encoders of different configurations cannot be merged; load them one by one.")
    separate = [task for task, network in networks.items() if not _same_weights(network.encoder, first.encoder)]
    sections = {SECTIONS[task]: getattr(network.config, SECTIONS[task]) for task, network in networks.items()}
    with meta_init():
        merged = network_class(replace(first.config, **sections), networks, separate)
    merged.encoder = first.encoder
    for task, network in networks.items():
        setattr(merged, HEADS[task], getattr(network, HEADS[task]))
        if task in separate:
            merged.task_encoders[task] = network.encoder
    merged.trained = all(network.trained for network in networks.values())
    return merged


def _same_weights(first: nn.Module, second: nn.Module) -> bool:
    others = second.state_dict()
    return first is second or all(torch.equal(weight, others[name]) for name, weight in first.state_dict().items())
