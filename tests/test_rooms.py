"""The house: a room imports only from rooms above it, and no module grows past what one can read at a sitting."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import protoformer

ROOT = Path(protoformer.__file__).parent
ROOMS = ("files", "geometry", "world", "data", "model", "metrics", "training", "inference", "show", "app")
OPTIONAL = frozenset({"av", "gradio", "ray", "onnx", "onnxruntime", "matplotlib", "pydantic", "skimage"})
LONGEST = 400
MODULES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room a module lives in; that of a module at the top is its own name."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path, statements: Iterator[ast.AST]) -> Iterator[str]:
    """Full names of everything that import statements among these bring in."""
    package = ("protoformer", *path.relative_to(ROOT).parent.parts)
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{source}.{alias.name}" for alias in node.names)


def while_loading(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement that runs when a module is imported: all but the bodies of functions and checks of types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield node
        yield from while_loading(node)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_every_folder_is_a_room() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders <= set(ROOMS)
    assert {"files", "geometry", "world", "model", "training", "inference", "show", "app"} <= folders


def test_only_errors_live_outside_the_rooms() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_above_it(room: str) -> None:
    allowed = {"errors", *ROOMS[: ROOMS.index(room) + 1]}
    for path in (path for path in MODULES if room_of(path) == room):
        for name in imported(path, ast.walk(parsed(path))):
            package, *rest = name.split(".")
            if package == "protoformer":
                # The version is the one thing of the package itself that a room may read.
                assert rest[0] in allowed or rest == ["__version__"], f"{path.relative_to(ROOT)} imports {name}"


def test_errors_need_nothing() -> None:
    assert list(imported(ROOT / "errors.py", ast.walk(parsed(ROOT / "errors.py")))) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_can_be_read_at_a_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_optional_packages_are_imported_where_they_are_used(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported(path, while_loading(parsed(path)))}
    assert not outside & OPTIONAL


def test_the_search_for_imports_finds_them_all() -> None:
    source = """
import av
try:
    from ray import data
except ImportError:
    pass
class A:
    import onnx.helper
def f():
    import gradio
if TYPE_CHECKING:
    import matplotlib
from . import sibling
from ..world import noise
"""
    path = ROOT / "show" / "page.py"
    names = list(imported(path, while_loading(ast.parse(source))))
    assert sorted(names) == ["av", "onnx.helper", "protoformer.show.sibling", "protoformer.world.noise", "ray.data"]
    assert "gradio" in set(imported(path, ast.walk(ast.parse(source))))
