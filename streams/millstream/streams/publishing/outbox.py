"""The outbox of a state: events that are published with its next write, and sent once it is stored.

Owns: `Outbox`: the content of a parcel, sending, retries, and removing sent events from the row.
Not: the parcels and their numbers (`Parcels` of the state). Invariants: only stored events are
sent. Stored events are sent in order until each is accepted, or is a dead letter because its queue
refuses it for good. Each event has the state as its producer and a number of that state, so that a
queue with deduplication stores it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from millstream.runtime import NotInCluster, Overloaded, QueueFull, State
from millstream.runtime.extending import Backoff, show_text
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import OutMessage, ProducerMark
from millstream.streams.contracts.token import Token

from .send_queue import is_final, refusal_of

__all__ = ["Outbox", "outbox_of", "resume_outbox"]

log = logging.getLogger("millstream.outbox")

OUTBOX_EVENTS_MAX = 1_000  # unsent events of one state
OUTBOX_BYTES_MAX = 4 << 20  # bytes of these; a single event may be larger
SEND_MAX = 100  # events in one call
SENT_WAIT_S = 5.0  # how long a delivery's answer waits for the stored events to be sent
TRIM_AFTER_S = 1.0  # without another write for so long, sent events are removed from the row
ORIGIN_CHARS_MAX = 40  # length of the unique part of the producer's name
RETRY = Backoff(0.05, 2.0, 5.0)
REFUSED = "outbox of %s: an event for %s is a dead letter; its queue refuses it permanently: %s"


class OutboxProvider(Protocol):
    """The stream provider of an event, in this silo."""

    def admit(self, message: OutMessage, /) -> str:
        """Check a message; returns a unique name of at most `ORIGIN_CHARS_MAX` characters."""
        ...

    def check(self, message: OutMessage, /) -> None:
        """Raise ValueError or StreamError for a message that no queue will ever accept."""
        ...

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | Exception | None]: ...
    async def bury(self, message: OutMessage, why: str, /) -> None:
        """Store a message that its queue refuses for good as a dead letter; repeats do no harm."""
        ...


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """One event, as it is in the row."""

    provider: str
    namespace: str
    key: str
    body: bytes
    headers: dict[str, str] | None = None

    def message(self, mark: ProducerMark | None) -> OutMessage:
        stream = StreamId(self.namespace, self.key)
        return OutMessage(stream, [self.body], self.headers or {}, mark)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Letter).decode


def outbox_of(state: State[Any], part: Callable[[str], OutboxProvider]) -> Outbox:
    """The outbox of a state, made on first use."""
    sender = state.parcels.sender
    return sender if isinstance(sender, Outbox) else Outbox(state, part)


def resume_outbox(state: State[Any], part: Callable[[str], OutboxProvider]) -> None:
    """Send the unsent events of a state that was just activated."""
    outbox_of(state, part).on_stored()


class Outbox:
    """Sends the events that are stored with one state (`ParcelSender`); `part` finds providers by
    name."""

    def __init__(self, state: State[Any], part: Callable[[str], OutboxProvider]) -> None:
        self._state = state
        self._parcels = state.parcels
        self._part = part
        self._accepted: set[int] = set()  # accepted numbers after one that is not accepted
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._parcels.sender = self

    def add(
        self, provider: str, stream: StreamId, body: bytes, headers: Mapping[str, str] | None
    ) -> None:
        """Add an event to the next write.

        Raises ConfigError, QueueFull, ValueError, StreamError: no queue carries the stream.
        """
        letter = Letter(provider, *stream, body, dict(headers) if headers else None)
        longest = self._parcels.origin or "x" * ORIGIN_CHARS_MAX
        mark = ProducerMark(self._producer(longest), 0)
        origin = self._part(provider).admit(letter.message(mark))
        parcel = _encode(letter)
        count, size_bytes = self._parcels.count + 1, self._parcels.size_bytes + len(parcel)
        if count > OUTBOX_EVENTS_MAX or (count > 1 and size_bytes > OUTBOX_BYTES_MAX):
            raise QueueFull(
                f"outbox of {show_text(self._state.key)}: {count - 1} events wait for a write, or "
                f"to be sent; OUTBOX_EVENTS_MAX is {OUTBOX_EVENTS_MAX}, OUTBOX_BYTES_MAX is "
                f"{OUTBOX_BYTES_MAX}: publish fewer events in one turn"
            )
        self._parcels.origin = self._parcels.origin or origin
        self._parcels.add(parcel)

    def _producer(self, origin: str) -> str:
        return f"outbox/{self._state.key}/{origin}"

    def on_stored(self) -> None:
        """Send the events that a write has stored."""
        self._news.set()
        self._all_sent.clear()
        if self._task is None:
            work = self._work()
            try:
                self._task = self._state.start_task(work)
            except NotInCluster:
                work.close()  # the activation has ended; the next one finds the events in the row

    async def wait_sent(self) -> None:
        """Wait until all stored events are sent. Raises Overloaded: it takes too long."""
        if not self._parcels.has_unsent:
            return
        if self._task is None:
            self.on_stored()  # the task has ended because it could not trim the row
        try:
            async with asyncio.timeout(SENT_WAIT_S):
                await self._all_sent.wait()
        except TimeoutError:
            what = f"outbox of {self._state.key}: {self._parcels.count} events are not sent yet"
            raise Overloaded(what, "SENT_WAIT_S", int(SENT_WAIT_S)) from None

    async def _work(self) -> None:
        """Send stored events; when no more arrive, remove the sent ones from the row."""
        try:
            while not self._parcels.is_trimmed or self._parcels.has_unsent:
                self._news.clear()
                await self._send_all()
                self._all_sent.set()
                if not await self._comes_more():
                    await self._state.trim()
        except Exception as error:
            text = show_text(f"{type(error).__name__}: {error}")
            log.info("outbox of %s: sent events stay in its row: %s", self._state.key, text)
        finally:
            self._task = None

    async def _comes_more(self) -> bool:
        try:
            async with asyncio.timeout(TRIM_AFTER_S):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _send_all(self) -> None:
        failures = 0
        while self._parcels.has_unsent:
            error = await self._send_some()
            failures = 0 if error is None else failures + 1
            if error is not None:
                self._say(error, failures)
                await asyncio.sleep(RETRY.whole_s(failures))

    async def _send_some(self) -> Exception | None:
        """Send the first waiting events, in order. Returns the error of one that was not accepted;
        None if all were."""
        waiting = self._parcels.unsent(SEND_MAX)
        failed: Exception | None = None
        by_provider: dict[str, list[tuple[int, OutMessage]]] = {}
        producer = self._producer(self._parcels.origin)
        for number, parcel in waiting:
            if number not in self._accepted:
                letter = _decode(parcel)
                message = letter.message(ProducerMark(producer, number))
                by_provider.setdefault(letter.provider, []).append((number, message))
        for provider, numbered in by_provider.items():
            failed = await self._store(provider, numbered) or failed
        upto = waiting[0][0] - 1
        while upto + 1 in self._accepted:
            upto += 1
            self._accepted.remove(upto)
        self._parcels.on_done(upto)
        return failed

    async def _store(
        self, provider: str, numbered: Sequence[tuple[int, OutMessage]]
    ) -> Exception | None:
        try:
            part = self._part(provider)
            try:
                outcomes = await part.store([message for _, message in numbered])
            except ValueError:  # a limit was lowered, one event is too large, and none was sent
                return await self._give_up_large(part, numbered)
            return await self._settle(part, numbered, outcomes)
        except Exception as error:
            return error

    async def _give_up_large(
        self, part: OutboxProvider, numbered: Sequence[tuple[int, OutMessage]]
    ) -> Exception | None:
        """Store the events that are too large as dead letters. Returns why the others were not
        sent; None if there are no others."""
        failed: Exception | None = None
        for number, message in numbered:
            refusal = refusal_of(part, message)
            if is_final(refusal):
                await self._give_up(part, number, message, refusal)
            else:
                failed = failed or refusal
        return failed

    async def _settle(
        self,
        part: OutboxProvider,
        numbered: Sequence[tuple[int, OutMessage]],
        outcomes: Sequence[Token | Exception | None],
    ) -> Exception | None:
        """Record the accepted messages, and find those that a queue refuses for good. Returns the
        first temporary error, or None.

        Such a refusal fails all later messages of the list. They are sent one by one, in order, and
        not after a message that failed otherwise: its queue would then take the number of that
        message for known.
        """
        failed: Exception | None = None
        is_blocked = False
        for (number, message), outcome in zip(numbered, outcomes, strict=True):
            found: object = outcome
            if isinstance(outcome, Exception) and is_final(outcome) and not is_blocked:
                (found,) = await part.store([message])
                is_blocked = isinstance(found, Exception) and not is_final(found)
            if not isinstance(found, Exception):
                self._accepted.add(number)
            elif is_final(found) and not is_blocked:
                await self._give_up(part, number, message, found)
            else:
                failed = failed or found
        return failed

    async def _give_up(
        self, part: OutboxProvider, number: int, message: OutMessage, error: Exception
    ) -> None:
        """Store a message as a dead letter, so that later messages are sent."""
        why = f"{type(error).__name__}: {error}"
        await part.bury(message, why)
        self._accepted.add(number)
        log.error(
            REFUSED, show_text(self._state.key), show_text(str(message.stream)), show_text(why)
        )

    def _say(self, error: Exception, failures: int) -> None:
        """Log the first failure, and later ones ever more rarely."""
        if failures & (failures - 1) == 0:
            text = "outbox of %s: %d events wait to be sent, after %d failed attempts: %s"
            why = show_text(f"{type(error).__name__}: {error}")
            log.warning(text, show_text(self._state.key), self._parcels.count, failures, why)
