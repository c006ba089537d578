"""The header of a safetensors file, read and checked before any memory is taken for what it describes.

A file begins with eight bytes, the length of a JSON text; the text maps the names of tensors to their type, shape and
place among the bytes that follow. Everything the text says is taken from whoever wrote the file, so every number in it
is compared with the length of the file.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, BinaryIO

from protoformer.files.short_values import shown

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
