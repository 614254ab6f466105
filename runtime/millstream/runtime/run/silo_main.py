"""The child's side of `launcher.SiloProcess`: `python -m millstream.runtime.run.silo_main`.

Prints one JSON line when its silo is active, then runs until its standard input closes or SIGTERM
or SIGINT comes, and stops gracefully. Invariants: nothing but that line is on standard output; it
ends whatever happens to its parent, and at most `STOP_S` after it was asked to.
Exit codes: 0 asked to stop, 1 the silo could not start, was evicted, or did not stop in time.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from millstream.runtime.errors import MillstreamError
from millstream.runtime.silo.silo import Silo

from .loops import loop_factory

__all__ = ["main"]

STOP_S = 18.0  # below the launcher's own patience

log = logging.getLogger("millstream.silo_main")


async def run(silo: Silo, out: int) -> int:
    """Run a silo until somebody wants it to stop; returns the exit code.

    `out` is the file descriptor that takes the line, and is closed after it.
    """
    asked = asyncio.Event()
    _listen(asked)
    asking = asyncio.ensure_future(asked.wait())
    starting = asyncio.ensure_future(silo.start())
    await asyncio.wait([asking, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done() or starting.exception() is not None:
        return await _give_up(silo, starting)
    _tell(silo, out)
    ended = asyncio.ensure_future(silo.wait_stopped())
    await asyncio.wait([asking, ended], return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    is_clean = await _stop(silo)
    return 0 if asking.done() and is_clean else 1


async def _give_up(silo: Silo, starting: asyncio.Future[None]) -> int:
    """The silo failed to start, or is not wanted any more."""
    starting.cancel()
    outcome, *_ = await asyncio.gather(starting, return_exceptions=True)
    await silo.kill()
    if isinstance(outcome, Exception):
        raise outcome
    return 0


def _listen(asked: asyncio.Event) -> None:
    """Set `asked` on a signal, and when standard input closes."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    with suppress(OSError):  # a file or /dev/null cannot be waited for, and has no end to tell
        loop.add_reader(sys.stdin.fileno(), _read_stdin, asked)


def _read_stdin(asked: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        asked.set()


def _take_stdout() -> int:
    """Keep standard output for the one line; what else is printed goes to standard error."""
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _tell(silo: Silo, out: int) -> None:
    gc.collect()
    gc.freeze()  # what was loaded so far stays: full collections need not look at it
    told = {"address": silo.address, "gateway": silo.gateway, "pid": os.getpid()}
    with open(out, "w") as file:
        file.write(json.dumps(told) + "\n")


async def _stop(silo: Silo) -> bool:
    try:
        async with asyncio.timeout(STOP_S):
            await silo.stop()
    except TimeoutError:
        log.error("the silo did not stop in %g s", STOP_S)
        await silo.kill()
        return False
    return True


def main() -> int:
    """`silo_main package.module:function '{"json": "arguments"}'`; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    out = _take_stdout()
    module, _, name = sys.argv[1].partition(":")
    factory: Any = getattr(importlib.import_module(module), name)
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(run(factory(**arguments), out))
    except MillstreamError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
