"""Reads imports from source text: relative and absolute ones, those for types, and those inside
functions. The tests of the code's shape use this module."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ("runtime", "streams", "providers", "balancers", "console")
PROGRAMS = ("tests/sim/suites", "tests/sim/__main__.py", "examples/flights")
"""Programs beside the product, under the same rules. Their modules are named from the root."""


def sources() -> Iterator[Path]:
    """Yield each file of the product, then each file of the programs."""
    for place in (*FOLDERS, *PROGRAMS):
        path = ROOT / place
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def module_of(path: Path) -> str:
    """Return `millstream.runtime.turns.mailbox` for its file; a package is named by its
    `__init__.py`."""
    folder, *parts = path.relative_to(ROOT).with_suffix("").parts
    if folder not in FOLDERS:
        parts = [folder, *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Look(NamedTuple):
    """The facts about a source. Syntax trees are not kept, because garbage collection would be
    slow.

    `imported`: each module or name, absolute, and `module.name` for each name. `attributes`:
    attributes with their owners. `functions`: name, line and number of lines.
    """

    imported: frozenset[str]
    attributes: frozenset[tuple[str, str]]
    functions: tuple[tuple[str, int, int], ...]
    is_documented: bool


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@functools.cache
def look_at(path: Path) -> Look:
    return look(path.read_text(), package_of(path))


def look(source: str, package: str) -> Look:
    """Read the source of a module. An import of the type `UUID` alone does not count as one of
    `uuid`."""
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


AREAS = (
    "millstream.providers.ledger",
    "millstream.providers.priority",
    "tests.sim.suites",
    "examples.flights",
)
"""Parts with packages of their own, beside the folders and each package of `providers`."""


def area_of(module: str) -> str:
    """Return the part of the project that a module is in: a folder, a provider or a program."""
    for area in AREAS:
        if f"{module}.".startswith(f"{area}."):
            return area
    parts = module.split(".")
    is_provider = parts[:2] == ["millstream", "providers"]
    return ".".join(parts[:3] if is_provider else parts[: 2 if parts[0] == "millstream" else 1])


@functools.cache
def files() -> dict[str, Path]:
    """Return each module and package, and its file."""
    return {module_of(path): path for path in sources()}


@functools.cache
def packages() -> dict[str, Path]:
    """Return each package and its `__init__.py`."""
    return {name: path for name, path in files().items() if path.name == "__init__.py"}


def packages_imported(package: str) -> set[str]:
    """Return the packages that the modules of a package import, by the names in its `__init__`.

    A package of another area has the name of that area. A package of the same area has its name
    within the area if both are below the same first package; otherwise it has the name of its first
    package. Single modules of an area have the name of the area.
    """
    return {_name_for(package, place) for place in _places_imported(package)}


def _places_imported(package: str) -> set[str]:
    """Find the packages that the modules of a package import, except those inside of it."""
    inits, modules, found = packages(), files(), set()
    for path in inits[package].parent.rglob("*.py"):
        for name in imported(path):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            place = name if name in inits else name.rpartition(".")[0]
            if place and not f"{place}.".startswith(f"{package}."):
                found.add(place)
    return found


def _name_for(package: str, place: str) -> str:
    area = area_of(package)
    if area_of(place) != area:
        return area_of(place).removeprefix("millstream.")
    if place == area:
        return area.removeprefix("millstream.").removeprefix("tests.sim.")
    within, own = (name.removeprefix(f"{area}.") for name in (place, package))
    if package == area or within.split(".")[0] != own.split(".")[0]:
        within = within.split(".")[0]
    return f"suites.{within}" if area == "tests.sim.suites" else within


def imported(path: Path) -> frozenset[str]:
    """Return each module or name that a file imports, absolute, and `module.name` for each name."""
    return look_at(path).imported


def package_of(path: Path) -> str:
    module = module_of(path)
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and all its statements, without expressions: a walk of a fraction of the
    nodes."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for block in BLOCKS:
            left.extend(getattr(node, block, ()))


def imports_in(source: str | ast.Module, package: str) -> set[str]:
    found: set[str] = set()
    for node in statements_of(ast.parse(source) if isinstance(source, str) else source):
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
    """Return the modules of a folder, and the others that each imports. Packages count as their
    modules."""
    base = ROOT / folder / "millstream" / folder
    files = {module_of(path): path for path in base.rglob("*.py") if path.name != "__init__.py"}
    return {name: {*imported(path) & files.keys()} - {name} for name, path in files.items()}


def importers(faces: Collection[str]) -> dict[str, set[str]]:
    """Return the modules that import each module, directly or through a package or public module.

    A module that imports a re-exported name counts as an importer of the module that defines the
    name. The package or public module in between does not count.
    """
    passing = {*packages(), *faces}
    exported = {
        f"{face}.{name.rpartition('.')[2]}": name
        for face in passing
        for name in imported(files()[face])
        if name.rpartition(".")[0] in files()
    }
    found: dict[str, set[str]] = {name: set() for name in files()}
    for module in files().keys() - passing:
        for name in imported(files()[module]):
            while name in exported and name not in files():
                name = exported[name]
            module_named = name if name in files() else name.rpartition(".")[0]
            if module_named in files() and module_named != module:
                found[module_named].add(module)
    return found


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Find groups of modules that import each other in a circle (strongly connected, Tarjan)."""
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
