"""Reading of plain values (yaml, JSON) into nested frozen dataclasses, with types and bounds declared at the fields.

Example:
    >>> @dataclass(frozen=True)
    ... class EncoderConfig:
    ...     num_prototypes: int = bounded(100, min=1, max=16384)
    ...
    ...     def __post_init__(self) -> None:
    ...         check_fields(self, "encoder")
    >>> read_fields(EncoderConfig, {"num_prototypes": 0})
    InputError: num_prototypes is 0, but it must be a whole number, 1 or more and at most 16384.
"""

import dataclasses
import functools
import math
import operator
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from protoformer.errors import InputError, closest_name, shorten
from protoformer.io.files import short_repr

Config = TypeVar("Config")

MAX_TEXT = 2**16
"""Maximum characters of a yaml text; the packaged recipes have about 2000."""
MAX_NESTING = 12
"""Maximum nesting of sections and lists; the packaged recipes have up to 5 levels."""

Bounds = Mapping[str, float]
_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "min": ("{} or more", operator.ge),
    "above": ("above {}", operator.gt),
    "max": ("at most {}", operator.le),
    "below": ("below {}", operator.lt),
    "multiple_of": ("a multiple of {}", lambda number, divisor: number % divisor == 0),
}
_SECTION = "a section of keys and values"
_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def bounded(
    default: Any = dataclasses.MISSING,
    *,
    default_factory: Callable[[], Any] | Any = dataclasses.MISSING,
    min: float | None = None,
    max: float | None = None,
    above: float | None = None,
    below: float | None = None,
    multiple_of: int | None = None,
) -> Any:
    """Declare a dataclass field whose numbers have bounds; `check_fields` and `read_fields` check them.

    The bounds hold for a number, each element of a tuple and each value of a mapping: `min` and `max` are included,
    `above` and `below` are excluded.
    """
    bounds = {"min": min, "above": above, "max": max, "below": below, "multiple_of": multiple_of}
    metadata = {"bounds": {name: bound for name, bound in bounds.items() if bound is not None}}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


def read_fields(kind: type[Config], values: object, path: str = "") -> Config:
    """Build a dataclass from a mapping of its fields; missing fields have their defaults.

    Numbers may be text, such as 1e-4, which yaml does not read as a number. `RawValue` is parsed by the field's type.

    Args:
        kind: The dataclass; its fields may be dataclasses.
        values: The mapping; None is an empty one.
        path: Dotted key of the section, for messages.

    Raises:
        InputError: If a key is unknown, or a value has another type than its field or is out of its bounds.
    """
    return kind(**_read_section(kind, {} if values is None else values, path))


def replace_fields(instance: Config, changes: Mapping[str, Any], path: str = "") -> Config:
    """Return a copy of a dataclass with some fields changed.

    Args:
        instance: The dataclass instance.
        changes: New values by field; a mapping for a field that is a dataclass changes fields of that one.
        path: Dotted key of the instance, for messages.

    Raises:
        InputError: As for `read_fields`.
    """
    return dataclasses.replace(instance, **_read_section(type(instance), changes, path, instance))  # type: ignore[type-var]


def check_fields(instance: Any, path: str = "") -> None:
    """Check types, choices and bounds of a dataclass's own fields; called in `__post_init__`.

    Args:
        instance: The dataclass instance.
        path: Dotted key of the instance, for messages.

    Raises:
        InputError: If a value has another type than its field or is out of its bounds.
    """
    for name, (hint, bounds) in _fields(instance.__class__).items():
        _read(hint, bounds, getattr(instance, name), _join_key(path, name), strict=True)


def to_plain(value: Any) -> Any:
    """Convert dataclasses to plain values for yaml and JSON; the inverse of `read_fields`."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, list | tuple) else value


def changed_fields(first: Mapping[str, Any], second: Mapping[str, Any], path: str = "") -> tuple[str, ...]:
    """Return the dotted keys whose values differ between two plain mappings."""
    keys: tuple[str, ...] = ()
    for key in dict.fromkeys((*first, *second)):
        one, other = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            keys += changed_fields(one, other, _join_key(path, key))
        elif one != other:
            keys += (_join_key(path, key),)
    return keys


def check_names(what: str, names: Iterable[str], valid: Iterable[str]) -> None:
    """Raise `InputError` with the nearest valid name if one of the names is not valid."""
    valid = list(valid)
    for name in names:
        if name not in valid:
            near = closest_name(name, valid)
            raise InputError(f"there is no {what} {short_repr(name)}; the nearest one is {near!r}.")


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, Bounds]]:
    """Return the type and the bounds of every field."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], field.metadata.get("bounds", {})) for field in dataclasses.fields(kind)}


def _read_section(kind: type, values: object, path: str, current: object = None) -> dict[str, Any]:
    """Read the values of a dataclass's fields; sections of `current` that are instances are changed, not replaced."""
    if not isinstance(values, Mapping):
        raise _mismatch(path or "the configuration", values, _SECTION)
    fields, result = _fields(kind), {}
    for key, value in values.items():
        name, before = _join_key(path, key), getattr(current, str(key), None)
        if key not in fields:
            near = _join_key(path, closest_name(str(key), list(fields)))
            shown = name if len(name) <= 100 and name.isprintable() else short_repr(name)
            raise InputError(f"there is no key {shown}; the nearest one is {near}.")
        nested = dataclasses.is_dataclass(before) and isinstance(value, Mapping)
        result[key] = replace_fields(before, value, name) if nested else _read(*fields[key], value, name)
    return result


def _read(hint: Any, bounds: Bounds, value: Any, path: str, strict: bool = False) -> Any:
    """Convert a value to the type of a field and check it; `strict` accepts only values of that type."""
    if isinstance(value, RawValue):
        value = _parse_raw(hint, value)
    kind, optional = _split_optional(hint)
    if optional and value is None:
        return None
    if kind is Any:
        return _plain_value(value, path)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, kind):  # type: ignore[arg-type]
            return value
        if strict:
            raise _mismatch(path, value, _SECTION)
        return read_fields(kind, value, path)  # type: ignore[arg-type]
    if get_origin(kind) in (Mapping, dict):
        if not isinstance(value, Mapping) and (strict or value is not None):
            raise _mismatch(path, value, _SECTION)
        inner = get_args(kind)[1]
        return {
            str(key): _read(inner, bounds, each, _join_key(path, key), strict) for key, each in (value or {}).items()
        }
    try:
        return _convert(kind, bounds, value, strict)
    except (TypeError, ValueError, OverflowError):
        raise _mismatch(path, value, ("null or " if optional else "") + _describe(kind, bounds)) from None


def _convert(kind: Any, bounds: Bounds, value: Any, strict: bool) -> Any:
    """Convert a scalar, choice or list; `ValueError` or `TypeError` if that is not possible or out of bounds."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif get_origin(kind) is tuple:
        if isinstance(value, tuple if strict else list | tuple):
            kinds = get_args(kind)
            kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
            return tuple(_convert(each, bounds, part, strict) for each, part in zip(kinds, value, strict=True))
    elif kind in (int, float):
        number = float(value) if isinstance(value, str) and not strict else value
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(float(number)):
            raise ValueError
        if kind is int and not (isinstance(number, int) or (not strict and number.is_integer())):
            raise ValueError
        if all(_BOUNDS[name][1](number, bound) for name, bound in bounds.items()):
            return value if strict else kind(number)
    elif isinstance(value, kind):
        return value
    raise ValueError


def _describe(kind: Any, bounds: Bounds) -> str:
    """Describe the allowed values of a scalar, choice or list."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    texts = [_BOUNDS[name][0].format(f"{n:g}" if isinstance(n, float) else n) for name, n in bounds.items()]
    limits = " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        count = "" if kinds[-1] is ... else f"{len(kinds)} "
        return f"a list of {count}{_PLURALS.get(kinds[0], 'values')}" + (f", each {limits}" if limits else "")
    return _NOUNS[kind] + (f", {limits}" if limits and kind in (int, float) else "")


def _split_optional(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and True."""
    if get_origin(hint) in (types.UnionType, Union):
        inner = [each for each in get_args(hint) if each is not type(None)]
        return inner[0], len(inner) < len(get_args(hint))
    return hint, False


def _plain_value(value: Any, path: str, level: int = 1) -> Any:
    """Return any plain value, with the text of settings parsed and the nesting checked."""
    if level > MAX_NESTING:
        raise InputError(f"{shorten(path)} holds values that are nested in more than {MAX_NESTING} levels.")
    if isinstance(value, RawValue):
        value = _parse_raw(Any, value)
    if isinstance(value, Mapping):
        return {key: _plain_value(each, path, level + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain_value(each, path, level + 1) for each in value)
    return value


def _join_key(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _mismatch(path: str, value: object, expected: str) -> InputError:
    return InputError(f"{shorten(path)} is {short_repr(value)}, but it must be {expected}.")


class RawValue(str):
    """Text of a setting, which is parsed once the type of its field is known."""


def apply_setting(values: dict[str, Any], setting: str, example: str = "key=value") -> None:
    """Set a key of plain nested values from text.

    Args:
        values: The values, which are changed; `read_fields` reads them afterwards.
        setting: A dotted key and a value in yaml, such as "data.crop_size=[368, 496]".
        example: A setting for the message.

    Raises:
        InputError: If the text is no setting, or its key is below one that holds no keys.
    """
    key, sign, text = (part.strip() for part in setting.partition("="))
    if not (key and sign):
        raise InputError(f"{short_repr(setting)} is not a setting; write it as key=value, such as {example}.")
    *above, last = key.split(".")
    if len(above) >= MAX_NESTING:
        raise InputError(
            f"{short_repr(key)} is nested in {len(above)} sections; at most {MAX_NESTING - 1} are allowed."
        )
    section: Any = values
    for depth, name in enumerate(above):
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            holder = shorten(".".join(above[: depth + 1]))
            raise InputError(f"{holder} holds no keys, so {shorten(key)} cannot be set.")
    value = _parse_raw(Any, RawValue(text))
    # A section is parsed at once, so that later settings can set its keys.
    section[last] = value if isinstance(value, dict) else RawValue(text)


def _parse_raw(hint: Any, text: RawValue) -> Any:
    """Parse the text of a setting for a field of this type; text for a string field is used as it is."""
    kind, optional = _split_optional(hint)
    if kind is str and not (optional and text in ("null", "")):
        return str(text)
    try:
        return parse_yaml(text)
    except ValueError:
        return str(text)


class _Loader(yaml.SafeLoader):
    """Loads plain values only.

    It refuses aliases, which can expand a few lines to gigabytes, tags, merge keys, deep nesting, and duplicate keys,
    of which yaml would silently use the last.
    """

    _nesting = 0

    def get_event(self) -> Any:
        event: Any = super().get_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:  # of &name as well as of *name
            raise _yaml_error("anchors and aliases, & and *, are not allowed; write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _yaml_error("tags, which begin with !, are not allowed; leave them out", event)
        self._nesting += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if self._nesting > MAX_NESTING:
            raise _yaml_error(f"values are nested in more than {MAX_NESTING} levels", event)
        return event

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise _yaml_error("merge keys, <<, are not allowed; write the keys out", key)
            if isinstance(key, yaml.ScalarNode):  # a list, which cannot be a key, is refused below
                if key.value in keys:
                    raise _yaml_error(f"the key {short_repr(key.value)} is given twice", key)
                keys.add(key.value)
        return super().construct_mapping(node, deep)


def _yaml_error(problem: str, at: Any) -> yaml.YAMLError:
    """Build an error at an event or a node."""
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=at.start_mark)


def parse_yaml(text: str) -> Any:
    """Parse yaml to plain values.

    Raises:
        ValueError: If the text is not valid; the message is the reason.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters, and at most {MAX_TEXT} are read")
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        problem = shorten(getattr(error, "problem", None) or "it cannot be parsed")
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"line {mark.line + 1}: {problem}" if mark else problem) from None
    except (ValueError, OverflowError) as error:  # an impossible date or number
        raise ValueError(shorten(error)) from None
