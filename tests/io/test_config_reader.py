"""Reading of plain values into nested frozen dataclasses."""

import json
import math
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, Literal

import pytest

from protoformer.errors import InputError
from protoformer.io.config_reader import (
    MAX_NESTING,
    MAX_TEXT,
    apply_setting,
    bounded,
    changed_fields,
    check_fields,
    check_names,
    parse_yaml,
    read_fields,
    replace_fields,
    to_plain,
)


@dataclass(frozen=True)
class Part:
    width: int = bounded(64, min=8, max=8192, multiple_of=8)
    sizes: tuple[int, int] = bounded((4, 8), min=1, max=64)
    kind: Literal["fast", "slow"] = "fast"
    name: str = ""

    def __post_init__(self) -> None:
        check_fields(self, "part")


@dataclass(frozen=True)
class Whole:
    part: Part = field(default_factory=Part)
    lr: float = bounded(1e-3, above=0, below=1)
    steps: int | None = bounded(None, min=1)
    label: str | None = None
    flag: bool = False
    weights: Mapping[str, float] = bounded(default_factory=lambda: {"a": 1.0}, min=0)
    parts: Mapping[str, Part] = field(default_factory=dict)
    rates: tuple[float, ...] = bounded((0.5,), min=0)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


NESTED = {
    "part": {"width": 16, "sizes": [1, 2], "kind": "slow"},
    "lr": "1e-4",
    "steps": 3.0,
    "flag": True,
    "weights": {"b": 2},
    "parts": {"x": {"name": "y"}},
    "rates": [1, 2, 3],
    "extra": {"any": [1, {"deep": "text"}]},
}


def test_nested_values_are_converted_to_the_types_of_the_fields() -> None:
    whole = read_fields(Whole, NESTED)
    assert whole == Whole(
        part=Part(width=16, sizes=(1, 2), kind="slow"),
        lr=1e-4,
        steps=3,
        flag=True,
        weights={"b": 2.0},
        parts={"x": Part(name="y")},
        rates=(1.0, 2.0, 3.0),
        extra={"any": [1, {"deep": "text"}]},
    )
    assert isinstance(whole.steps, int) and isinstance(whole.rates[0], float)
    with pytest.raises(FrozenInstanceError):
        whole.lr = 2.0  # type: ignore[misc]


def test_missing_sections_have_their_defaults() -> None:
    assert read_fields(Whole, None) == read_fields(Whole, {}) == read_fields(Whole, {"part": None}) == Whole()


def test_plain_values_survive_json_and_are_read_back() -> None:
    whole = read_fields(Whole, NESTED)
    assert read_fields(Whole, json.loads(json.dumps(to_plain(whole)))) == whole


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"parts": 3}, "parts is 3, but it must be a section of keys and values."),
        ({"prt": 3}, "there is no key prt; the nearest one is part."),
        ({"part": {"widht": 3}}, "there is no key part.widht; the nearest one is part.width."),
        ({"parts": {"x": {"nam": 3}}}, "there is no key parts.x.nam; the nearest one is parts.x.name."),
        ({3: 3}, "there is no key 3; the nearest one is part."),
        (
            {"part": {"width": 12}},
            "part.width is 12, but it must be a whole number, 8 or more, at most 8192 and a multiple of 8.",
        ),
        (
            {"part": {"width": 0}},
            "part.width is 0, but it must be a whole number, 8 or more, at most 8192 and a multiple of 8.",
        ),
        (
            {"part": {"sizes": [4, 65]}},
            "part.sizes is [4, 65], but it must be a list of 2 whole numbers, each 1 or more and at most 64.",
        ),
        (
            {"part": {"sizes": [4]}},
            "part.sizes is [4], but it must be a list of 2 whole numbers, each 1 or more and at most 64.",
        ),
        ({"part": {"kind": "quick"}}, "part.kind is 'quick', but it must be one of fast, slow."),
        ({"part": {"kind": ["fast"]}}, "part.kind is ['fast'], but it must be one of fast, slow."),
        ({"part": {"name": 3}}, "part.name is 3, but it must be text."),
        ({"part": 3}, "part is 3, but it must be a section of keys and values."),
        ({"lr": 0}, "lr is 0, but it must be a number, above 0 and below 1."),
        ({"lr": True}, "lr is True, but it must be a number, above 0 and below 1."),
        ({"lr": "nan"}, "lr is 'nan', but it must be a number, above 0 and below 1."),
        ({"lr": math.inf}, "lr is inf, but it must be a number, above 0 and below 1."),
        ({"lr": None}, "lr is None, but it must be a number, above 0 and below 1."),
        ({"steps": 1.5}, "steps is 1.5, but it must be null or a whole number, 1 or more."),
        ({"steps": 0}, "steps is 0, but it must be null or a whole number, 1 or more."),
        ({"label": 3}, "label is 3, but it must be null or text."),
        ({"flag": 1}, "flag is 1, but it must be true or false."),
        ({"weights": {"b": -1}}, "weights.b is -1, but it must be a number, 0 or more."),
        ({"parts": {"x": {"name": 1}}}, "parts.x.name is 1, but it must be text."),
        ({"rates": [1, -1]}, "rates is [1, -1], but it must be a list of numbers, each 0 or more."),
        ({"rates": 1}, "rates is 1, but it must be a list of numbers, each 0 or more."),
    ],
)
def test_a_wrong_value_is_one_sentence(values: Mapping[Any, Any], sentence: str) -> None:
    for read in (lambda: read_fields(Whole, values), lambda: replace_fields(Whole(), values)):
        with pytest.raises(InputError) as caught:
            read()
        assert str(caught.value) == sentence


def test_values_that_are_no_section_are_refused() -> None:
    for read in (lambda: read_fields(Whole, [1]), lambda: replace_fields(Whole(), [1])):  # type: ignore[arg-type]
        with pytest.raises(InputError) as caught:
            read()
        assert str(caught.value) == "the configuration is [1], but it must be a section of keys and values."


def test_numbers_beyond_floats_are_refused() -> None:
    with pytest.raises(InputError, match=r"lr is a whole number of \d+ bits, but it must be a number"):
        read_fields(Whole, {"lr": 10**400})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"width": 12},
            "part.width is 12, but it must be a whole number, 8 or more, at most 8192 and a multiple of 8.",
        ),
        ({"width": "16"}, "part.width is '16', but it must be a whole number"),
        ({"width": 16.0}, "part.width is 16.0, but it must be a whole number"),
        ({"width": True}, "part.width is True, but it must be a whole number"),
        ({"sizes": [1, 2]}, "part.sizes is [1, 2], but it must be a list of 2 whole numbers"),
        ({"sizes": (1, 2, 3)}, "part.sizes is (1, 2, 3), but it must be a list of 2 whole numbers"),
        ({"sizes": (0, 2)}, "part.sizes is (0, 2), but it must be a list of 2 whole numbers, each 1 or more"),
        ({"kind": "other"}, "part.kind is 'other', but it must be one of fast, slow."),
    ],
)
def test_an_instance_accepts_only_values_of_its_types(fields: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Part(**fields)
    assert str(caught.value).startswith(sentence)


def test_a_nested_instance_must_have_its_type() -> None:
    with pytest.raises(InputError, match=r"^part is {}, but it must be a section of keys and values\.$"):
        Whole(part={})  # type: ignore[arg-type]


def test_replaced_fields_keep_the_others() -> None:
    whole = Whole(part=Part(width=16, name="kept"), lr=0.5)
    changed = replace_fields(whole, {"part": {"width": 32}, "weights": {"b": 1}})
    assert changed == Whole(part=Part(width=32, name="kept"), lr=0.5, weights={"b": 1.0})
    assert replace_fields(whole, {"part": Part()}).part == Part()
    assert whole.part.width == 16


def test_the_path_of_the_caller_is_in_the_message() -> None:
    with pytest.raises(InputError, match=r"^model\.part\.width is 0, but"):
        replace_fields(Whole(), {"part": {"width": 0}}, path="model")


def test_settings_are_parsed_by_the_type_of_their_field() -> None:
    values: dict[str, Any] = to_plain(Whole())
    for setting in (
        "part.sizes=[1, 2]", "part.name=12", "label=null", "lr=1e-4", "weights={b: 1}", "weights.c=2",
        "parts.x.name=y", "extra.a.b=[3]",
    ):  # fmt: skip
        apply_setting(values, setting)
    whole = read_fields(Whole, values)
    assert (whole.part.sizes, whole.part.name, whole.label, whole.lr) == ((1, 2), "12", None, 1e-4)
    assert whole.weights == {"b": 1.0, "c": 2.0}
    assert whole.parts == {"x": Part(name="y")}
    assert whole.extra == {"a": {"b": [3]}}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("lr", "'lr' is not a setting; write it as key=value, such as lr=1e-4."),
        ("=3", "'=3' is not a setting; write it as key=value, such as lr=1e-4."),
        ("lr.x=1", "lr holds no keys, so lr.x cannot be set."),
        ("a." * 12 + "b=3", f"'{'a.' * 12}b' is nested in 12 sections; at most 11 are allowed."),
    ],
)
def test_a_wrong_setting_is_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        apply_setting(to_plain(Whole()), setting, "lr=1e-4")
    assert str(caught.value) == sentence


def test_changed_fields_are_named_by_their_dotted_keys() -> None:
    first, second = to_plain(Whole()), to_plain(replace_fields(Whole(), {"part": {"width": 8}, "extra": {"x": 1}}))
    assert changed_fields(first, second) == ("part.width", "extra.x")


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    check_names("color", ["red"], ["red", "green"])
    with pytest.raises(InputError, match=r"^there is no color 'gren'; the nearest one is 'green'\.$"):
        check_names("color", ["red", "gren"], ["red", "green"])


def test_free_values_are_nested_in_a_limited_number_of_levels() -> None:
    value: object = 1
    for _ in range(500):
        value = [value]
    with pytest.raises(InputError, match=rf"extra\.a holds values that are nested in more than {MAX_NESTING} levels"):
        read_fields(Whole, {"extra": {"a": value}})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: {b: 1", "line 1: expected ',' or '}', but got '<stream end>'"),
        ("a: 1\na: 2\n", "line 2: the key 'a' is given twice"),
        ("a: &a 1\n", "line 1: anchors and aliases, & and *, are not allowed; write the value out"),
        ("x: {<<: {a: 3}}\n", "line 1: merge keys, <<, are not allowed; write the keys out"),
        ("a: !!python/object/apply:os.system [ls]\n", "line 1: tags, which begin with !, are not allowed"),
        ("[" * 5000, f"line 1: values are nested in more than {MAX_NESTING} levels"),
        ("x" * (MAX_TEXT + 1), f"it has {MAX_TEXT + 1} characters, and at most {MAX_TEXT} are read"),
        ("a: 2026-99-99", "month must be in 1..12"),
    ],
)
def test_yaml_with_more_than_plain_values_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_yaml(text)
    assert str(caught.value).startswith(reason)
