"""Spreads the parts of some work over forked processes, which inherit all imported modules.

Invariants: one process does a part, and a free process takes the next one. A process that fails
still returns its results. No process survives the end of this one by an error, SIGINT or SIGTERM.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

NUMBER_BYTES = 2
PARTS_MAX = 30_000  # the numbers of all parts must fit into a pipe

T = TypeVar("T")


class Child(NamedTuple):
    process: int
    results: int  # the pipe for its results


def spread(count: int, jobs: int, work: Callable[[int], T]) -> dict[int, T]:
    """Do `work(0)` to `work(count - 1)` in `jobs` processes; in this one if `jobs` is 1.

    The result lacks parts that raised an error in their process.
    """
    if jobs == 1:
        return {part: work(part) for part in range(count)}
    assert count <= PARTS_MAX
    parts, writes = os.pipe()
    os.write(writes, b"".join(part.to_bytes(NUMBER_BYTES, "little") for part in range(count)))
    os.close(writes)
    asked = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    children = [start(parts, work) for _ in range(jobs)]
    os.close(parts)
    done: dict[int, T] = {}
    try:
        while children:
            done |= ended(children[0])
            del children[0]
    finally:
        for child in children:
            os.kill(child.process, signal.SIGKILL)
        signal.signal(signal.SIGTERM, asked)
    return done


def ended(child: Child) -> dict[int, Any]:
    """Return the results of a process that has ended."""
    with open(child.results, "rb") as results:
        done: dict[int, Any] = pickle.loads(results.read() or pickle.dumps({}))
    os.waitpid(child.process, 0)
    return done


def start(parts: int, work: Callable[[int], T]) -> Child:
    """Start a process that takes one part after the other."""
    results, writes = os.pipe()
    process = os.fork()
    if process:
        os.close(writes)
        return Child(process, results)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    done: dict[int, T] = {}
    try:
        while number := os.read(parts, NUMBER_BYTES):
            part = int.from_bytes(number, "little")
            done[part] = work(part)
    except BaseException:
        # the original standard error, which pytest replaces
        traceback.print_exc(file=sys.__stderr__)
    finally:
        with open(writes, "wb") as file:
            file.write(pickle.dumps(done))
        os._exit(0)
