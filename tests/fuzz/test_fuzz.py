"""The fuzzer finds what it must, is the same for a seed, and finds nothing in the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.corpus import Corpus
from tests.fuzz.kinds import KINDS
from tests.fuzz.planted import READERS

ROOT = Path(__file__).parents[2]
COUNT = 240
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured by Linux's /proc")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program of the fuzzer in the repository's root."""
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)


def test_every_planted_fault_is_found_saved_and_replayed(tmp_path: Path) -> None:
    ended = run("tests.fuzz.planted", tmp_path)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    for name, (_, status) in READERS.items():
        files, ok, refused, findings = said["rows"][name]
        assert files == 1 and findings == (1 if status else 0), name
        assert (ok, refused) == {"fine": (1, 0), "refused": (0, 1)}.get(name, (0, 0))
        if status:
            assert said["found"][f"{name}-0-0"][0] == status
            assert (tmp_path / f"{name}-0-0.bin").is_file()
    assert "SIGABRT" in said["found"]["crashes-0-0"][1]
    assert said["replayed"] == ["crash"]


def test_a_seed_gives_the_same_files_each_time() -> None:
    one, other, another = (Corpus(list(KINDS.values()), seed) for seed in (3, 3, 4))
    count = 2 * len(KINDS)
    files = [[corpus.case(index).data for index in range(count)] for corpus in (one, other, another)]
    assert files[0] == files[1]
    assert sum(first != second for first, second in zip(files[0], files[2], strict=True)) > 0.9 * count
    # A file of a kind does not depend on which other kinds there are.
    alone = Corpus([KINDS["png"]], 3)
    assert one.case(0).kind.name == "png" and alone.case(0) == one.case(0)


def test_damaged_files_of_every_kind_are_read_or_refused(tmp_path: Path) -> None:
    ended = run("tests.fuzz", "--count", COUNT, "--workers", 1, "--seed", 14, "--output", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert {line.split()[0] for line in lines} >= {*KINDS, "all"}
    assert lines[-1].startswith(f"{COUNT} files of seed 14") and lines[-1].endswith("0 findings")
    assert list(tmp_path.iterdir()) == []
