"""A silo as what a program does: from its start to a signal or its eviction.

Owns: `serve`, the exit codes of programs that run a silo. Not: processes (`launcher`), arguments
(`program`). Invariants: a signal stops the silo gracefully, a second one ends the process at once,
however busy its loop is; a terminal that goes (SIGHUP) stops the silo, or nothing if that was
ignored when the program began, and never ends the process at once; a start that is not wanted any
more is undone.
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
STOP_S = 18.0  # below the time that a launcher gives
KILL_S = 0.5
"""The part of `STOP_S` that is kept for ending a silo which does not stop."""
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
    """Start a silo, run it until SIGTERM, SIGINT or SIGHUP, and stop it gracefully.

    Args:
        silo: one that was not started yet.
        on_active: called once the silo is active, in the loop.
        asked: set it to stop the silo in another way than by a signal.

    Returns the exit code for the program: 0 it was asked to stop, and did; 1 it did not stop within
    18 s and was ended without a word, or something in the program killed it; 3 it was evicted. A
    turn that ignores its cancellation is left behind, and goes on until the loop is closed.
    A second signal ends the process at once, with that signal, unless it is SIGHUP. SIGHUP does
    nothing if it was ignored before, as under `nohup`. Signals need the main thread.
    Raises what `Silo.start` raises; ConfigError in a process that is importing its factory.
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
    """The silo is not wanted any more, and has not started yet."""
    starting.cancel()
    await asyncio.wait([starting])
    await silo.kill()
    if not starting.cancelled():
        starting.result()
    return STOPPED


async def _run(silo: Silo, asking: asyncio.Future[Any]) -> int:
    """Until it was asked to stop and has, or was evicted."""
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
    """The silo has stopped without being asked to by a signal."""
    reason = await silo.wait_stopped()
    log.log(
        logging.INFO if reason is StopReason.STOPPED else logging.ERROR,
        "%s has ended: %s",
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
        text = "%s did not stop in %g s, and ends without a word"
        log.error(text, silo.address, STOP_S - KILL_S)
        await asyncio.wait([asyncio.ensure_future(silo.kill())], timeout=KILL_S)
        return FAILED
    return STOPPED


def stop_signals() -> list[signal.Signals]:
    """The signals that ask a program of this system to stop in order.

    SIGHUP is one of them unless it is ignored: then the program was started to outlive its
    terminal, as by `nohup`.
    """
    found = [signal.SIGTERM, signal.SIGINT]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        found.append(hangup)
    return found


@contextmanager
def _signals(asked: asyncio.Event) -> Iterator[None]:
    """While this is open the first signal sets the event, and the next one ends the process."""
    loop, numbers = asyncio.get_running_loop(), stop_signals()
    before = {number: signal.getsignal(number) for number in numbers}

    def first(came: signal.Signals) -> None:
        asked.set()
        log.info("%s came: the silo stops", came.name)
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
