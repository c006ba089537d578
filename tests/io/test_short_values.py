"""Values in messages are short, and finding out how they begin takes no time."""

import time

import pytest

from protoformer.errors import closest_name, shorten
from protoformer.io.files import MAX_REPR_LENGTH, short_repr


@pytest.mark.parametrize("value", [3, 2.5, True, None, "a", "", [1, 2], (3, 4), {"a": [1, "b"]}, -1, 10**30])
def test_what_is_short_is_shown_as_it_is(value: object) -> None:
    assert short_repr(value) == repr(value)


def test_what_is_long_is_cut() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    laughs: list[object] = ["lol"] * 9
    for _ in range(40):
        laughs = [laughs] * 9
    began = time.perf_counter()
    for value in ("x" * 10**7, list(range(10**6)), {str(key): key for key in range(10**5)}, nested, laughs, 1 << 10**6):
        assert 10 < len(short_repr(value)) <= MAX_REPR_LENGTH
    assert time.perf_counter() - began < 1
    assert short_repr("x" * 1000).startswith("'xxxx") and "..." in short_repr("x" * 1000)


def test_a_text_is_cut_to_its_length() -> None:
    assert shorten("short") == "short"
    assert shorten("x" * 300 + "y", 10) == "xxxx ... y"


def test_the_nearest_name_to_a_very_long_one_is_found_soon() -> None:
    began = time.perf_counter()
    assert closest_name("steps" + "x" * 10**6, ["steps", "minutes"]) == "steps"
    assert time.perf_counter() - began < 1
