"""A command begins to answer without first importing what it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

import protoformer as pf

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


INTERRUPTED = """
import os, signal, sys
class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interruption())
from protoformer.__main__ import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals on Windows")
def test_ctrl_c_while_it_is_being_imported_ends_the_command_without_a_word() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_package_is_imported_at_once_and_brings_what_it_offers_when_it_is_asked() -> None:
    program = "import sys, protoformer; print(protoformer.__version__, 'torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{pf.__version__} False\n"
    names: dict[str, object] = {}
    exec("from protoformer import *", names)
    assert {"load", "InputError", "FlowResult", "save_explanation"} <= set(pf.__all__) <= set(names) & set(dir(pf))
    assert pf.inference.load is pf.load
    with pytest.raises(AttributeError, match=r"module 'protoformer' has no attribute 'lod'"):
        pf.lod  # noqa: B018


def test_metrics_are_there_when_they_are_asked_for() -> None:
    from protoformer import metrics

    assert all(hasattr(metrics, name) for name in metrics.__all__)
    with pytest.raises(AttributeError, match=r"'protoformer\.metrics' has no attribute 'FlowMetrics'"):
        metrics.FlowMetrics  # noqa: B018
