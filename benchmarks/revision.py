"""Another revision of this repository as a subject: its programs and its code, our workloads.

This module owns the temporary checkout, the environment of a child process there, and the verdict
on a row. The checkout is removed afterwards. Both sides run the same workloads (`WORKLOADS` of this
tree replace those of the other), each through the programs of its own revision.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "WORSE_SHARE",
    "best",
    "checked_out",
    "environment",
    "has_program",
    "is_rate",
    "is_revision",
    "is_worse",
]

ROOT = Path(__file__).parent.parent
ROOTS = ("runtime", "streams", "providers", "balancers", "console")
WORKLOADS = ("measure.py", "feed.py", "path.py", "flights.py", "priority/path.py")
WORSE_SHARE = 0.05


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )


def is_revision(name: str) -> bool:
    """Return whether git knows a commit of this name."""
    return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").returncode == 0


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Yield the revision in its own folder, with this tree's workloads; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as work:
        tree = Path(work) / "tree"
        done = _git("worktree", "add", "--detach", str(tree), revision)
        if done.returncode:
            raise SystemExit(f"{revision} cannot be checked out:\n{done.stderr}")
        try:
            (tree / "benchmarks" / "priority").mkdir(exist_ok=True)
            for name in WORKLOADS:
                shutil.copy(ROOT / "benchmarks" / name, tree / "benchmarks" / name)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which a child process imports the tree's code and no other."""
    path = [str(tree / root) for root in ROOTS] + [str(tree)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


def has_program(tree: Path, part: str) -> bool:
    """Does the tree have a program `module.function`? Older ones lack the newer ones."""
    module, _, function = part.rpartition(".")
    path = tree / "benchmarks" / f"{module.replace('.', '/')}.py"
    return path.is_file() and f"def {function}(" in path.read_text()


def is_rate(key: str) -> bool:
    """Is a higher figure better? Figures per second grow; times, CPU and bytes shrink."""
    return key.endswith("_s")


def best(key: str, values: Sequence[float]) -> float:
    """Return the best of a figure's rounds.

    Other load on the machine only makes a round worse, so the best round shows the cost of the
    code. On a busy machine even quartiles of identical code differ by a third.
    """
    return max(values) if is_rate(key) else min(values)


def is_worse(key: str, ratio: Mapping[str, float]) -> bool:
    """Return whether the ratio of a row's best rounds is worse by more than `WORSE_SHARE`."""
    found = ratio["best"]
    return found < 1 - WORSE_SHARE if is_rate(key) else found > 1 + WORSE_SHARE
