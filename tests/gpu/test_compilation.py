"""Kernels compile for a GPU, also on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = Path(__file__).parents[1] / "support" / "compile_kernels.py"


def test_kernels_of_the_mixer_compile():
    pytest.importorskip("triton")
    outcome = subprocess.run(
        [sys.executable, COMPILER],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    kernels = {"sums_kernel", "sums_backward_kernel", "synchronize_kernel", "synchronize_backward_kernel"}
    assert kernels <= set(outcome.stdout.split())
