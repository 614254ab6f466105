"""`python -m tests.mutants ROOM ... [--sample N [--seed S]] [--only FILE] [--jobs N]`.

Finds faults that no test detects.

The command prints each such fault, and a table at the end. It ends with exit code 1 if tests of a
package detect less than 95 % of its faults, or detect a fault that is listed as equivalent. No
mutation tool from PyPI is used: the maintained ones rewrite one source root and import it again for
each fault.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from dataclasses import dataclass, field

from .planting import ROOT, Mutant, mutants_of, source_of
from .rooms import ROOMS
from .spreading import spread
from .trials import Trials, with_tests

SEEN_SHARE_MIN = 0.95


@dataclass
class Row:
    """The figures of one module."""

    module: str
    planted: int = 0
    seen: int = 0
    equivalent: int = 0
    seen_equivalents: int = 0

    def __str__(self) -> str:
        share = 100 * self.seen / max(self.planted, 1)
        counts = f"{self.planted:7} {self.seen:6} {share:7.1f} % {self.equivalent:11}"
        return f"{self.module:52} {counts}"


@dataclass
class Judge:
    """Plants the faults of the chosen packages, and counts the detected ones."""

    rooms: list[str]
    sample: int
    seed: int
    only: str
    jobs: int = 1
    is_content: bool = True
    rows: list[Row] = field(default_factory=list)

    def judge(self, trials: Trials) -> None:
        """Judge each chosen module of each package."""
        asked = [(room, path) for room in self.rooms for path in ROOMS[room] if self.only in path]

        def judge_one(number: int) -> Row:
            room, path = asked[number]
            return self.judge_module(trials, path, ROOMS[room][path])

        rows = spread(len(asked), self.jobs, judge_one)
        self.rows = [rows[number] for number in sorted(rows)]
        for number in sorted(set(range(len(asked))) - set(rows)):
            self.is_content = False
            tell(f"{asked[number][1]}: not judged, its process failed")
        for room in self.rooms:
            self.sum_up([row for number, row in rows.items() if asked[number][0] == room])

    def sum_up(self, rows: list[Row]) -> None:
        """Check the share of detected faults of a package, and that no equivalent fault was
        detected."""
        planted, seen = sum(row.planted for row in rows), sum(row.seen for row in rows)
        wrong = sum(row.seen_equivalents for row in rows)
        self.is_content = self.is_content and seen >= SEEN_SHARE_MIN * planted and not wrong

    def tell_table(self) -> None:
        """Print a row for each module, and the sum."""
        tell(f"{'module':52} {'planted':>7} {'seen':>6} {'':>9} {'equivalents':>11}")
        total = Row("all")
        for row in self.rows:
            tell(str(row))
            total.planted, total.seen = total.planted + row.planted, total.seen + row.seen
            total.equivalent += row.equivalent
        tell(str(total))

    def judge_module(self, trials: Trials, module: str, tests: tuple[str, ...]) -> Row:
        """Plant all faults of one module, or a sample."""
        took_s = trials.prepare(module, tests)
        chosen = list(mutants_of(module))
        tell(f"{module}: {len(chosen)} faults, tests take {took_s:.1f} s")
        if 0 < self.sample < len(chosen):
            chosen = random.Random(f"{self.seed}/{module}").sample(chosen, self.sample)
        row = Row(module)
        for mutant in chosen:
            self.count(row, mutant, trials.seen(mutant))
        return row

    def count(self, row: Row, mutant: Mutant, is_seen: bool) -> None:
        """Count a fault, and print it if the result is wrong."""
        if mutant.is_equivalent:
            row.equivalent += 1
            if is_seen:
                row.seen_equivalents += 1
                tell(f"  listed as equivalent, and seen: {mutant.name}")
            return
        row.planted += 1
        row.seen += is_seen
        if not is_seen:
            tell(f"  survived, line {mutant.line}: {mutant.name}")


def tell(text: str) -> None:
    """Print to the original standard output, which pytest replaces."""
    print(text, file=sys.__stdout__, flush=True)


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line; end the program if they are invalid."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("rooms", nargs="*", help=f"of {', '.join(ROOMS)}; default: all")
    parser.add_argument("--sample", type=int, default=0, help="faults per module; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="decides the sample")
    parser.add_argument("--only", default="", help="only modules with this in their path")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    said = parser.parse_args()
    if said.jobs < 1:
        parser.error(f"--jobs is {said.jobs}: one or more")
    if unknown := set(said.rooms) - set(ROOMS):
        parser.error(f"no room is named {', '.join(sorted(unknown))}: {', '.join(ROOMS)}")
    return said


def main() -> int:
    """Judge the named packages, or all."""
    said = arguments()
    os.chdir(ROOT)
    judge = Judge(said.rooms or list(ROOMS), said.sample, said.seed, said.only, said.jobs)
    paths = {test for room in judge.rooms for tests in ROOMS[room].values() for test in tests}
    for module in (path for room in judge.rooms for path in ROOMS[room]):
        source_of(module)
    status = with_tests(sorted(paths), judge.judge)
    judge.tell_table()
    return status or (0 if judge.is_content else 1)


if __name__ == "__main__":
    sys.exit(main())
