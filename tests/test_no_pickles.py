"""Nothing that the package reads can run code: it opens no pickles, and evaluates no text."""

import ast
from pathlib import Path

import protoformer

ROOT = Path(protoformer.__file__).parent
RUNNING = frozenset(
    {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "torch.load", "torch.jit.load"}
)
"""Modules and functions that run what a file says."""


def names_in(path: Path) -> set[str]:
    """Every dotted name that a module uses, every module that it imports, and every call of a built-in by its name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module.split(".")[0], *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            found.add(node.func.id)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.add(f"allow_pickle={ast.unparse(node.value)}")
    return found


def test_no_module_runs_what_a_file_says() -> None:
    forbidden = RUNNING | {"eval", "exec", "allow_pickle=True", "yaml.unsafe_load", "yaml.full_load"}
    modules = sorted(ROOT.rglob("*.py"))
    assert len(modules) > 100
    assert {str(path): found for path in modules if (found := names_in(path) & forbidden)} == {}


def test_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import pickle\nfrom torch import load\ntorch.jit.load('x')\neval('1')\nnp.load(p, allow_pickle=True)\n"
    )
    assert {"pickle", "torch.load", "torch.jit.load", "eval", "allow_pickle=True"} <= names_in(path)
