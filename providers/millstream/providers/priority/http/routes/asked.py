"""What a request asks of a queue: its handle, commands under a request id, keyed polls.

Owns: `Opened`, `KeyedOf`, request ids of keys. Not: polls without a key (the surface).
A key is a session of one request, which the queue itself remembers: so a repeat is done once by
whatever gateway it comes, also after a restart, for as long as the queue keeps answers.
Invariants: the same key with another request is refused wherever it comes; nothing about a key is
kept in this process.
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
"""Of a digest, in hex: two keys that meet by chance are not to be expected."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A queue, as programs have it and as its commands are sent."""

    handle: PriorityQueue
    calls: QueueCalls


@dataclass(frozen=True, slots=True)
class OpenedOf:
    """Opens queues of a part; what `stream()` takes."""

    part: str
    patience_s: float

    def open(self, runtime: Opener, key: str, /) -> Opened:
        """A queue. Raises `RequestInvalid` (the name)."""
        handle = PriorityQueue(runtime, self.part, key, self.patience_s)
        return Opened(handle, QueueCalls(runtime, self.part, key, self.patience_s))


def request_of(key: str, what: Sequence[Any]) -> Request:
    """The request that a key stands for; `what`: all that it asks for."""
    mark = sha256(msgspec.json.encode(what)).hexdigest()[:LETTERS]
    return Request(f"http {digest(key)}", 1, 0, mark)


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:LETTERS]


def id_of_key(request: Request, at: int | None = None) -> str:
    """The id of a message that comes under a key and has none: the same for each repeat, so that it
    is taken once for as long as the message is there, however late the repeat."""
    made = request.session.replace("http ", "key-")
    return made if at is None else f"{made}-{at}"


async def poll_by_key(
    calls: QueueCalls, command: Dequeue, request: Request, wait_s: float
) -> tuple[LeaseGrant, ...]:
    """A dequeue under a key: what it leased the first time, with what is over marked; if nothing,
    a new poll.

    When its caller is cancelled so is the call, and what it leased is for the repeat. Raises as
    `ask`.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s

    async def poll() -> tuple[LeaseGrant, ...]:
        left_ms = math.ceil(max(until_s - loop.time(), 0.0) * 1000)
        return (await calls.poll(command, request, left_ms)).leases

    return await ask(poll, until_s + calls.patience_s)
