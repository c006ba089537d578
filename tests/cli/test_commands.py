"""What the command line says about itself, and the commands that need no input."""

import importlib.metadata
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from protoformer import PRESETS
from protoformer.cli import main
from protoformer.cli.main import app
from protoformer.io.formats import read_flo
from protoformer.io.image import read_image
from protoformer.loading import TASKS

COMMANDS = [name for name in main.COMMANDS if name not in ("evaluate", "datasets", "batch")]
"""Commands that are no groups of others."""


@pytest.fixture
def wide() -> CliRunner:
    """A terminal on which no line of help is broken."""
    return CliRunner(env={"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"})


def test_the_version_is_that_of_the_package(wide: CliRunner) -> None:
    ended = wide.invoke(app, ["--version"])
    assert (ended.exit_code, ended.stdout) == (0, f"protoformer {importlib.metadata.version('protoformer')}\n")


def test_help_lists_every_command(wide: CliRunner) -> None:
    ended = wide.invoke(app, ["--help"])
    assert ended.exit_code == 0
    assert {"flow", "models", "demo"} <= set(COMMANDS)
    for command in COMMANDS:
        assert command in ended.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(wide: CliRunner, command: str) -> None:
    ended = wide.invoke(app, [command, "--help"])
    assert ended.exit_code == 0
    assert f"Example: protoformer {command} " in ended.stdout


def test_models_are_listed_for_programs(wide: CliRunner) -> None:
    ended = wide.invoke(app, ["models", "--json"])
    assert ended.exit_code == 0
    entries = json.loads(ended.stdout)
    assert [entry["name"] for entry in entries] == list(PRESETS)
    for entry in entries:
        assert {"name", "tasks", "networks", "parameters", "parts", "gflops", "weights", "license"} <= set(entry)
        assert sum(entry["parts"].values()) == entry["parameters"] == entry["networks"]["flow"]


@pytest.mark.parametrize("columns", ["80", "40"])
def test_models_are_listed_for_people_and_nothing_is_cut(columns: str) -> None:
    ended = CliRunner(env={"COLUMNS": columns, "NO_COLOR": "1"}).invoke(app, ["models"])
    assert ended.exit_code == 0 and "…" not in ended.stdout
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    head, *rows = (line.replace(", ", ",").split() for line in lines[: 1 + len(PRESETS)])
    assert head == ["name", *TASKS, "GFLOPs", "updates", "weights"]
    assert [row[0] for row in rows] == list(PRESETS) and all(len(row) == len(head) for row in rows)
    assert rows[1] == ["fast", "4.58", "7.28", "5.67", "2.96", "308", "8", "all"]
    assert "Weights of depth: research use, not commercial." in lines
    told = " ".join(ended.stdout.split())
    assert f"Trained: {', '.join(TASKS)}. All other names, including presets, load random" in told


class Images(HTMLParser):
    """The sources of the images on a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_demonstration_leaves_a_page_and_the_motion(tmp_path: Path, protoformer) -> None:
    output = tmp_path / "new" / "demo"
    outcome = protoformer("demo", "-o", str(output))
    assert outcome.code == 0 and outcome.errors == []
    assert str(output / "index.html") in outcome.out
    motion = read_flo(output / "motion.flo")
    assert np.isfinite(motion).all()
    for name in ("first.png", "second.png", "motion.png"):
        assert read_image(output / name).shape[:2] == motion.shape[:2]
    html = (output / "index.html").read_text()
    assert html.startswith("<!doctype html>")
    sources = Images(html).sources
    assert sources and all(source.startswith("data:image/png;base64,") for source in sources)
    assert not list(output.glob(".*"))
