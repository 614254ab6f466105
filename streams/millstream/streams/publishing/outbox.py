"""The outbox of a state: events that are published with its next write, and sent once it is stored.

Owns: `Outbox`: what is in a parcel, sending, trying again, and taking what is sent out of the row.
Not: the parcels and their numbers (`Parcels` of the state). Invariants: nothing is sent that is not
stored; what is stored is sent in order, until it is, or is a dead letter, as its queue refuses it
for good; each event has the state as its producer and a number of it, so that a queue that drops
repeats has it once.
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

OUTBOX_EVENTS_MAX = 1_000  # of one state that are not sent
OUTBOX_BYTES_MAX = 4 << 20  # of these; a single one may be larger
SEND_MAX = 100  # events that are sent at a time
SENT_WAIT_S = 5.0  # for what is stored to be sent, before a delivery is answered
TRIM_AFTER_S = 1.0  # without another write, the row is written without what is sent
ORIGIN_CHARS_MAX = 40  # of what names an outbox among all, in its events' producer
RETRY = Backoff(0.05, 2.0, 5.0)
REFUSED = "outbox of %s: an event for %s is a dead letter, as its queue refuses it for good: %s"


class OutboxProvider(Protocol):
    """The stream provider of an event, in this silo."""

    def admit(self, message: OutMessage, /) -> str:
        """Check a message; returns a name of `ORIGIN_CHARS_MAX` at most that no other call
        returns."""
        ...

    def check(self, message: OutMessage, /) -> None:
        """Raise ValueError or StreamError for a message that no queue will ever accept."""
        ...

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | Exception | None]: ...
    async def bury(self, message: OutMessage, why: str, /) -> None:
        """Keep a message that its queue refuses for good as a dead letter; again is harmless."""
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
    """The outbox of a state, made when it is asked for first."""
    sender = state.parcels.sender
    return sender if isinstance(sender, Outbox) else Outbox(state, part)


def resume_outbox(state: State[Any], part: Callable[[str], OutboxProvider]) -> None:
    """A state was activated with events that may not be sent: send them."""
    outbox_of(state, part).on_stored()


class Outbox:
    """Sends what is stored with one state (`ParcelSender`); `part` finds providers by name."""

    def __init__(self, state: State[Any], part: Callable[[str], OutboxProvider]) -> None:
        self._state = state
        self._parcels = state.parcels
        self._part = part
        self._accepted: set[int] = set()  # behind one that was not
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._parcels.sender = self

    def add(
        self, provider: str, stream: StreamId, body: bytes, headers: Mapping[str, str] | None
    ) -> None:
        """Let an event go with the next write.

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
                f"to be sent; OUTBOX_EVENTS_MAX is {OUTBOX_EVENTS_MAX}, OUTBOX_BYTES_MAX "
                f"{OUTBOX_BYTES_MAX}: publish less in one turn"
            )
        self._parcels.origin = self._parcels.origin or origin
        self._parcels.add(parcel)

    def _producer(self, origin: str) -> str:
        return f"outbox/{self._state.key}/{origin}"

    def on_stored(self) -> None:
        """More may be sent now."""
        self._news.set()
        self._all_sent.clear()
        if self._task is None:
            work = self._work()
            try:
                self._task = self._state.start_task(work)
            except NotInCluster:
                work.close()  # it has ended: the next activation finds them in the row

    async def wait_sent(self) -> None:
        """Wait until what is stored is sent. Raises Overloaded: it takes too long."""
        if not self._parcels.has_unsent:
            return
        if self._task is None:
            self.on_stored()  # it could not trim the row, and has ended
        try:
            async with asyncio.timeout(SENT_WAIT_S):
                await self._all_sent.wait()
        except TimeoutError:
            what = f"outbox of {self._state.key}: {self._parcels.count} events are not sent yet"
            raise Overloaded(what, "SENT_WAIT_S", int(SENT_WAIT_S)) from None

    async def _work(self) -> None:
        """Send what is stored; once nothing comes any more, take it out of the row."""
        try:
            while not self._parcels.is_trimmed or self._parcels.has_unsent:
                self._news.clear()
                await self._send_all()
                self._all_sent.set()
                if not await self._comes_more():
                    await self._state.trim()
        except Exception as error:
            text = show_text(f"{type(error).__name__}: {error}")
            log.info("outbox of %s: what is sent stays in its row: %s", self._state.key, text)
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
        """Send the first that wait, in order; returns why one was not accepted."""
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
            except ValueError:  # one is too large, since a limit was lowered, and none was sent
                return await self._give_up_large(part, numbered)
            return await self._settle(part, numbered, outcomes)
        except Exception as error:
            return error

    async def _give_up_large(
        self, part: OutboxProvider, numbered: Sequence[tuple[int, OutMessage]]
    ) -> Exception | None:
        """Keep those that are too large as dead letters; why the others were not sent."""
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
        """Note what was accepted, and find which messages a queue refuses for good.

        All of a list behind such a message failed with it. They are sent one by one, in order, and
        none behind one that failed otherwise: its number would be taken for known.
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
        """Keep a message elsewhere, so that those behind it are sent."""
        why = f"{type(error).__name__}: {error}"
        await part.bury(message, why)
        self._accepted.add(number)
        log.error(
            REFUSED, show_text(self._state.key), show_text(str(message.stream)), show_text(why)
        )

    def _say(self, error: Exception, failures: int) -> None:
        """The first time, and ever more rarely."""
        if failures & (failures - 1) == 0:
            text = "outbox of %s: %d events wait to be sent, tried %d times: %s"
            why = show_text(f"{type(error).__name__}: {error}")
            log.warning(text, show_text(self._state.key), self._parcels.count, failures, why)
