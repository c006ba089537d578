"""Conversion between yaml or JSON values and frozen dataclasses, checked by the types of their fields."""

import dataclasses
import math
import types
from collections.abc import Hashable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from protoformer.errors import InputError, nearest, shortened
from protoformer.io.files import shown

Section = TypeVar("Section")


class RawValue(str):
    """The text of a setting, which is parsed once the type of its field is known."""


def parse_setting(text: str) -> "RawValue | dict[str, Any]":
    """Parse the value of a setting; a section, such as {drive: 1}, is parsed at once, so that its keys can be set."""
    try:
        value = parse_yaml(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else RawValue(text)


MAX_TEXT = 2**16
"""Maximum characters of a recipe; the packaged ones have about 2000."""
MAX_NESTING = 12
"""Maximum nesting of sections and lists; the packaged recipes have up to 5 levels."""


class _Loader(yaml.SafeLoader):
    """Loads plain values only.

    It refuses aliases, which can expand a few lines to gigabytes, tags, merge keys, deep nesting, and duplicate keys,
    of which yaml would silently use the last.
    """

    _nesting = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:  # of &name as well as of *name
            raise _yaml_error("anchors and aliases, & and *, are not allowed in a recipe; write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _yaml_error("tags, which begin with !, are not allowed in a recipe; leave them out", event)
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise _yaml_error(f"values are nested in more than {MAX_NESTING} levels", event)
        try:
            return super().compose_node(parent, index)
        finally:
            self._nesting -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise _yaml_error("merge keys, <<, are not allowed in a recipe; write the keys out", key)
            if isinstance(key, yaml.ScalarNode):  # a list, which cannot be a key, is refused below
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(problem=f"{shown(key.value)} is there twice")
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
        problem = shortened(getattr(error, "problem", None) or "it cannot be read")
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"line {mark.line + 1}: {problem}" if mark else problem) from None
    except (ValueError, OverflowError) as error:  # such as a date or a number that cannot be
        raise ValueError(shortened(error)) from None


def read_section(kind: type[Section], values: object, path: str = "") -> Section:
    """Build a dataclass from a mapping of its fields; missing fields have their defaults.

    Args:
        kind: The dataclass.
        values: The mapping; None is an empty one.
        path: Dotted key of the section, for messages.

    Raises:
        InputError: If a key is unknown or a value has another type than its field.
    """
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise InputError(f"{path or 'a recipe'} is {shown(values)}, but it must be a section of keys and values.")
    kinds = get_type_hints(kind)
    valid = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in valid:
            near = _join_key(path, nearest(str(key), valid))
            raise InputError(f"a recipe has no key {shortened(_join_key(path, key))}; the nearest one is {near}.")
    return kind(**{key: _value(kinds[key], value, _join_key(path, key)) for key, value in values.items()})


def to_plain(value: Any) -> Any:
    """Convert dataclasses to plain values; the inverse of `read_section`."""
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


def _join_key(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _value(kind: Any, value: Any, path: str) -> Any:
    """Convert a value to the type of a field, or raise `InputError`."""
    if isinstance(value, RawValue):
        value = _parse_raw(kind, value)
    if dataclasses.is_dataclass(kind):
        return read_section(kind, value, path)  # type: ignore[arg-type]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):  # such as int | None
        return None if value is None else _value(inner[0], value, path)
    if origin is Literal:
        if value not in inner:
            raise InputError(f"{path} is {shown(value)}; choose one of {', '.join(inner)}.")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            raise InputError(f"{path} is {shown(value)}, but it must be a list of {len(inner)}, such as [1, 2].")
        return tuple(_value(each, part, path) for each, part in zip(inner, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping | None):
            raise InputError(f"{shortened(path)} is {shown(value)}, but it must be a section of keys and values.")
        return {str(key): _value(inner[1], each, _join_key(path, key)) for key, each in (value or {}).items()}
    if kind is Any:
        _check_nesting(value, path)
        return value
    return _scalar(kind, value, path)


def _check_nesting(value: Any, path: str, level: int = 1) -> None:
    if level > MAX_NESTING:
        raise InputError(f"{shortened(path)} holds values that are nested in more than {MAX_NESTING} levels.")
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in inner:
        _check_nesting(each, path, level + 1)


def _parse_raw(kind: Any, text: RawValue) -> Any:
    """Parse the text of a setting for a field of this type; text for a string field is used as it is."""
    options = get_args(kind) if get_origin(kind) in (types.UnionType, Union) else (kind,)
    if options[0] is str and (len(options) == 1 or text not in ("null", "")):
        return str(text)
    try:
        return parse_yaml(text)
    except ValueError:
        return str(text)


def _scalar(kind: type, value: Any, path: str) -> Any:
    if kind is int or kind is float:
        number = _number(value)
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    elif isinstance(value, kind):
        return value
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
    raise InputError(f"{shortened(path)} is {shown(value)}, but it must be {expected}.")


def _number(value: Any) -> int | float | None:
    """Return a finite number, also one that yaml reads as text, such as 1e-4; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        finite = math.isfinite(float(value))
    except (ValueError, OverflowError):
        return None
    if not finite:
        return None
    return float(value) if isinstance(value, str) else value
