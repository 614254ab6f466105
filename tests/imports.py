"""What imports what, as text says it: relative and absolute imports, those for types and those
inside functions included. Used by the tests of the code's shape."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ("runtime", "streams", "providers", "balancers", "console")
PROGRAMS = ("tests/sim/suites", "tests/sim/__main__.py", "examples/flights")
"""Beside the product, and under the same rules; their modules are named from the root."""


def sources() -> Iterator[Path]:
    """Every file of the product, then those of the programs."""
    for place in (*FOLDERS, *PROGRAMS):
        path = ROOT / place
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def module_of(path: Path) -> str:
    """`millstream.runtime.turns.mailbox` for its file; a package for its `__init__.py`."""
    folder, *parts = path.relative_to(ROOT).with_suffix("").parts
    if folder not in FOLDERS:
        parts = [folder, *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Look(NamedTuple):
    """What a source has. No tree is kept: every collection of garbage would go through it.

    `imported`: every module or name, absolute, and `module.name` for each name. `attributes`: with
    their owners. `functions`: name, line and number of lines.
    """

    imported: frozenset[str]
    attributes: frozenset[tuple[str, str]]
    functions: tuple[tuple[str, int, int], ...]
    is_documented: bool


@functools.cache
def look_at(path: Path) -> Look:
    return look(path.read_text(), package_of(path))


def look(source: str, package: str) -> Look:
    """A module's source; the type of UUIDs alone counts as no import of `uuid`."""
    tree = ast.parse(source.replace("from uuid import UUID\n", "\n"))
    attributes, functions = set[tuple[str, str]](), list[tuple[str, int, int]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            attributes.add((owner, node.attr))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            functions.append((node.name, node.lineno, lines))
    return Look(
        frozenset(imports_in(tree, package)),
        frozenset(attributes),
        tuple(functions),
        not source.strip() or ast.get_docstring(tree) is not None,
    )


def imported(path: Path) -> frozenset[str]:
    """Every module or name that a file imports, absolute, and `module.name` for each name."""
    return look_at(path).imported


def package_of(path: Path) -> str:
    module = module_of(path)
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def imports_in(source: str | ast.Module, package: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source) if isinstance(source, str) else source):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *((node.module or "").split(".") if node.module else ())])


def graph(folder: str) -> dict[str, set[str]]:
    """Modules of a folder and which of the others each imports; packages count as their modules."""
    base = ROOT / folder / "millstream" / folder
    files = {module_of(path): path for path in base.rglob("*.py") if path.name != "__init__.py"}
    return {name: {*imported(path) & files.keys()} - {name} for name, path in files.items()}


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a round (strongly connected, Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            at = stack.index(node)
            circle = stack[at:]
            del stack[at:]
            if len(circle) > 1:
                found.append(sorted(circle))

    for node in edges:
        if node not in number:
            visit(node)
    return found
