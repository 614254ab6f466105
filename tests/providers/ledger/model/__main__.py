"""`python -m tests.providers.ledger.model [quick|slow|long ...] [--states N]`: explore the shapes.

It prints a line for each shape: the quorum, the number of spare bookies, the bounds and the number
of states. With a violation the exit code is 1, and the path to the violation is printed.
"""

from __future__ import annotations

import argparse
import sys

from .explorer import STATES_MAX, explore
from .judging import Violation
from .shapes import GROUPS
from .world import Shape

COUNTS = f"{'states':>8} {'moves':>9} {'depth':>5} {'s':>6}"
HEAD = f"{'quorum':7} {'spare':>5}  {'what may happen':68} {COUNTS}"


def line(shape: Shape, states_max: int) -> str:
    """Explore a shape, and return its line. Raises Violation."""
    found = explore(shape, states_max)
    more = "" if found.is_whole else "  not all"
    counts = f"{found.states:8} {found.moves:9} {found.depth:5} {found.seconds:6.1f}"
    return f"{shape.quorum_text:7} {shape.spares:5}  {shape.bounds_text:68} {counts}{more}"


def main() -> int:
    """Explore the groups in the arguments, or all groups."""
    parser = argparse.ArgumentParser(prog="model")
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--states", type=int, default=STATES_MAX, help="stop there")
    said = parser.parse_args()
    if unknown := set(said.groups) - set(GROUPS):
        parser.error(f"no group is named {', '.join(sorted(unknown))}: {', '.join(GROUPS)}")
    print(HEAD)
    for group in said.groups or GROUPS:
        for shape in GROUPS[group]:
            try:
                print(line(shape, said.states), flush=True)
            except Violation as found:
                print(f"{shape.quorum_text}, {shape.bounds_text}: {found}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
