"""One dequeue of a program: as many polls as necessary, until there are leases or the time is over.

Owns `leases_of`. One call is in `calls`, and the waiting polls are in the queue's owner.

Invariants: a call is retried under its request id until it is answered, so leases of a lost answer
come with the next one. If the caller is cancelled, its last call is ended and repeated under its
request id in the background, and its leases are released.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.owner.grain import Polled
from millstream.providers.priority.owner.options import WAIT_MS_MAX
from millstream.runtime import MillstreamError

from .asking import AGAIN, RequestSession, ask, ask_again
from .calls import ShardCalls
from .lease import Lease

__all__ = ["give_back", "leases_of"]

log = logging.getLogger("millstream.priority")

AGAIN_S = 0.05
"""Pause after an early answer without leases, in seconds; the owner may be ending."""


async def leases_of(
    calls: ShardCalls, command: Dequeue, until_s: float, patience_s: float | None = None
) -> list[Lease]:
    """The leases of one dequeue from one shard. A cancelled caller loses none of them.

    It ends early if the shard has another layout than the command. `until_s` is the end of the wait
    for a first message. `patience_s` is how much longer the shard is retried; None uses the
    handle's patience.
    """
    loop = asyncio.get_running_loop()
    patience_s = calls.patience_s if patience_s is None else max(patience_s, 0.0)
    session: RequestSession | None = await calls.polls.take()
    request: Request | None = None  # the request without an answer
    try:
        while True:
            assert session is not None, "the session is returned only at the end"
            request, now_s = session.next(), loop.time()
            wait_ms = min(math.ceil(max(until_s - now_s, 0.0) * 1000), WAIT_MS_MAX)
            try:
                polled = await calls.poll_here(command, request, wait_ms)
            except AGAIN as error:
                patient_s = max(until_s, now_s) + patience_s
                call = partial(ask_until, calls, command, request, until_s)
                polled = await ask_again(call, error, patient_s)
            request = None
            found = list_leases(calls, command, polled)
            if found or polled.layout != command.layout or loop.time() >= until_s:
                return found
            await asyncio.sleep(AGAIN_S)
    except asyncio.CancelledError:
        if request is not None and session is not None:
            calls.start(abandon(calls, command, session, request, patience_s))
            session = None
        raise
    finally:
        if session is not None:
            calls.polls.give(session)


async def ask_until(
    calls: ShardCalls, command: Dequeue, request: Request, until_s: float
) -> Polled:
    """Make one call, which waits as long as the dequeue does."""
    left_s = max(until_s - asyncio.get_running_loop().time(), 0.0)
    return await calls.poll_here(command, request, min(math.ceil(left_s * 1000), WAIT_MS_MAX))


async def abandon(
    calls: ShardCalls,
    command: Dequeue,
    session: RequestSession,
    request: Request,
    patience_s: float,
) -> None:
    """Repeat a request to get its leases, and release them."""
    try:
        await calls.leave(session.name)
        until_s = asyncio.get_running_loop().time() + patience_s
        polled = await ask(partial(calls.poll_here, command, request, 0), until_s)
        give_back(list_leases(calls, command, polled))
    except MillstreamError as error:
        log.debug(
            "queue %r: the leases of an abandoned poll are unknown, and expire: %s",
            calls.queue,
            error,
        )
    finally:
        calls.polls.give(session)


def list_leases(calls: ShardCalls, command: Dequeue, polled: Polled) -> list[Lease]:
    """The leases of an answer; of a repeated answer, only the valid ones."""
    found = list[Lease]()
    for row in polled.leases:
        if row.is_valid:
            left_s = (row.deadline_ms - polled.now_ms) / 1000
            found.append(Lease(calls, row, left_s, command.lease_ms))
    return found


def give_back(leases: Sequence[Lease]) -> None:
    """Release leases that no caller takes, in the background and without counting the attempts."""
    for lease in leases:
        lease.give_back("no caller took it")
