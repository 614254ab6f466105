"""Reads classes from source text: their bases, methods and fields, and the functions that use their
private fields from outside. The tests of the code's shape use this module."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import NamedTuple

from tests.imports import absolute, files, package_of

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Method(NamedTuple):
    """The parameters of a method. `takes_more`: the method has `*args`."""

    parameters: tuple[str, ...]
    is_async: bool
    by_position: bool
    takes_more: bool


class Definition(NamedTuple):
    """One class. `fields`: the names that its body declares and that its methods set on `self`."""

    module: str
    name: str
    bases: tuple[str, ...]
    methods: dict[str, Method]
    fields: frozenset[str]

    @property
    def is_protocol(self) -> bool:
        return any(base.endswith("Protocol") for base in self.bases)


class Text(NamedTuple):
    """One module: its classes, the absolute name of each name in it, the private fields that its
    functions use, and the lines of calls that unpack a literal tuple."""

    classes: tuple[Definition, ...]
    names: dict[str, str]
    reaches: tuple[tuple[str, str], ...]
    unpacking: tuple[int, ...]


@functools.cache
def texts() -> dict[str, Text]:
    """Return each module and package; syntax trees are not kept."""
    return {
        module: text_of(path.read_text(), module, package_of(path))
        for module, path in files().items()
    }


def text_of(source: str, module: str, package: str) -> Text:
    nodes = list(ast.walk(ast.parse(source)))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    names = {node.name: f"{module}.{node.name}" for node in classes} | {
        alias.asname or alias.name: f"{absolute(node, package)}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return Text(
        tuple(_definition(node, module, names) for node in classes),
        names,
        tuple(_reaches(nodes, classes, module, names)),
        tuple(node.lineno for node in nodes if isinstance(node, ast.Call) and _unpacks(node)),
    )


def _definition(node: ast.ClassDef, module: str, names: dict[str, str]) -> Definition:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    found = tuple(names.get(text, text) for text in map(ast.unparse, bases))
    methods = {one.name: _method(one) for one in node.body if isinstance(one, FUNCTIONS)}
    return Definition(module, node.name, found, methods, frozenset(_fields(node)))


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Method:
    names = tuple(one.arg for one in (*node.args.posonlyargs, *node.args.args))
    is_async = isinstance(node, ast.AsyncFunctionDef)
    return Method(names, is_async, bool(node.args.posonlyargs), node.args.vararg is not None)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        for target in _targets(one):
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
    for inner in ast.walk(node):
        for target in _targets(inner):
            for name in ast.walk(target):
                if isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name):
                    yield name.attr


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _reaches(
    nodes: list[ast.AST], classes: list[ast.ClassDef], module: str, names: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Find the functions that use a private field of a parameter, and the class of that
    parameter."""
    inside = {function: f"{module}.{cls.name}" for cls in classes for function in cls.body}
    for node in nodes:
        if isinstance(node, FUNCTIONS):
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                owners = {*_annotated(one, names)} - {inside.get(node)}
                if owners and _is_reached_into(node, one.arg):
                    yield from ((f"{module}.{node.name}", owner) for owner in owners)


def _annotated(one: ast.arg, names: dict[str, str]) -> Iterator[str]:
    for part in ast.walk(one.annotation) if one.annotation is not None else ():
        if isinstance(part, ast.Name) and part.id in names:
            yield names[part.id]


def _is_reached_into(function: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        and node.attr.startswith("_")
        and not node.attr.startswith(("__", "_replace", "_asdict", "_fields"))
        for node in ast.walk(function)
    )


def _unpacks(call: ast.Call) -> bool:
    """Does a call unpack a tuple or list that is written in the call itself?"""
    starred = [one.value for one in call.args if isinstance(one, ast.Starred)]
    return any(isinstance(one, ast.Tuple | ast.List) for one in starred)


@functools.cache
def definitions() -> dict[str, Definition]:
    """Return each class by its absolute name."""
    return {f"{one.module}.{one.name}": one for text in texts().values() for one in text.classes}


def home_of(name: str) -> str:
    """Return the absolute name of a class in the module that defines it, for a re-exported class,
    too."""
    while name not in definitions():
        module, _, last = name.rpartition(".")
        further = texts()[module].names.get(last, name) if module in texts() else name
        if further == name:
            return name
        name = further
    return name


@functools.cache
def lineage(name: str) -> list[Definition]:
    """Return a class and the project's classes that it inherits from; the class itself comes
    first."""
    found = definitions().get(home_of(name))
    if found is None:
        return []
    return [found, *(one for base in found.bases for one in lineage(base))]


@functools.cache
def methods_of(name: str) -> dict[str, Method]:
    """Return the methods of a class, own and inherited."""
    return {key: way for one in reversed(lineage(name)) for key, way in one.methods.items()}


@functools.cache
def reaching() -> dict[str, set[str]]:
    """Return the functions that use private fields of each class."""
    found: dict[str, set[str]] = {}
    for text in texts().values():
        for function, owner in text.reaches:
            found.setdefault(home_of(owner), set()).add(function)
    return found


def size_of(name: str) -> int:
    """Count the methods of a class and the functions that use its private fields."""
    return len(methods_of(name)) + len(reaching().get(name, ()))


@functools.cache
def members_of(name: str) -> frozenset[str]:
    """Return the methods and fields of a class, own and inherited."""
    return frozenset(key for one in lineage(name) for key in (*one.methods, *one.fields))


def implements(name: str, protocol: str) -> bool:
    """Does a class have all members of a Protocol, with the same parameters?"""
    methods, wanted = methods_of(name), methods_of(protocol)
    return members_of(protocol) <= members_of(name) and all(
        _fits(methods[key], way) for key, way in wanted.items() if key in methods
    )


def _fits(way: Method, wanted: Method) -> bool:
    if way.is_async != wanted.is_async:
        return False
    if way.takes_more:
        return True
    if wanted.by_position:
        return len(way.parameters) >= len(wanted.parameters)
    return way.parameters[: len(wanted.parameters)] == wanted.parameters


def implementers(protocol: str) -> list[str]:
    """Return the classes of the project that implement a Protocol."""
    return [
        name
        for name, one in definitions().items()
        if not one.is_protocol and implements(name, protocol)
    ]
