"""The end of a process that runs a silo, even if something in it does not end.

This module owns `run_to_end`. Once the program's coroutine has ended, the process ends with its
exit code after `LEFT_S` at most. Tasks that ignore their cancellation and running threads do not
delay it further.
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
"""How long tasks and threads may run after the program's coroutine has ended, in seconds."""

log = logging.getLogger("millstream.serve")


def run_to_end(program: Coroutine[Any, Any, int]) -> int:
    """Run a program in an event loop of its own, and return its exit code.

    Closing a loop waits for its tasks and for the threads of its executor. If that takes longer
    than `LEFT_S`, the process ends with exit code 1.
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
    """End this process at once, after flushing its log and its output."""
    text = "a task or a thread of the program did not end within %g s: the process ends anyway"
    log.error(text, LEFT_S)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(FAILED)
