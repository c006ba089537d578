"""A command begins to answer without first importing what it does not need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import protoformer as pf
from protoformer.cli.main import COMMANDS, load_command

SLOW = {
    "torchmetrics",
    "scipy",
    "lightning",
    "lightning_fabric",
    "matplotlib",
    "triton",
    "sympy",
    "av",
    "gradio",
}
"""Packages that take long to be imported, and that few commands need; torch's compiler brings sympy."""

PROGRAM = """
import sys
from protoformer.cli.main import main
print(*sys.modules)
sys.argv = ["protoformer", "flow", "a.png", "b.png", "--num-updates", "1", "--device", "cpu", "-o", "motion.flo"]
try:
    main()
finally:
    print(*sys.modules)
"""


def test_slow_packages_are_imported_neither_at_the_start_nor_for_the_motion_of_two_images(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    begun, *_, done = (line.split() for line in ended.stdout.splitlines())
    assert (folder / "motion.flo").is_file()
    assert {"protoformer", "protoformer.cli.main"} <= set(begun) <= set(done)
    assert "torch" not in begun and "torch" in done
    assert not {name.split(".")[0] for name in done} & SLOW and "torch._dynamo" not in done
    assert not {"protoformer.datasets", "protoformer.synthetic", "protoformer.training"} & set(done)


INTERRUPTED = """
import os, signal, sys
class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interruption())
from protoformer.cli.main import main
sys.argv = ['protoformer', 'flow', 'a.png', 'b.png']
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
    assert pf.loading.load is pf.load
    with pytest.raises(AttributeError, match=r"module 'protoformer' has no attribute 'lod'"):
        pf.lod  # noqa: B018


def test_the_help_lists_each_command_as_it_describes_itself() -> None:
    for name, entry in COMMANDS.items():
        assert (load_command(name).help or "").split("\n")[0].strip() == entry.summary


def test_help_imports_no_numerical_package() -> None:
    program = (
        "import sys; sys.argv = ['protoformer', '--help']\n"
        "from protoformer.cli.main import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "cv2", "PIL"} & set(ended.stdout.splitlines()[-1].split())
    assert all(name in ended.stdout for name in COMMANDS)


def test_threads_are_limited_before_torch_is_imported_and_spin_only_for_a_moment() -> None:
    program = (
        "import sys; sys.argv = ['protoformer', '--threads', '1', 'models']\n"
        "from protoformer.cli.main import main\n"
        "try:\n    main()\nfinally:\n    import os, cv2, torch\n"
        "    print(torch.get_num_threads(), cv2.getNumThreads(), os.environ['OMP_WAIT_POLICY'])\n"
        "    print(os.environ['GOMP_SPINCOUNT'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "OPEN", "GOMP"))}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout.splitlines()[-2:] == ["1 1 passive", "2000"]
