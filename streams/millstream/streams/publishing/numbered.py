"""Publishing numbered messages from outside: each is stored once, even if a gateway crashes.

Owns: `NumberedPublisher`: its unanswered calls, and its retries. Not: the numbers (the publishing
program), sessions at the gateway (`ingest`). Invariants: messages are sent in order, in sessions.
After a failure, the first call that was not accepted and all later ones are sent again, in a new
session. At most `window` calls of `WINDOW_BYTES_MAX` bytes are under way. With a provider that
drops duplicates each message is stored once, with others at least once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine

import msgspec

from millstream.runtime import (
    CallTimeout,
    NotHosted,
    Overloaded,
    Rejected,
    SiloUnavailable,
    StreamError,
)
from millstream.runtime.extending import Backoff, Gateway, SystemTarget

from .ingest import IngestMessage, IngestTarget

__all__ = ["PASSING", "WINDOW_BYTES_MAX", "NumberedPublisher", "encode_messages"]

log = logging.getLogger("millstream.streams")

PASSING = (CallTimeout, NotHosted, Overloaded, Rejected, SiloUnavailable, StreamError)
"""Errors after which the same call may be accepted a little later."""
WINDOW_BYTES_MAX = 16 << 20
"""Bytes of calls without an answer; a single call may be larger, and is then sent alone."""
OPENING_S = 5.0
"""How long to wait for a silo without the provider: it may be starting, and open the provider
soon."""
RETRY = Backoff(0.05, 2.0, 2.0)
_encode = msgspec.msgpack.Encoder().encode


def encode_messages(messages: list[IngestMessage]) -> bytes:
    """Encode messages for `NumberedPublisher.publish`.

    Args:
        messages: the messages, in order.
    """
    return _encode(messages)


class EncodedIngest(SystemTarget):
    """`IngestTarget` for callers with encoded messages; it is called, and never served."""

    target_name = IngestTarget.target_name

    async def publish_next(
        self, namespace: str, producer: str, session: str, place: int, messages: msgspec.Raw
    ) -> int:
        """See `IngestTarget.publish_next`."""
        raise NotImplementedError


class Sent:
    """One call: its messages, and the task that waits for its answer."""

    __slots__ = ("answer", "count", "messages", "size_bytes")

    def __init__(self, messages: bytes, count: int) -> None:
        self.messages = msgspec.Raw(messages)
        self.size_bytes = len(messages)
        self.count = count
        self.answer: asyncio.Task[int]


class NumberedPublisher:
    """Publishes the numbered messages of one producer into the streams of a namespace.

    The publisher retries after failures, in order. With a provider that has `DEDUP`, each message
    is stored once, even if gateways crash; with others at least once. One task at a time may use
    it.

    Args:
        gateway: the gateway of a client.
        namespace: name of the namespace.
        producer: name of the producer, which owns the numbers.
        name: name of this object, unique in the life of the cluster.
        provider: name of the stream provider.
        window: calls that may be without an answer.
        patience_s: how long to retry while no message is accepted, in seconds.

    Attributes:
        accepted: messages that were accepted.
    """

    def __init__(
        self,
        gateway: Gateway,
        namespace: str,
        producer: str,
        name: str,
        *,
        provider: str = "default",
        window: int = 1,
        patience_s: float = 60.0,
    ) -> None:
        self._gateway = gateway
        self._namespace = namespace
        self._producer = producer
        self._name = name
        self._provider = provider
        self._window = window
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._out: deque[Sent] = deque()
        self._session = 0
        self._place = 0  # number of the next call in the session
        self._failures = 0  # since a message was accepted
        self._failed_s: float  # the time of the first failure
        self.accepted = 0

    async def publish(self, messages: bytes, count: int) -> None:
        """Send one call of messages; return when the next call may be sent.

        Args:
            messages: messages that `encode_messages` has encoded.
            count: their number.

        Raises:
            NotHosted: no silo has the provider; raised after a few seconds.
            ValueError: the call is too large for a frame.
            Exception: the last error, when no message was accepted for `patience_s`.
        """
        sent = Sent(messages, count)
        while self._out and self._bytes_out + sent.size_bytes > WINDOW_BYTES_MAX:
            await self._settle_first()
        self._out.append(sent)
        self._send(sent)
        while len(self._out) >= self._window:
            await self._settle_first()

    @property
    def _bytes_out(self) -> int:
        return sum(sent.size_bytes for sent in self._out)

    async def drain(self) -> None:
        """Wait until all messages are accepted.

        Raises:
            Exception: the errors of `publish`.
        """
        while self._out:
            await self._settle_first()

    async def aclose(self) -> None:
        """Give up the unanswered calls; their messages may be stored. A repeated call does no
        harm."""
        answers = [sent.answer for sent in self._out]
        self._out.clear()
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)

    def _send(self, sent: Sent) -> None:
        sent.answer = self._loop.create_task(self._call(sent.messages))
        self._place += 1

    def _call(self, messages: msgspec.Raw) -> Coroutine[object, object, int]:
        return self._gateway.call(
            f"{self._namespace}/{self._producer}",
            f"{IngestTarget.target_name}/{self._provider}",
            EncodedIngest.publish_next,
            self._namespace,
            self._producer,
            f"{self._name}.{self._session}",
            self._place,
            messages,
        )

    async def _settle_first(self) -> None:
        """Wait for the oldest answer; begin a new session if it is a passing failure."""
        first = self._out[0]
        try:
            await first.answer
        except PASSING as error:
            await self._begin_again(error)
            return
        self._out.popleft()
        self.accepted += first.count
        self._failures = 0

    async def _begin_again(self, error: Exception) -> None:
        """Send all unanswered calls again, in a new session, after a pause."""
        for sent in self._out:
            sent.answer.cancel()
        now_s = self._loop.time()
        if not self._failures:
            self._failed_s = now_s
        self._failures += 1
        patience_s = self._patience_s
        if isinstance(error, NotHosted):
            patience_s = min(patience_s, OPENING_S)
        left_s = self._failed_s + patience_s - now_s
        if left_s <= 0:
            error.add_note(f"retried for {patience_s:g} s, and nothing was accepted")
            raise error
        text = "producer %s resends the messages that were not accepted: %s"
        log.info(text, self._producer, error)
        await asyncio.sleep(min(RETRY.whole_s(self._failures), left_s))
        self._session, self._place = self._session + 1, 0
        for sent in self._out:
            self._send(sent)

    def check(self) -> None:
        """Assert the limits; for tests."""
        assert len(self._out) <= self._window
        assert len(self._out) <= 1 or self._bytes_out <= WINDOW_BYTES_MAX
        assert self._place >= len(self._out)
