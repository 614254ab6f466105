"""The faults that a module may get. Pure, except for reading the module and the list of
equivalents.

Owns: `Mutant`, and the list in `equivalent.txt`. Not: running tests (`trials`), the choice of
modules (`rooms`). Invariants: a fault is in the body of a function, but not in a decorator, a
default, an assertion, or text for people (log lines, texts of errors, `__str__`). Its name does not
change when lines move. The function keeps its line and name, by which `trials` finds it.
"""

from __future__ import annotations

import ast
import copy
import functools
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
FOR_PEOPLE = ("__repr__", "__str__")

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: its name is `module | scope | kind | text`."""

    module: str
    name: str
    line: int
    tree: ast.Module
    is_equivalent: bool


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield possible replacements of a node: (kind of fault, node)."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            yield "comparison", ast.Compare(node.left, [COMPARE[type(op)]()], node.comparators)
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "boolean", ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node.operand
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield "constant+1", ast.Constant(value + 1)
            yield "constant-1", ast.Constant(value - 1)
        case ast.If() | ast.While() if not is_negated_within(node.test):
            negated = copy.copy(node)
            negated.test = ast.UnaryOp(ast.Not(), node.test)
            yield "condition", negated
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign() | ast.AugAssign():
            yield "statement", ast.Pass()
        case _:
            pass


def is_negated_within(test: ast.expr) -> bool:
    """Is the opposite of the condition already one of its faults?"""
    match test:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot()]):
            return True
        case ast.Compare(ops=[ast.In() | ast.NotIn()]) | ast.UnaryOp(op=ast.Not()):
            return True
        case _:
            return False


def is_for_people(node: ast.AST) -> bool:
    """Does only a person read this code?"""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
        case ast.FunctionDef(name=name):
            return name in FOR_PEOPLE
        case _:
            return isinstance(node, ast.JoinedStr | ast.Assert)


class Planter(ast.NodeTransformer):
    """Replaces the n-th node that may change, or counts such nodes."""

    def __init__(self, wanted: int = -1) -> None:
        self._wanted = wanted
        self._scope: list[str] = []
        self._functions = 0
        self._statement = ""
        self._dropped: ast.AST | None = None
        self._depth = 0  # enclosing scopes
        self._names: Counter[str] = Counter()
        self.found: list[tuple[str, int]] = []  # (name, line)

    def visit(self, node: ast.AST) -> ast.AST:
        if is_for_people(node):
            return node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return self._visit_scope(node)
        outer = self._statement
        if isinstance(node, ast.stmt):
            self._statement = first_line(node)
        for kind, changed in changes(node) if self._functions else ():
            self.found.append((self._name(kind, node), int(getattr(node, "lineno", 0))))
            if len(self.found) - 1 == self._wanted:
                # the negated condition is a fault of its own
                if not isinstance(node, ast.If | ast.While):
                    self._dropped, self._depth = node, len(self._scope)
                return ast.copy_location(changed, node)
        found = self.generic_visit(node)
        self._statement = outer
        return found

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        is_function = not isinstance(node, ast.ClassDef)
        self._scope.append(node.name)
        self._functions += is_function
        node.body = [found for one in node.body if isinstance(found := self.visit(one), ast.stmt)]
        if self._dropped is not None and self._depth == len(self._scope):
            node.body.append(unreachable(self._dropped))
            self._dropped = None
        self._functions -= is_function
        self._scope.pop()
        return node

    def _name(self, kind: str, node: ast.AST) -> str:
        text = first_line(node)
        where = "" if text == self._statement else f" in: {self._statement}"
        name = f"{'.'.join(self._scope)} | {kind} | {text}{where}"
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name} #{self._names[name]}"


def unreachable(node: ast.AST) -> ast.stmt:
    """Put the node where it never runs: the names in it stay variables of the same sort."""
    statement = node if isinstance(node, ast.stmt) else ast.Expr(typing.cast(ast.expr, node))
    return ast.copy_location(ast.If(ast.Constant(False), [statement], []), node)


def first_line(node: ast.AST) -> str:
    """Return the first line of the node as code."""
    return ast.unparse(node).splitlines()[0]


@functools.cache
def source_of(module: str) -> str:
    """Return the source of a module at the time of the first call: somebody may change it later."""
    return (ROOT / module).read_text()


def names_of(module: str) -> list[tuple[str, int]]:
    """Return (name, line) of each fault that a module may get."""
    counter = Planter()
    counter.visit(ast.parse(source_of(module)))
    return [(f"{module} | {name}", line) for name, line in counter.found]


def mutants_of(module: str) -> Iterator[Mutant]:
    """Yield each fault of a module."""
    source, known = source_of(module), equivalents()
    for number, (name, line) in enumerate(names_of(module)):
        tree = ast.parse(source)
        Planter(number).visit(tree)
        yield Mutant(module, name, line, ast.fix_missing_locations(tree), name in known)


def equivalents() -> dict[str, str]:
    """Return the reason of each equivalent fault, by its name."""
    lines = EQUIVALENT.read_text().splitlines()
    pairs = (line.rpartition(" # ") for line in lines if line and not line.startswith("#"))
    return {name.strip(): reason for name, _, reason in pairs}
