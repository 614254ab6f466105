"""A silo as a whole program: from its start to a signal or its eviction.

This module owns `serve` and the exit codes of programs that run a silo. The module `launcher` runs
child processes, and `program` reads options. A signal stops the silo gracefully, and a second one
ends the process at once, however busy its loop is. SIGHUP (the terminal was closed) stops the silo,
unless it was ignored when the program began, and never ends the process at once. A start that is
cancelled by a signal is undone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from millstream.runtime.silo.silo import Silo, StopReason

from .import_check import refuse_while_importing

__all__ = ["EVICTED", "FAILED", "STOPPED", "STOP_S", "serve", "stop_signals"]

STOPPED = 0
FAILED = 1
EVICTED = 3
STOP_S = 18.0  # less than the time limit of `launcher`
KILL_S = 0.5
"""The part of `STOP_S` that is reserved for ending a silo which does not stop, in seconds."""
EXIT_CODES = {
    StopReason.STOPPED: STOPPED,
    StopReason.KILLED: FAILED,
    StopReason.EVICTED: EVICTED,
}

log = logging.getLogger("millstream.serve")


async def serve(
    silo: Silo,
    *,
    on_active: Callable[[Silo], None] | None = None,
    asked: asyncio.Event | None = None,
) -> int:
    """Run one silo as a program: start it, wait for a signal, and stop it gracefully.

    `millstream run` does the same as this whole program:

    ```python
    sys.exit(asyncio.run(serve(make_silo())))
    ```

    SIGTERM, SIGINT and SIGHUP stop the silo. A second SIGTERM or SIGINT ends the process at once,
    with that signal. SIGHUP has no effect if it was ignored before, as under `nohup`. Signals work
    only in the main thread. A turn that ignores its cancellation is abandoned, and runs until the
    loop is closed. Errors of `Silo.start` reach the caller.

    Args:
        silo: A silo that was not started yet.
        on_active: Called with the silo in the event loop, once the silo is active.
        asked: Set this event to stop the silo without a signal.

    Returns:
        The exit code of the program. 0: the silo was asked to stop, and did. 1: it did not stop
            within 18 s and was killed, or the program killed it. 3: it was evicted.

    Raises:
        ConfigError: This process imports the module of a factory, see `SiloProcess`.
    """
    refuse_while_importing("a silo")
    asked = asked or asyncio.Event()
    with _signals(asked):
        starting: asyncio.Future[Any] = asyncio.ensure_future(silo.start())
        asking: asyncio.Future[Any] = asyncio.ensure_future(asked.wait())
        try:
            await asyncio.wait([asking, starting], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return await _give_up(silo, starting)
            starting.result()
            if on_active is not None:
                on_active(silo)
            return await _run(silo, asking)
        finally:
            asking.cancel()


async def _give_up(silo: Silo, starting: asyncio.Future[Any]) -> int:
    """Cancel the start of a silo that must stop before it is active."""
    starting.cancel()
    await asyncio.wait([starting])
    await silo.kill()
    if not starting.cancelled():
        starting.result()
    return STOPPED


async def _run(silo: Silo, asking: asyncio.Future[Any]) -> int:
    """Wait until the silo was asked to stop and has stopped, or was evicted."""
    ended: asyncio.Future[Any] = asyncio.ensure_future(silo.wait_stopped())
    try:
        await asyncio.wait([asking, ended], return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        await silo.stop()
        raise
    finally:
        ended.cancel()
    if not asking.done():
        return await _wait_end(silo)
    log.info("%s was asked to stop", silo.address)
    return await _stop(silo)


async def _wait_end(silo: Silo) -> int:
    """Return the exit code of a silo that stopped without a signal."""
    reason = await silo.wait_stopped()
    log.log(
        logging.INFO if reason is StopReason.STOPPED else logging.ERROR,
        "%s ended without a signal: %s",
        silo.address,
        reason.value,
    )
    await silo.stop()
    return EXIT_CODES[reason]


async def _stop(silo: Silo) -> int:
    try:
        async with asyncio.timeout(STOP_S - KILL_S):
            await silo.stop()
    except TimeoutError:
        text = "%s did not stop within %g s, and ends without telling the other silos"
        log.error(text, silo.address, STOP_S - KILL_S)
        await asyncio.wait([asyncio.ensure_future(silo.kill())], timeout=KILL_S)
        return FAILED
    return STOPPED


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a program of this system to stop in order.

    They are SIGTERM, SIGINT, and SIGHUP unless it is ignored. If it is ignored, the program was
    started to outlive its terminal, as by `nohup`.
    """
    found = [signal.SIGTERM, signal.SIGINT]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        found.append(hangup)
    return found


@contextmanager
def _signals(asked: asyncio.Event) -> Iterator[None]:
    """While open, the first signal sets the event, and the next one ends the process."""
    loop, numbers = asyncio.get_running_loop(), stop_signals()
    before = {number: signal.getsignal(number) for number in numbers}

    def first(came: signal.Signals) -> None:
        asked.set()
        log.info("received %s: the silo stops", came.name)
        for number in numbers:
            loop.remove_signal_handler(number)
            is_fatal = number in (signal.SIGTERM, signal.SIGINT)
            signal.signal(number, signal.SIG_DFL if is_fatal else signal.SIG_IGN)

    with suppress(NotImplementedError):  # Windows: Ctrl-C cancels the program
        for number in numbers:
            loop.add_signal_handler(number, first, number)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])
