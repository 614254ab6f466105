"""The relay of events from a store's outboxes to a stream, in order and each once.

Owns `Relay`. Events are made in `core`, outboxes belong to the store, and the caller chooses the
silo that relays.

Invariants:

- An event is sent after all earlier events of its outbox are accepted, or in one call with them.
  Each queue of the stream accepts a prefix of a call.
- The producer is the name of the outbox, and the sequence is the position of the event.
- An event is forgotten when it and all earlier ones are accepted. The relay remembers nothing else.

Therefore several silos may relay at the same time, and a silo may relay events again: a queue of
the stream drops repeated events and continues with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from millstream.providers.priority.core.shards import split_name
from millstream.providers.priority.owner.options import PriorityOptions
from millstream.providers.priority.store.contract import PriorityStore, StoredEvent
from millstream.runtime import StreamError
from millstream.runtime.extending import Backoff, Clock, LineBudget, Tasks
from millstream.streams import OutMessage, ProducerMark, StreamId, Token

from .change import PRIORITY_CHANGES, change_of

__all__ = ["Relay", "Stores"]

log = logging.getLogger("millstream.priority")

RETRY = Backoff(first_s=0.1, ceiling_s=10.0)
PRODUCER = "millstream.priority/"


class Stores(Protocol):
    """A stream provider."""

    def store(
        self, messages: Sequence[OutMessage], /
    ) -> Coroutine[Any, Any, list[Token | StreamError | None]]:
        """Publish messages, and return the outcome of each.

        Of each queue's messages, a prefix is stored.
        """
        ...


class Relay:
    """Relays all outboxes of a store while this silo has the task.

    Args:
        store: The store.
        into: The provider of the stream.
        options: Period and batch size.
        is_mine: Whether this silo relays. Two silos may do it at the same time, which only costs
            work.
        clock: The silo's clock.
        tasks: The group in which the relay runs.
    """

    def __init__(
        self,
        store: PriorityStore,
        into: Stores,
        options: PriorityOptions,
        is_mine: Callable[[], bool],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._store = store
        self._into = into
        self._options = options
        self._is_mine = is_mine
        self._clock = clock
        self._tasks = tasks
        self._lines = LineBudget()
        self.relayed = 0
        """Accepted events, including repeated ones."""

    def start(self) -> None:
        """Start to relay."""
        for outbox in range(self._store.outboxes):
            self._tasks.start(self._run(outbox))

    async def stop(self) -> None:
        """Stop relaying. Events that were sent may still be accepted."""
        await self._tasks.aclose()

    def abort(self) -> None:
        """Stop at once."""
        self._tasks.cancel()

    async def _run(self, outbox: int) -> None:
        failures = 0
        while True:
            pause_s = self._options.changes_period_s
            if self._is_mine():
                try:
                    has_more = await self._round(outbox)
                    failures, pause_s = 0, 0.0 if has_more else pause_s
                except Exception as error:  # the store and the provider may be foreign code
                    failures += 1
                    pause_s = RETRY.whole_s(failures)
                    self._say_failed(outbox, error, pause_s)
            await asyncio.sleep(pause_s)

    async def _round(self, outbox: int) -> bool:
        """Relay the oldest events, and return whether there are more.

        Raises the errors of store and provider.
        """
        limit = self._options.changes_batch_max
        found = await self._store.events(outbox, 0, limit)
        if not found:
            return False
        self._say_late(outbox, found[0])
        producer = f"{PRODUCER}{await self._store.outbox_name(outbox)}"
        outcomes = await self._into.store([message_of(producer, one) for one in found])
        accepted, refused = count_accepted(outcomes)
        if refused is not None and not accepted:
            raise refused
        await self._store.forget_events(outbox, found[accepted - 1].position)
        self.relayed += accepted
        return refused is not None or len(found) == limit

    # -- log lines

    def _say_failed(self, outbox: int, error: Exception, pause_s: float) -> None:
        what, again = f"{type(error).__name__}: {error}", f"next attempt in {pause_s:g} s"
        self._warn(f"outbox {outbox}: changes could not be relayed: {what}; {again}")

    def _say_late(self, outbox: int, oldest: StoredEvent) -> None:
        late_s = self._clock.wall_s() - oldest.event.time_ms / 1000
        if late_s > self._options.changes_late_s:
            self._warn(f"outbox {outbox}: changes are relayed {late_s:.0f} s late")

    def _warn(self, text: str) -> None:
        left_out = self._lines.take(self._clock.now())
        if left_out is not None:
            log.warning("%s%s", text, left_out)


def message_of(producer: str, stored: StoredEvent) -> OutMessage:
    """The event in the form that is published."""
    item = PRIORITY_CHANGES.codec.encode(change_of(stored.event))
    queue, _ = split_name(stored.event.queue)
    stream = StreamId(PRIORITY_CHANGES.name, queue)
    return OutMessage(stream, [item], {}, ProducerMark(producer, stored.position))


def count_accepted(
    outcomes: Sequence[Token | StreamError | None],
) -> tuple[int, StreamError | None]:
    """The number of accepted events before the first refused one, and the reason of that one."""
    for count, outcome in enumerate(outcomes):
        if isinstance(outcome, StreamError):
            return count, outcome
    return len(outcomes), None
