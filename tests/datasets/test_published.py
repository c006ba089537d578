"""Tables of other systems' figures beside a dataset: read as they are, or refused in one sentence."""

import json
from pathlib import Path

import pytest

from protoformer.datasets.registry import peer_results
from protoformer.errors import InputError


def test_a_table_is_found_in_the_folder_and_beside_it(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(json.dumps({"flow": {"Peer": {"a": {"epe": 1, "fl": 2.5}}}}))
    (tmp_path / "data").mkdir()
    for root in (tmp_path, tmp_path / "data"):
        assert peer_results(root) == {"Peer": {"a": {"epe": 1.0, "fl": 2.5}}}
    assert peer_results(tmp_path, "tracking") == {}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", '{"flow": 3}', '{"flow": {"Peer": {"a": {"epe": "x"}}}}', "\xff"]
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "peers.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"peers\.json is not a table of peers"):
        peer_results(tmp_path)
