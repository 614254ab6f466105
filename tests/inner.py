"""Finds the inner modules of the product that each file under `tests` uses, directly or not.

All modules except the public ones are inner. A pure module only decides: it has no I/O, clock or
coroutines. A test of a pure module depends on its inputs and outputs only. A test of another inner
module has to change with the construction of that module.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.imports import ROOT, absolute, files, imported, package_of, packages

OUTSIDE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "signal", "subprocess", "threading"),
    *("aiohttp", "psycopg", "redis", "select", "selectors", "socket", "socketserver", "ssl"),
    *("fcntl", "io", "mmap", "os", "pathlib", "shutil", "sqlite3", "tempfile"),
    *("datetime", "random", "secrets", "time"),
}
"""Modules for coroutines, threads, processes, sockets, services, files, clock and chance."""


@functools.cache
def faces() -> frozenset[str]:
    """Return the public modules."""
    return frozenset(
        name for name, path in files().items() if "\npublish(__name__)\n" in path.read_text()
    )


@functools.cache
def exports() -> dict[str, str]:
    """Return the names that packages and public modules re-export, with the origin of each name."""
    return {
        f"{module}.{name.rpartition('.')[2]}": name
        for module in {*packages(), *faces()}
        for name in imported(files()[module])
        if name.rpartition(".")[0] in files()
    }


def home_of(name: str) -> str | None:
    """Return the module that defines a module or name, behind re-exports; None if it is not
    ours."""
    while name not in files() and name in exports():
        name = exports()[name]
    while name and name not in files():
        name = name.rpartition(".")[0]
    return name or None


def names_imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield imported modules, and `module.name` for each name, without imports for type
    checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        yield from names_imported(node, package)


class Use(NamedTuple):
    """The imports and effects of a module itself.

    `needed`: the modules that it imports at runtime, without those that it reaches through a public
    module. `is_outside`: it uses asyncio, sockets, files, threads or the clock.
    """

    needed: frozenset[str]
    is_outside: bool
    has_coroutines: bool


@functools.cache
def use_of(module: str) -> Use:
    path = files()[module]
    tree = ast.parse(path.read_text())
    names = set(names_imported(tree, package_of(path)))
    nodes = list(ast.walk(tree))
    homes = {
        home_of(name)
        for name in names
        if name not in faces() and name.rpartition(".")[0] not in faces()
    }
    return Use(
        frozenset(home for home in homes if home and home not in {module, *faces()}),
        any(name.partition(".")[0] in OUTSIDE for name in names)
        or any(
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open" for node in nodes
        ),
        any(isinstance(node, ast.AsyncFunctionDef) for node in nodes),
    )


@functools.cache
def is_pure(module: str) -> bool:
    """Is a module free of coroutines, and free of outside effects together with its imports?"""
    if use_of(module).has_coroutines:
        return False
    seen, left = {module}, [module]
    while left:
        one = left.pop()
        if use_of(one).is_outside:
            return False
        left.extend(use_of(one).needed - seen)
        seen |= use_of(one).needed
    return True


@functools.cache
def files_of_tests() -> dict[str, Path]:
    """Return each module and package under `tests`, and its file."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths}
    return {
        ".".join(names[:-1] if path.name == "__init__.py" else names): path
        for path, names in parts.items()
    }


@functools.cache
def all_of(face: str) -> frozenset[str]:
    """Return the names in `__all__` of a public module."""
    for node in ast.parse(files()[face].read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


@functools.cache
def commands() -> frozenset[str]:
    """Return the functions that the package installs as commands, which are public, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return frozenset(place.replace(":", ".") for place in project["scripts"].values())


def inner_modules(names: Iterable[str]) -> frozenset[str]:
    """Find the inner modules among imported names; a public name counts where it is exported."""
    found = set[str]()
    for name in names:
        base, _, last = name.rpartition(".")
        if name in faces() | commands() or (base in faces() and last in all_of(base)):
            continue
        home = home_of(name)
        if home and home.startswith("millstream.") and home not in faces():
            found.add(home)
    return frozenset(found)


def tests_imported(names: Iterable[str], known: Collection[str]) -> frozenset[str]:
    """Find the files under `tests` among imported names."""
    found = set[str]()
    for name in names:
        while name and name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return frozenset(found - {""})


class Reach(NamedTuple):
    """The tests by the inner modules that they use: only pure ones, or others, too."""

    lines: int
    pure: dict[str, int]
    others: dict[str, int]

    @property
    def share(self) -> float:
        """The share of lines under `tests` in files that use inner modules that are not pure."""
        return sum(self.others.values()) / self.lines


def reach_of(sources: Mapping[str, str]) -> Reach:
    """Find the inner modules that test modules use, from their sources."""
    own, tests = dict[str, frozenset[str]](), dict[str, frozenset[str]]()
    for name, source in sources.items():
        path = files_of_tests().get(name)
        package = name if path and path.name == "__init__.py" else name.rpartition(".")[0]
        names = set(names_imported(ast.parse(source), package))
        own[name] = inner_modules(names)
        tests[name] = tests_imported(names, sources)
    inner = _with_importers({name for name in own if own[name]}, tests)
    acting = {name for name in own if not all(map(is_pure, own[name]))}
    others = _with_importers(acting, tests)
    lines = {name: len(source.splitlines()) for name, source in sources.items()}
    return Reach(
        sum(lines.values()),
        {name: lines[name] for name in sorted(inner - others)},
        {name: lines[name] for name in sorted(others)},
    )


def _with_importers(found: set[str], tests: Mapping[str, frozenset[str]]) -> set[str]:
    while new := {name for name, needs in tests.items() if needs & found} - found:
        found |= new
    return found
