"""Amounts of memory."""

import pytest

from protoformer.errors import InputError
from protoformer.io.memory import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("15MB", 15_000_000), ("15MiB", 15 * 2**20), ("500KB", 500_000), ("1.5 gb", 1_500_000_000), ("4096B", 4096)],
)
def test_sizes_are_read_in_either_count(text: str, size: int) -> None:
    assert parse_bytes(text, unit_required=True) == size


@pytest.mark.parametrize("text", ["", "15", "MB", "15M", "-1MB", "15 MB more", "1e3KB", "15TB", "15iB"])
def test_what_is_no_size_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_bytes(text, unit_required=True)
    assert str(caught.value) == (
        f"{text!r} is not a size; write a number and B, KB, MB, GB, KiB, MiB or GiB, such as 15MB."
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [("4GB", 4 * 10**9), ("1.5 gib", 3 * 2**29), ("512M", 512 * 10**6), ("100", 100), ("2KiB", 2048)],
)
def test_memory_is_a_number_and_a_unit(text: str, count: int) -> None:
    assert parse_bytes(text) == count
