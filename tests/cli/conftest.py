import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protoformer.cli.main import main


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
        monkeypatch.setattr("protoformer.cli.terminal.LOG_INTERVAL", float("inf"))  # on a busy machine a minute passes
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command sets its own
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def started() -> Callable[..., AbstractContextManager["subprocess.Popen[str]"]]:
    """The command in a process group of its own, as a terminal would have it."""

    @contextmanager
    def start(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
        command = [sys.executable, "-m", "protoformer", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, start_new_session=True, **pipes) as running:
            try:
                yield running
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)

    return start


@pytest.fixture
def until() -> Callable[[Callable[[], Any], "subprocess.Popen[str]"], None]:
    """Wait for something that a running command does."""

    def wait(happens: Callable[[], Any], running: "subprocess.Popen[str]") -> None:
        deadline = time.monotonic() + 60
        while not happens():
            assert running.poll() is None and time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)

    return wait
