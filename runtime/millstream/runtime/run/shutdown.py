"""The end of a process that runs a silo, also if something in it does not end.

Owns: `run_to_end`. Invariant: once the program's coroutine has ended, the process has its exit code
after `LEFT_S` at most, whatever tasks that ignore their cancellation, or threads, are left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from .loops import loop_factory
from .serve import FAILED

__all__ = ["run_to_end"]

LEFT_S = 0.5
"""How long tasks and threads may go on after the program's coroutine has ended."""

log = logging.getLogger("millstream.serve")


def run_to_end(program: Coroutine[Any, Any, int]) -> int:
    """Run a program in an event loop of its own; returns its exit code.

    Closing a loop waits for each of its tasks and for the threads of its executor. If that takes
    longer than `LEFT_S`, the process ends with exit code 1.
    """
    ending = threading.Timer(LEFT_S, end_process)
    ending.daemon = True
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                return runner.run(program)
            finally:
                ending.start()
    finally:
        ending.cancel()


def end_process() -> None:
    """End this process as it is, with what it has logged and printed."""
    text = "a task or a thread of the program did not end in %g s: the process ends without it"
    log.error(text, LEFT_S)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(FAILED)
