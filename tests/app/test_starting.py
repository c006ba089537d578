"""A command begins to answer without first importing what it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

SLOW = {"torchmetrics", "scipy", "lightning", "lightning_fabric", "matplotlib", "triton", "sympy", "av", "gradio"}
"""Packages that take long to be imported, and that few commands need; torch's compiler brings sympy."""

PROGRAM = """
import sys
from protoformer.app.main import main
print(*sys.modules)
sys.argv = ["protoformer", "flow", "a.png", "b.png", "--updates", "1", "--device", "cpu", "-o", "motion.flo"]
try:
    main()
finally:
    print(*sys.modules)
"""


def test_slow_packages_are_imported_neither_at_the_start_nor_for_the_motion_of_two_images(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    begun, *_, done = (line.split() for line in ended.stdout.splitlines())
    assert (folder / "motion.flo").is_file()
    assert {"protoformer", "protoformer.app.main", "torch"} <= set(begun) <= set(done)
    assert not {name.split(".")[0] for name in done} & SLOW and "torch._dynamo" not in done


def test_metrics_are_there_when_they_are_asked_for() -> None:
    from protoformer import metrics

    assert all(hasattr(metrics, name) for name in metrics.__all__)
    with pytest.raises(AttributeError, match=r"'protoformer\.metrics' has no attribute 'FlowMetrics'"):
        metrics.FlowMetrics  # noqa: B018
