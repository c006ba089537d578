"""Plain values, as yaml and json know them, into frozen dataclasses by the types of their fields, and back."""

import dataclasses
import math
import types
from collections.abc import Hashable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from protoformer.errors import InputError, nearest, shortened
from protoformer.io.files import shown

Section = TypeVar("Section")


class Given(str):
    """A value as a person typed it, not yet read: what it means depends on the field that it is for."""


def track_given(text: str) -> "Given | dict[str, Any]":
    """What a person typed for a key: a section, such as {drive: 1}, is read at once, so that keys in it can be set."""
    try:
        value = parse_yaml(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else Given(text)


MAX_TEXT = 2**16
"""Characters of a recipe; those of the package have some 2000."""
MAX_NESTING = 12
"""Levels of sections and lists inside one another; recipes have up to 5."""


class _Loader(yaml.SafeLoader):
    """Reads plain values alone.

    Aliases, which let a few lines stand for gigabytes, tags and merge keys are refused, and so are deep nesting and a
    key that is there twice, of which yaml would silently keep the last.
    """

    _nesting = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:  # of &name as well as of *name
            raise _refused("anchors and aliases, & and *, are not allowed in a recipe; write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _refused("tags, which begin with !, are not allowed in a recipe; leave them out", event)
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise _refused(f"values are nested in more than {MAX_NESTING} levels", event)
        try:
            return super().compose_node(parent, index)
        finally:
            self._nesting -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise _refused("merge keys, <<, are not allowed in a recipe; write the keys out", key)
            if isinstance(key, yaml.ScalarNode):  # a list, which cannot be a key, is refused below
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(problem=f"{shown(key.value)} is there twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(problem: str, at: Any) -> yaml.YAMLError:
    """An error at an event or a node."""
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=at.start_mark)


def parse_yaml(text: str) -> Any:
    """The plain values of a yaml text; raises ValueError, with the reason, where it is none."""
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


def read_section(kind: type[Section], values: object, place: str = "") -> Section:
    """A dataclass from a mapping of its fields; `place` is the dotted key where it stands, for messages.

    What is left out has the field's default. An unknown key is an error that names the nearest, and so is a value of
    another type than the field's.
    """
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise InputError(f"{place or 'a recipe'} is {shown(values)}, but it must be a section of keys and values.")
    kinds = get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            near = _below(place, nearest(str(key), known))
            raise InputError(f"a recipe has no key {shortened(_below(place, key))}; the nearest one is {near}.")
    return kind(**{key: _value(kinds[key], value, _below(place, key)) for key, value in values.items()})


def to_plain(value: Any) -> Any:
    """The inverse: dictionaries, lists, text, numbers, true, false and nothing."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, list | tuple) else value


def changed_fields(first: Mapping[str, Any], second: Mapping[str, Any], place: str = "") -> tuple[str, ...]:
    """The dotted keys under which two plain mappings do not hold the same."""
    keys: tuple[str, ...] = ()
    for key in dict.fromkeys((*first, *second)):
        one, other = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            keys += changed_fields(one, other, _below(place, key))
        elif one != other:
            keys += (_below(place, key),)
    return keys


def _below(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)


def _value(kind: Any, value: Any, place: str) -> Any:
    """A value of a field of this type, or `InputError`."""
    if isinstance(value, Given):
        value = _understood(kind, value)
    if dataclasses.is_dataclass(kind):
        return read_section(kind, value, place)  # type: ignore[arg-type]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):  # such as int | None
        return None if value is None else _value(inner[0], value, place)
    if origin is Literal:
        if value not in inner:
            raise InputError(f"{place} is {shown(value)}; choose one of {', '.join(inner)}.")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            raise InputError(f"{place} is {shown(value)}, but it must be a list of {len(inner)}, such as [1, 2].")
        return tuple(_value(each, part, place) for each, part in zip(inner, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping | None):
            raise InputError(f"{shortened(place)} is {shown(value)}, but it must be a section of keys and values.")
        return {str(key): _value(inner[1], each, _below(place, key)) for key, each in (value or {}).items()}
    if kind is Any:
        _check_nesting(value, place)
        return value
    return _scalar(kind, value, place)


def _check_nesting(value: Any, place: str, level: int = 1) -> None:
    if level > MAX_NESTING:
        raise InputError(f"{shortened(place)} holds values that are nested in more than {MAX_NESTING} levels.")
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in inner:
        _check_nesting(each, place, level + 1)


def _understood(kind: Any, text: Given) -> Any:
    """What was typed, for a field of this type: letters stay as they are where letters are wanted."""
    wanted = get_args(kind) if get_origin(kind) in (types.UnionType, Union) else (kind,)
    if wanted[0] is str and (len(wanted) == 1 or text not in ("null", "")):
        return str(text)
    try:
        return parse_yaml(text)
    except ValueError:
        return str(text)


def _scalar(kind: type, value: Any, place: str) -> Any:
    if kind is int or kind is float:
        number = _number(value)
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    elif isinstance(value, kind):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
    raise InputError(f"{shortened(place)} is {shown(value)}, but it must be {wanted}.")


def _number(value: Any) -> int | float | None:
    """A finite number, also one that yaml takes for text, such as 1e-4; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        finite = math.isfinite(float(value))
    except (ValueError, OverflowError):
        return None
    if not finite:
        return None
    return float(value) if isinstance(value, str) else value
