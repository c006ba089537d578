"""Count modules, lines, lines of docstrings and lines of code, by folder of the package.

    python benchmarks/size.py
    python benchmarks/size.py --source ../other/src/protoformer --json out/size.json

Lines of code are neither blank, nor comments, nor docstrings.
"""

import argparse
import ast
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from protoformer.io.files import write_atomically


@dataclass(frozen=True)
class Size:
    """Size of a set of modules.

    Attributes:
        modules: Number of modules.
        lines: All lines.
        docstrings: Lines of docstrings.
        code: Lines that are neither blank, nor comments, nor docstrings.
    """

    modules: int
    lines: int
    docstrings: int
    code: int


def count_lines(path: Path) -> Counter[str]:
    """Count the lines of one module by kind."""
    text = path.read_text(encoding="utf-8")
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [line.strip() for line in text.splitlines()]
    code = sum(
        bool(line) and not line.startswith("#") and number not in documented for number, line in enumerate(lines, 1)
    )
    return Counter(modules=1, lines=len(lines), docstrings=len(documented), code=code)


def measure(source: Path) -> dict[str, Size]:
    """Count the lines of each folder of a package, largest first, and their total, by name of the folder."""
    folders: dict[str, Counter[str]] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts
        folders.setdefault(parts[0] if len(parts) > 1 else ".", Counter()).update(count_lines(path))
    total: Counter[str] = sum(folders.values(), Counter())
    ranked = sorted(folders.items(), key=lambda item: -item[1]["lines"])
    return {name: Size(**counts) for name, counts in [*ranked, ("total", total)]}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source",
        type=Path,
        default=Path(__file__).parents[1] / "src" / "protoformer",
        help="folder of the package; default: this repository's",
    )
    parser.add_argument("--json", type=Path, help="output file for the figures")
    arguments = parser.parse_args()
    sizes = measure(arguments.source)
    table = Table("folder", *(name.replace("_", " ") for name in Size.__dataclass_fields__), box=None)
    for name, size in sizes.items():
        table.add_row(name, *(f"{value:,}" for value in asdict(size).values()))
    Console().print(table)
    if arguments.json:
        write_atomically(arguments.json, json.dumps({name: asdict(size) for name, size in sizes.items()}).encode())


if __name__ == "__main__":
    main()
