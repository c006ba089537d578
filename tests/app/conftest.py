import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protoformer.app.main import main


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed; `notes` are its remarks on standard error, `errors` the other lines."""

    code: int
    out: str
    err: str

    @property
    def notes(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("note:")]

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.strip() and not line.startswith("note:")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two images of 30x20 pixels in it: a.png and b.png."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), dtype=np.uint8)
    for name, image in zip("ab", pixels, strict=True):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def protoformer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command, run in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["protoformer", *arguments])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command sets its own
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    return run
