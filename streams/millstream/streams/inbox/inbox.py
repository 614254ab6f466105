"""The grain that represents, in the cluster, a consumer outside of it.

Owns: `InboxGrain`: waiting for events and for their acknowledgement, the choice of the session,
silence. Not: the waiting events (`pending`), the subscription (`rendezvous`). Invariants: a
delivery ends when all its events are acknowledged, or when its time is over; then only the
acknowledged events count as delivered. Without a consumer, a delivery is refused. A subscription
without a name ends when its consumer leaves, or is silent for `consumer_silence_s`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import cache
from typing import Protocol

from millstream.runtime import (
    PREFER_LOCAL,
    Grain,
    MillstreamError,
    Rejected,
    grain,
)
from millstream.runtime.extending import Role, isolated, open_to, services_of, stopping
from millstream.streams.api.inbox import (
    Acks,
    Taken,
    inbox_id,
    inbox_name,
    is_ephemeral,
    parse_inbox_key,
)
from millstream.streams.api.rendezvous import Rendezvous, rendezvous_key, rendezvous_of
from millstream.streams.api.subscription_rows import HERE
from millstream.streams.consumer.batch import Delivered, WireBatch

from .pending import Pending

__all__ = ["InboxGrain", "inbox_grain_of"]

log = logging.getLogger("millstream.inbox")

BEATS_PER_SILENCE = 4
GONE = "the subscription ended: it was unsubscribed, or no consumer took its events for too long"
REPLACED = "another consumer has taken the subscription over"


class InboxProvider(Protocol):
    """The provider that carries the stream, as a part of this silo."""

    @property
    def consumer_silence_s(self) -> float: ...


class InboxGrain(Grain):
    """One subscription of a consumer outside; each provider has its own class."""

    def __init__(self) -> None:
        self._pending = Pending()
        self._session = 0
        self._offers = 0
        self._change = asyncio.Event()
        self._is_stopping = False
        self._is_over = ""
        self._present_until = self._silent_from = 0.0

    async def on_activate(self) -> None:
        """Start without a session."""
        self._provider, self._stream, self._name = parse_inbox_key(self.key)
        carrier: InboxProvider = services_of(self).part(self._provider)
        self._silence_s = carrier.consumer_silence_s
        self._subscription = inbox_id(self._provider, self._stream, self._name)
        self._silent_from = now()
        self.context.create_task(self._watch())

    @stopping
    def _stopping(self) -> None:
        """Wake all waiting calls; they are repeated at the next activation."""
        self._is_stopping = True
        self._on_change()

    def _on_change(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _wait(self, until_s: float) -> None:
        """Wait for a change, at most until that time."""
        change = self._change
        try:
            async with asyncio.timeout_at(until_s):
                await change.wait()
        except TimeoutError:
            return

    def _rendezvous(self) -> Rendezvous:
        key = rendezvous_key(self._provider, self._stream)
        return self.grain(rendezvous_of(self._provider), key)

    # -- the agent's side

    @isolated
    async def deliver(self, batch: WireBatch) -> Delivered:
        """Keep a delivery until it is acknowledged. Raises Rejected: no consumer has taken it."""
        if not self._pending.offer(batch):
            return Delivered(0, is_fenced=True)
        self._offers += 1
        mine, until_s = self._offers, now() + batch.timeout_s
        self._on_change()
        while self._is_awaited(mine, until_s):
            await self._wait(min(until_s, self._present_until))
        done = self._pending.count_done() if mine == self._offers else 0
        if not done:
            raise Rejected(f"{self._subscription}: no consumer has taken the events yet")
        return Delivered(done)

    def _is_awaited(self, offer: int, until_s: float) -> bool:
        """Whether acknowledgements of the delivery can still arrive."""
        is_ours = offer == self._offers and self._pending.has_any and not self._is_stopping
        return is_ours and now() < min(until_s, self._present_until) and not self._is_over

    # -- the consumer's side

    @open_to(Role.CLIENT)
    @isolated
    async def take(self, session: int, acks: Acks, events_max: int, wait_s: float) -> Taken:
        """See `Inbox`."""
        if session > self._session:
            await self._welcome(session, acks)
        until_s = now() + wait_s
        if session == self._session:
            self._silent_from, self._present_until = until_s, until_s + self._silence_s
            if self._pending.acknowledge(acks):
                self._on_change()
        while events_max and not self._pending.has_any and self._serves(session, until_s):
            await self._wait(until_s)
        if self._is_over or session < self._session:
            return Taken(is_over=self._is_over or REPLACED)
        return self._pending.take(session, events_max, self._silence_s / BEATS_PER_SILENCE)

    def _serves(self, session: int, until_s: float) -> bool:
        is_served = session == self._session and not self._is_over
        return is_served and not self._is_stopping and now() < until_s

    async def _welcome(self, session: int, acks: Acks) -> None:
        """Accept a consumer, which may come from a former activation of this inbox."""
        row = await self._rendezvous().wake(self._subscription)
        if session <= self._session:
            return  # another session came meanwhile
        self._session, self._is_over = session, ""
        if row is None:
            self._is_over = GONE
        elif row.session > session:
            self._session = row.session
        elif row.start != HERE:
            self._pending.clear()  # the subscription moved to another position
        else:
            self._pending.learn(acks)
        self._on_change()

    @open_to(Role.CLIENT)
    @isolated
    async def leave(self, session: int, acks: Acks) -> None:
        """See `Inbox`."""
        if session < self._session:
            return
        self._session = session
        self._pending.acknowledge(acks)
        self._present_until = 0.0
        self._on_change()
        if is_ephemeral(self._name):
            await self._end()

    async def look(self) -> None:
        """See `Inbox`; the activation is all that is needed."""

    async def close(self) -> None:
        """See `Inbox`."""
        self._is_over = GONE
        self._on_change()
        self.context.deactivate_when_idle()

    # -- silence

    async def _watch(self) -> None:
        """End a subscription whose consumer is silent, and the activation."""
        silent = asyncio.Event()
        while (end_s := self._silent_from + self._silence_s) > now():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    await silent.wait()
        if is_ephemeral(self._name):
            await self._end()
        self.context.deactivate_when_idle()

    async def _end(self) -> None:
        """Remove the subscription; if that fails, the next activation tries again."""
        try:
            await self._rendezvous().remove(self._subscription)
        except MillstreamError as error:
            log.warning("subscription %s could not be removed yet: %s", self._subscription, error)


def now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()


@cache  # one class for each provider, in every silo of the process
def inbox_grain_of(provider: str) -> type[InboxGrain]:
    """The class of a provider's inboxes, for hosting."""
    named: dict[str, object] = {"__module__": __name__, "__doc__": InboxGrain.__doc__}
    options = grain(name=inbox_name(provider), placement=PREFER_LOCAL, reentrant=True)
    return options(type("InboxGrain", (InboxGrain,), named))
