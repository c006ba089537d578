"""Hints to install an extra match how the package was installed."""

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from protoformer import errors
from protoformer.errors import install_command

ROOT = Path(__file__).parents[1]


def test_a_checkout_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert install_command("web") == "pip install -e '.[web]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("web") == f"pip install -e '{ROOT}[web]'"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'protoformer[web]'"),
        ({"url": "file:///a/b.whl", "archive_info": {}}, "pip install 'protoformer[web] @ file:///a/b.whl'"),
        (
            {"url": "https://x/p.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'protoformer[web] @ git+https://x/p.git@abc'",
        ),
    ],
)
def test_a_package_is_named_by_its_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: dict[str, object] | None, expected: str
) -> None:
    package = tmp_path / "lib" / "site-packages" / "protoformer"
    monkeypatch.setattr(errors, "__file__", str(package / "errors.py"))
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    assert install_command("web") == expected
