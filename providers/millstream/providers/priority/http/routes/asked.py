"""Access of a request to its queue: the handle, commands under a request id, and polls under a key.

Owns `Opened`, `OpenedOf` and the request ids of keys. Polls without a key are in the surface.

An `Idempotency-Key` is a session with one request, which the queue itself remembers. Therefore a
repeat is carried out once by any server, also after a restart, as long as the queue keeps answers.

Invariants: a key that is used for another request is refused by every server. This process keeps
nothing about a key.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import LeaseGrant
from millstream.providers.priority.surface.asking import ask
from millstream.providers.priority.surface.queue import PriorityQueue
from millstream.providers.priority.surface.routed import QueueCalls
from millstream.runtime.extending import Opener

__all__ = ["Opened", "OpenedOf", "id_of_key", "poll_by_key", "request_of"]

LETTERS = 32
"""Hexadecimal digits of a digest, enough to make a collision of two keys improbable."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A queue: the handle of programs, and the calls that send commands."""

    handle: PriorityQueue
    calls: QueueCalls


@dataclass(frozen=True, slots=True)
class OpenedOf:
    """The argument of `stream()` that opens queues of a part."""

    part: str
    patience_s: float

    def open(self, runtime: Opener, key: str, /) -> Opened:
        """Open a queue. Raises `RequestInvalid` for a wrong name."""
        handle = PriorityQueue(runtime, self.part, key, self.patience_s)
        return Opened(handle, QueueCalls(runtime, self.part, key, self.patience_s))


def request_of(key: str, what: Sequence[Any]) -> Request:
    """The request id of a key; `what` is everything that the request asks for."""
    mark = sha256(msgspec.json.encode(what)).hexdigest()[:LETTERS]
    return Request(f"http {digest(key)}", 1, 0, mark)


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:LETTERS]


def id_of_key(request: Request, at: int | None = None) -> str:
    """The id of a message that comes under a key without an id.

    It is the same for each repeat, so the message is stored once as long as it exists, however late
    the repeat is.
    """
    made = request.session.replace("http ", "key-")
    return made if at is None else f"{made}-{at}"


async def poll_by_key(
    calls: QueueCalls, command: Dequeue, request: Request, wait_s: float
) -> tuple[LeaseGrant, ...]:
    """Dequeue under a key. A repeated request gets the leases of the first one, or polls anew.

    Leases that are over by now are marked.

    If the caller is cancelled, the leases stay for the repeat. Raises the errors of `ask`.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s

    async def poll() -> tuple[LeaseGrant, ...]:
        left_ms = math.ceil(max(until_s - loop.time(), 0.0) * 1000)
        return (await calls.poll(command, request, left_ms)).leases

    return await ask(poll, until_s + calls.patience_s)
