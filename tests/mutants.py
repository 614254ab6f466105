"""Small faults planted in the cores of a room: its tests must see them. `make mutants [ROOM=...]`.

`python tests/mutants.py ROOM ... [--sample N] [--seed S] [--jobs J]`: plants one fault at a time in
a copy of the tree, runs the room's tests on it, and says per module how many were seen. Who
survives is printed; survivors that change nothing that anybody could see are listed, with the
reason, in `mutants_equivalent.txt` and are not planted. Exit code 1: less than 95 % were seen.
No tool from a package index: those that are kept rewrite one source root and import it by itself;
here five roots make one namespace package.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
FOLDERS = ("runtime", "streams", "providers", "balancers", "console")
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
SEEN_SHARE_MIN = 0.95
LIMIT_FACTOR, LIMIT_SPARE_S = 4.0, 15.0

RUNTIME, STREAMS = "runtime/millstream/runtime", "streams/millstream/streams"
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "turns": (
        tuple(f"{RUNTIME}/turns/{name}.py" for name in ("turn_rule", "mailbox", "activation")),
        tuple(
            f"tests/runtime/turns/test_{name}.py"
            for name in ("turn_rule_model", "turn_rule", "contended_calls", "life_cycle")
        ),
    ),
    "cluster": (
        (f"{RUNTIME}/cluster/votes.py", f"{RUNTIME}/cluster/directory/partition.py"),
        ("tests/runtime/cluster/test_votes_ring_partition.py",),
    ),
    "wire": (
        (f"{RUNTIME}/wire/framing.py",),
        ("tests/runtime/wire/test_frames.py", "tests/runtime/wire/test_connection_garbage.py"),
    ),
    "agent": (
        tuple(f"{STREAMS}/agent/{name}.py" for name in ("flow", "cache", "delivery")),
        ("tests/streams/agent",),
    ),
    "ownership": ((f"{STREAMS}/ownership/decision.py",), ("tests/streams/ownership",)),
}
"""Cores of each room, and the tests that must see what is wrong with them."""

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
    """One fault. `name` stays the same when lines move."""

    module: str
    name: str
    line: int
    source: str


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become: (kind of fault, node)."""
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
        case ast.If() | ast.While():
            negated = copy.copy(node)
            negated.test = ast.UnaryOp(ast.Not(), node.test)
            yield "condition", negated
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign() | ast.AugAssign():
            yield "statement", ast.Pass()
        case _:
            pass


class Planter(ast.NodeTransformer):
    """Replaces the n-th node that may change, or counts them."""

    def __init__(self, wanted: int = -1) -> None:
        self._wanted = wanted
        self._scope: list[str] = []
        self._functions = 0
        self.found: list[tuple[str, int]] = []  # (name, line)

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_function = not isinstance(node, ast.ClassDef)
            self._scope.append(node.name)
            self._functions += is_function
            found = self.generic_visit(node)
            self._functions -= is_function
            self._scope.pop()
            return found
        in_function = bool(self._functions) and not isinstance(node, ast.Assert)
        for kind, changed in changes(node) if in_function else ():
            text = ast.unparse(node).splitlines()[0]
            self.found.append((f"{'.'.join(self._scope)} | {kind} | {text}", _line(node)))
            if len(self.found) - 1 == self._wanted:
                return ast.copy_location(changed, node)
        return node if isinstance(node, ast.Assert) else self.generic_visit(node)


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def mutants_of(module: str) -> list[Mutant]:
    """Every fault of a module that is not known to change nothing."""
    source, known = (ROOT / module).read_text(), equivalents()
    counter = Planter()
    counter.visit(ast.parse(source))
    made: list[Mutant] = []
    for number, (name, line) in enumerate(counter.found):
        if f"{module} | {name}" not in known:
            tree = Planter(number).visit(ast.parse(source))
            made.append(Mutant(module, name, line, ast.unparse(ast.fix_missing_locations(tree))))
    return made


def equivalents() -> dict[str, str]:
    """`module | scope | kind | text` to the reason why nobody can see it."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    pairs = (line.rpartition(" # ") for line in lines if line and not line.startswith("#"))
    return {name.strip(): reason for name, _, reason in pairs}


class Trees:
    """Copies of the tree, one for each job."""

    def __init__(self, work: Path, jobs: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            tree = work / str(number)
            skip = shutil.ignore_patterns("__pycache__", ".*")
            for folder in (*FOLDERS, "tests", "benchmarks"):
                shutil.copytree(ROOT / folder, tree / folder, ignore=skip)
            shutil.copy(ROOT / "pyproject.toml", tree)
            self._free.put(tree)

    def seen(self, mutant: Mutant, tests: tuple[str, ...], limit_s: float) -> bool:
        """Do the tests fail, or not end, with the fault in place?"""
        tree = self._free.get()
        path = tree / mutant.module
        kept = path.read_text()
        path.write_text(mutant.source)
        try:
            return run_tests(tree, tests, limit_s) != 0
        finally:
            path.write_text(kept)
            self._free.put(tree)


def run_tests(tree: Path, tests: tuple[str, ...], limit_s: float) -> int:
    """The exit code; 1 after the limit."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(str(tree / part) for part in (*FOLDERS, ""))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    marks = ["-m", "not real and not spark and not slow"]
    try:
        return subprocess.run(
            [*command, *marks, *tests],
            cwd=tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
        ).returncode
    except subprocess.TimeoutExpired:
        return 1


def judge(room: str, sample: int, seed: int, jobs: int, tell: Callable[[str], None]) -> bool:
    """Plant faults in a room; returns whether enough were seen."""
    import time

    modules, tests = ROOMS[room]
    with tempfile.TemporaryDirectory(prefix="millstream-mutants-") as work:
        trees = Trees(Path(work), jobs)
        started_s = time.monotonic()
        if all(run_tests(Path(work) / "0", tests, 600) for _ in range(2)):  # once may be bad luck
            raise SystemExit(f"{room}: its tests fail without any fault")
        limit_s = LIMIT_FACTOR * (time.monotonic() - started_s) + LIMIT_SPARE_S
        planted = seen = 0
        for module in modules:
            chosen = mutants_of(module)
            if sample and sample < len(chosen):
                chosen = random.Random(f"{seed}/{module}").sample(chosen, sample)
            with ThreadPoolExecutor(jobs) as pool:
                results = list(pool.map(lambda one: trees.seen(one, tests, limit_s), chosen))
            survivors = [one for one, was_seen in zip(chosen, results, strict=True) if not was_seen]
            tell(f"{module}: {len(chosen) - len(survivors)} of {len(chosen)} seen")
            for one in survivors:
                tell(f"  survived, line {one.line}: {module} | {one.name}")
            planted, seen = planted + len(chosen), seen + len(chosen) - len(survivors)
    return seen >= SEEN_SHARE_MIN * planted


def main() -> int:
    """Run the rooms that are named, or all."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("rooms", nargs="*", help=f"of {', '.join(ROOMS)}; default: all")
    parser.add_argument("--sample", type=int, default=0, help="faults per module; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="decides the sample")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    unknown = set(arguments.rooms) - set(ROOMS)
    if unknown:
        parser.error(f"no room is named {', '.join(sorted(unknown))}: {', '.join(ROOMS)}")
    tell = lambda text: print(text, flush=True)  # noqa: E731
    judged = [
        judge(room, arguments.sample, arguments.seed, arguments.jobs, tell)
        for room in arguments.rooms or ROOMS
    ]
    return 0 if all(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
