"""Mutations of JSON, YAML and safetensors headers that leave the syntax intact and change what it says."""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

_VALUES: tuple[Callable[[Random], Any], ...] = (
    lambda rng: None,
    lambda rng: rng.choice((True, False)),
    lambda rng: rng.choice((0, 1, -1, 2**31, -(2**31), 2**63, 2**64, 10**30, -(10**30))),
    lambda rng: 10 ** rng.choice((100, 400, 4000)),
    lambda rng: rng.choice((0.5, -0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf"))),
    lambda rng: rng.choice(
        ("", " ", "null", "1", "true", "../../etc/passwd", "/", "\0", "a\nb", "\u202e", "\ud7ff", "~")
    ),
    lambda rng: "x" * rng.choice((100, 5000, 200_000)),
    lambda rng: [],
    lambda rng: {},
    lambda rng: [0] * rng.choice((1, 2, 3, 4, 1000)),
    lambda rng: nested(rng.choice((3, 50, 300)), rng.choice((list, dict))),
    lambda rng: {str(key): key for key in range(rng.choice((1, 5, 200)))},
)


def nested(depth: int, kind: type) -> Any:
    """A value inside so many lists or mappings."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def changed_tree(tree: Any, rng: Random) -> Any:
    """A copy with one value, key or element changed somewhere."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        tree = dict(tree)
        key = rng.choice(list(tree))
        match rng.randrange(8):
            case 0:
                tree.pop(key)
            case 1:
                tree[rng.choice((f"{key}x", "", "a" * 5000, "__class__", "\0"))] = tree.pop(key)
            case 2:
                tree[rng.choice(("extra", f"{key}_"))] = rng.choice(_VALUES)(rng)
            case _:
                tree[key] = changed_tree(tree[key], rng)
        return tree
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        tree = list(tree)
        place = rng.randrange(len(tree))
        match rng.randrange(6):
            case 0:
                tree.pop(place)
            case 1:
                tree.extend(tree[place : place + 1] * rng.choice((1, 10, 1000)))
            case _:
                tree[place] = changed_tree(tree[place], rng)
        return tree
    if isinstance(tree, str) and tree.startswith("{") and rng.random() < 0.7:
        return json_values(tree.encode(), rng).decode(errors="replace")
    return rng.choice(_VALUES)(rng)


def json_values(data: bytes, rng: Random) -> bytes:
    """Change a value, key or element of a JSON text."""
    try:
        tree = json.loads(data)
        return json.dumps(changed_tree(tree, rng)).encode()
    except (ValueError, RecursionError):
        return data


def yaml_values(data: bytes, rng: Random) -> bytes:
    """Change a value, key or element of a YAML text."""
    try:
        tree = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        return yaml.dump(changed_tree(tree, rng), Dumper=dumper, default_flow_style=rng.random() < 0.3).encode()
    except (ValueError, yaml.YAMLError, RecursionError, AttributeError, TypeError):
        return data


def yaml_features(data: bytes, rng: Random) -> bytes:
    """Add what YAML has beyond plain values: anchors, aliases of aliases, tags, merges, directives, documents."""
    width, depth = rng.choice(((2, 3), (9, 9), (2, 30)))
    bomb = "a0: &a0 [1]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]\n" for level in range(1, depth)
    )
    addition = rng.choice(
        (
            bomb,
            "loop: &loop [*loop]\n",
            "run: &base {steps: 1}\nmodel: {<<: *base}\n",
            "<<: {a: 1}\n",
            "run: !!python/object/apply:os.system [exit]\n",
            "run: !!binary aGVsbG8=\n",
            "run: !!set {a, b}\n",
            "? [a, b]\n: c\n",
            "? {a: b}\n: c\n",
            "run: 2024-01-01\n",
            "run: 99999-99-99\n",
            "run: 2024-13-45 99:99:99\n",
            "run: 0o777777777777777777777777\n",
            "run: 1:99:99:99:99.5\n",
            "run: |\n  text\n",
            "%YAML 9.9\n---\n",
            "---\n---\n",
            "...\n",
            "\t- a\n",
            "a: [" + "[" * 2000 + "\n",
            "é: \u0085\n",
        )
    ).encode()
    return addition + data if rng.random() < 0.5 else data + b"\n" + addition


def safetensors_header(data: bytes, rng: Random) -> bytes:
    """Change the header of a safetensors file: a value, its length, or the JSON of the package in its metadata."""
    if len(data) < 8:
        return data
    (length,) = struct.unpack_from("<Q", data)
    header, body = data[8 : 8 + length], data[8 + length :]
    match rng.randrange(6):
        case 0:
            claimed = rng.choice((0, 1, 2, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
            return struct.pack("<Q", claimed % 2**64) + data[8:]
        case 1 | 2:
            header = _changed_description(header, rng)
        case 3:
            header = header + b" " * rng.choice((1, 8, 10**5))
        case _:
            header = json_values(header, rng)
    return struct.pack("<Q", len(header)) + header + body


def _changed_description(header: bytes, rng: Random) -> bytes:
    """Change the description of the network, which is a JSON text in the metadata."""
    try:
        tree = json.loads(header)
        metadata = tree["__metadata__"]
        name = rng.choice(list(metadata))
        description = json.loads(metadata[name])
        if rng.random() < 0.7 and isinstance(description.get("config"), dict):
            description["config"] = changed_tree(description["config"], rng)
        else:
            description = changed_tree(description, rng)
        text = json.dumps(description)
        if rng.random() < 0.1:
            text = "[" * 200_000 if rng.random() < 0.5 else text.replace(":", ":" + "[" * 5000, 1)
        return json.dumps({**tree, "__metadata__": {**metadata, name: text}}).encode()
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return header
