"""Work of many parts by several processes, which are forked: what is imported is there in each.

Invariants: a part is done by one process, the next one by whoever is free; a process that fails
brings what it had done; none outlives this one's end by an error, SIGINT or SIGTERM.
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
PARTS_MAX = 30_000  # their numbers have to fit into a pipe at once

T = TypeVar("T")


class Child(NamedTuple):
    process: int
    results: int  # where it writes what it has done


def spread(count: int, jobs: int, work: Callable[[int], T]) -> dict[int, T]:
    """`work(0)` to `work(count - 1)`, by so many processes; in this one if that is one.

    What a process cannot do, because something is raised in it, is missing from the result.
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
    """What it has done, when it has ended."""
    with open(child.results, "rb") as results:
        done: dict[int, Any] = pickle.loads(results.read() or pickle.dumps({}))
    os.waitpid(child.process, 0)
    return done


def start(parts: int, work: Callable[[int], T]) -> Child:
    """A process that takes one part after the other."""
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
        traceback.print_exc(file=sys.__stderr__)  # past what pytest has in its place
    finally:
        with open(writes, "wb") as file:
            file.write(pickle.dumps(done))
        os._exit(0)
