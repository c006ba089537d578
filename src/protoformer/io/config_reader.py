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


@dataclasses.dataclass(frozen=True)
class _Bounds:
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    multiple_of: int | None = None

    def allow(self, number: float) -> bool:
        return (
            (self.min is None or number >= self.min)
            and (self.max is None or number <= self.max)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
            and (self.multiple_of is None or number % self.multiple_of == 0)
        )

    def __str__(self) -> str:
        phrases = {
            "min": "{} or more", "above": "above {}", "max": "at most {}", "below": "below {}",
            "multiple_of": "a multiple of {}",
        }  # fmt: skip
        limits = ((phrase, getattr(self, name)) for name, phrase in phrases.items())
        texts = [text.format(f"{n:g}" if isinstance(n, float) else n) for text, n in limits if n is not None]
        return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


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

    The bounds hold for a number, each element of a tuple and each value of a mapping.

    Args:
        default: Default of the field.
        default_factory: Function that builds the default, for mappings.
        min: Lower bound, included.
        max: Upper bound, included.
        above: Lower bound, excluded.
        below: Upper bound, excluded.
        multiple_of: Divisor of the number.
    """
    metadata = {"bounds": _Bounds(min, max, above, below, multiple_of)}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


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
    values = {} if values is None else values
    if not isinstance(values, Mapping):
        raise _mismatch(path or "the configuration", values, _SECTION)
    fields = _checked_fields(kind, values, path)
    return kind(**{key: _read(*fields[key], value, _join_key(path, key)) for key, value in values.items()})


def replace_fields(instance: Config, changes: Mapping[str, Any], path: str = "") -> Config:
    """Return a copy of a dataclass with some fields changed.

    Args:
        instance: The dataclass instance.
        changes: New values by field; a mapping for a field that is a dataclass changes fields of that one.
        path: Dotted key of the instance, for messages.

    Raises:
        InputError: As for `read_fields`.
    """
    if not isinstance(changes, Mapping):
        raise _mismatch(path or "the configuration", changes, _SECTION)
    fields = _checked_fields(type(instance), changes, path)
    values = {}
    for key, value in changes.items():
        current, full = getattr(instance, key), _join_key(path, key)
        nested = dataclasses.is_dataclass(current) and isinstance(value, Mapping)
        values[key] = replace_fields(current, value, full) if nested else _read(*fields[key], value, full)
    return dataclasses.replace(instance, **values)  # type: ignore[type-var]


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
    """Raise `InputError` with the closest valid name if one of the names is not valid."""
    valid = list(valid)
    for name in names:
        if name not in valid:
            near = closest_name(name, valid)
            raise InputError(f"there is no {what} {short_repr(name)}; the nearest one is {near!r}.")


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, _Bounds]]:
    """Return the type and the bounds of every field."""
    hints = get_type_hints(kind)
    return {
        field.name: (hints[field.name], field.metadata.get("bounds", _Bounds())) for field in dataclasses.fields(kind)
    }


def _checked_fields(kind: type, keys: Iterable[object], path: str) -> dict[str, tuple[Any, _Bounds]]:
    """Return `_fields` if all keys are fields."""
    fields = _fields(kind)
    for key in keys:
        if key not in fields:
            near = _join_key(path, closest_name(str(key), list(fields)))
            raise InputError(f"there is no key {shorten(_join_key(path, key))}; the nearest one is {near}.")
    return fields


def _join_key(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _mismatch(path: str, value: object, expected: str) -> InputError:
    return InputError(f"{shorten(path)} is {short_repr(value)}, but it must be {expected}.")


_SECTION = "a section of keys and values"
_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class RawValue(str):
    """Text of a setting, which is parsed once the type of its field is known."""


def _read(hint: Any, bounds: _Bounds, value: Any, path: str, strict: bool = False) -> Any:
    """Convert a value to the type of a field and check it; `strict` accepts only values of that type."""
    if isinstance(value, RawValue):
        value = _parse_raw(hint, value)
    inner, optional = _optional(hint)
    if optional and value is None:
        return None
    if dataclasses.is_dataclass(inner):
        if isinstance(value, inner):  # type: ignore[arg-type]
            return value
        if strict:
            raise _mismatch(path, value, _SECTION)
        return read_fields(inner, value, path)  # type: ignore[arg-type]
    if inner is Any:
        return _plain_value(value, path)
    if _is_mapping(inner):
        if not isinstance(value, Mapping) and (strict or value is not None):
            raise _mismatch(path, value, _SECTION)
        kind = get_args(inner)[1]
        return {
            str(key): _read(kind, bounds, each, _join_key(path, key), strict) for key, each in (value or {}).items()
        }
    try:
        return _convert(inner, bounds, value, strict)
    except (TypeError, ValueError, OverflowError):
        raise _mismatch(path, value, ("null or " if optional else "") + _describe(inner, bounds)) from None


def _convert(kind: Any, bounds: _Bounds, value: Any, strict: bool) -> Any:
    """Convert a scalar, choice or list; `ValueError` or `TypeError` if that is not possible or out of bounds."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif get_origin(kind) is tuple:
        if isinstance(value, tuple if strict else list | tuple):
            kinds = get_args(kind)
            kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
            return tuple(_convert(each, bounds, part, strict) for each, part in zip(kinds, value, strict=True))
    elif kind is int or kind is float:
        number = float(value) if isinstance(value, str) and not strict else value
        if not isinstance(number, int | float) or isinstance(number, bool) or not math.isfinite(float(number)):
            raise ValueError
        if kind is int and not (isinstance(number, int) or (not strict and number.is_integer())):
            raise ValueError
        if bounds.allow(number):
            return value if strict else kind(number)
    elif isinstance(value, kind):
        return value
    raise ValueError


def _describe(kind: Any, bounds: _Bounds) -> str:
    """Describe the allowed values of a scalar, choice or list."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        count = "" if kinds[-1] is ... else f"{len(kinds)} "
        noun = {int: "whole numbers", float: "numbers", str: "texts"}.get(kinds[0], "values")
        return f"a list of {count}{noun}" + (f", each {bounds}" if str(bounds) else "")
    return _NOUNS[kind] + (f", {bounds}" if str(bounds) and kind in (int, float) else "")


def _optional(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and True."""
    if get_origin(hint) in (types.UnionType, Union):
        inner = [each for each in get_args(hint) if each is not type(None)]
        return inner[0], len(inner) < len(get_args(hint))
    return hint, False


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


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


def apply_setting(values: dict[str, Any], setting: str, example: str = "key=value") -> None:
    """Set a key of plain nested values from text.

    Args:
        values: The values, which are changed; `read_fields` reads them afterwards.
        setting: A dotted key and a value in yaml, such as "data.crop_size=[368, 496]".
        example: A setting for the message.

    Raises:
        InputError: If the text is no setting, or its key is below one that holds no keys.
    """
    key, sign, text = setting.partition("=")
    if not (key and sign):
        raise InputError(f"{short_repr(setting)} is not a setting; write it as key=value, such as {example}.")
    *above, last = key.strip().split(".")
    if len(above) >= MAX_NESTING:
        raise InputError(
            f"{short_repr(key)} is nested in {len(above)} sections; at most {MAX_NESTING - 1} are allowed."
        )
    section: Any = values
    for depth, name in enumerate(above):
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            holder = shorten(".".join(above[: depth + 1]))
            raise InputError(f"{holder} holds no keys, so {shorten(key.strip())} cannot be set.")
    text = text.strip()
    try:
        value = parse_yaml(text)
    except ValueError:
        value = None
    # A section is parsed at once, so that later settings can set its keys.
    section[last] = value if isinstance(value, dict) else RawValue(text)


def _parse_raw(hint: Any, text: RawValue) -> Any:
    """Parse the text of a setting for a field of this type; text for a string field is used as it is."""
    kind, optional = _optional(hint)
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

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:  # of &name as well as of *name
            raise _yaml_error("anchors and aliases, & and *, are not allowed; write the value out", event)
        if getattr(event, "tag", None) is not None:
            raise _yaml_error("tags, which begin with !, are not allowed; leave them out", event)
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
