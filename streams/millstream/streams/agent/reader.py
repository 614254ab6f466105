"""A pulling agent: reads one queue into its cache and drives the deliveries from it.

Owns: the receiver, the cache and the loops of reading and housekeeping. Not: which subscriptions
a stream has (`subscribers`), sending to consumers (`dispatch`), owning the queue (`manager`).
Invariants: reads, deliveries and housekeeping never wait for each other, except that reading stops
while the cache is full; an event leaves only when each of its subscriptions is done with it; what
is acknowledged is the minimum over all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from millstream.runtime import QueueFenced
from millstream.runtime.extending import Backoff, Clock, Tasks
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.queue import Measurable, QueueAdapter, QueueReceiver
from millstream.streams.contracts.token import Token

from .cache import QueueCache
from .dispatch import Dispatch, Outlet
from .flow import AckThrottle, read_grant
from .giving_up import GiveUps
from .options import StreamOptions
from .subscribers import Known, Subscribers

__all__ = ["AgentParts", "PullingAgent"]

log = logging.getLogger("millstream.agent")

FORGETS_PER_IDLE_TIME = 10
CLOCKS_APART_S = 60.0  # wall clocks of silos and queue servers differ by less


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What the agents of one provider in one silo share."""

    adapter: QueueAdapter
    capabilities: frozenset[Capability]
    options: StreamOptions
    outlet: Outlet
    give_ups: GiveUps
    known: Known
    clock: Clock
    new_tasks: Callable[[], Tasks]
    calls: Tasks  # delivery calls, until the provider ends


class PullingAgent:
    """Reads one queue in one epoch, until it is stopped or fenced.

    Args:
        checkpoint: where a former owner was, for providers that keep no position.
        may_repeat: what is read may have been delivered by a former owner.
        changed: called when the owner of the queue should decide anew.
    """

    def __init__(
        self,
        parts: AgentParts,
        queue: QueueId,
        epoch: int,
        checkpoint: Token | None,
        *,
        may_repeat: bool = False,
        changed: Callable[[QueueId], None],
    ) -> None:
        self._parts = parts
        self._options = options = parts.options
        self._clock = parts.clock
        self._tasks = parts.new_tasks()
        self._changed = changed
        self.queue = queue
        self.epoch = epoch
        self._keeps_no_position = Capability.OWN_POSITION not in parts.capabilities
        self.has_positions = has_positions(parts.capabilities)
        self._has_wakeup = Capability.WAKEUP in parts.capabilities
        self._start_after = checkpoint if self._keeps_no_position else None
        self.cache = QueueCache(options.cache, self._start_after)
        self._receiver: QueueReceiver | None = None
        self.dispatch = Dispatch(
            self,
            parts.outlet,
            self.cache,
            parts.give_ups,
            calls_out_max=options.calls_out_max,
            clock=parts.clock,
            tasks=parts.new_tasks(),
            calls=parts.calls,
        )
        self.subscribers = Subscribers(
            self.cache,
            self.dispatch,
            parts.known,
            options.delivery,
            progressed=self.progressed,
            clock=parts.clock,
            tasks=parts.new_tasks(),
        )
        self._acks = AckThrottle(options.flow, self._start_after, self._clock.now())
        self._loops: list[asyncio.Task[None]] = []
        self._waiting: deque[QueueMessage] = deque()
        self._room = asyncio.Event()
        self._ack_due = asyncio.Event()
        self._may_repeat = may_repeat  # what is read was perhaps delivered by a former owner
        self._started_s = self._clock.wall_s()
        self._repeats_waiting = 0
        self.repeats_upto = -1  # index of the last such message in the cache
        self.is_acked = True  # False: the last acknowledgement failed, so what is done comes again
        self.is_fenced = False
        self.is_reading = False
        self.read_count = 0
        self.backlog = 0  # events not read yet, when it was measured last
        self._forget_at_s = 0.0
        self._polls = Backoff(options.poll_first_s, 2, options.poll_ceiling_s)
        self._empty_reads = 0

    # -- life

    def start(self) -> None:
        """Begin reading and delivering."""
        for loop in (self._read_forever(), self._keep_house()):
            self._loops.append(self._tasks.start(loop))

    @property
    def checkpoint(self) -> Token | None:
        """Everything up to here is done; kept in the queue record for providers without one."""
        return self.cache.acked_upto() if self._keeps_no_position else None

    @property
    def in_flight(self) -> int:
        """Delivery calls that are out."""
        return self.dispatch.calls_out

    @property
    def undone(self) -> int:
        """Events that were read and are not done for each of their subscriptions.

        One at least while the backlog that a former owner may have delivered is not read.
        """
        self.cache.purge()
        return self.cache.events + self._may_repeat

    def pause(self) -> None:
        """Read no more and start no more deliveries; those that are out go on."""
        self.dispatch.pause()
        self._loops[0].cancel()

    def resume(self) -> None:
        """Undo a pause."""
        self._loops[0] = self._tasks.start(self._read_forever())
        self.dispatch.resume()

    async def stop(self) -> None:
        """Acknowledge what is done and let the queue go; repeatable."""
        self.dispatch.close()
        self.subscribers.close()
        await self._tasks.aclose()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            upto = None if self.is_fenced else self.cache.acked_upto()
            if upto is not None:
                self.is_acked = await self._attempt("last acknowledgement", receiver.ack(upto))
            await self._attempt("closing its receiver", receiver.aclose())

    async def _attempt(self, what: str, step: Awaitable[None]) -> bool:
        """A last step; the queue is let go whatever an adapter raises."""
        try:
            await step
        except Exception as error:
            log.warning("%s: %s: %r", self.queue, what, error)
            return False
        return True

    def abort(self) -> None:
        """Stop without a word, as when the silo was evicted."""
        self.dispatch.close()
        self.subscribers.close()
        self._tasks.cancel()

    # -- reading

    async def _read_forever(self) -> None:
        try:
            receiver = await self._open()
            while True:
                await self._read_once(receiver)
        except QueueFenced as error:
            self._fenced(error)

    async def _open(self) -> QueueReceiver:
        while self._receiver is None:
            try:
                self._receiver = await self._started_receiver()
            except QueueFenced:
                raise
            except Exception as error:  # whatever an adapter raises, reading goes on
                log.warning("%s: cannot start reading: %r", self.queue, error)
                await asyncio.sleep(self._options.read_retry_s)
        self.is_reading = True
        return self._receiver

    async def _started_receiver(self) -> QueueReceiver:
        receiver = self._parts.adapter.receiver(self.queue, self.epoch)
        try:
            await receiver.start(self._start_after)
        except BaseException:
            await self._attempt("closing a receiver that did not start", receiver.aclose())
            raise
        return receiver

    async def _read_once(self, receiver: QueueReceiver) -> None:
        if self._waiting:
            self._take(())
        self.cache.purge()
        grant = read_grant(self.cache.room(), self._options.flow)
        if self._waiting or not grant.is_open:
            self._room.clear()
            await self._room.wait()
            return
        try:
            messages = await receiver.read(grant.events, grant.size_bytes, self._read_wait_s())
        except QueueFenced:
            raise
        except Exception as error:
            log.warning("%s: read failed: %r", self.queue, error)
            await asyncio.sleep(self._options.read_retry_s)
            return
        self._mark_repeats(messages)
        self._take(messages)
        if messages or self._has_wakeup:
            self._empty_reads = 0
            return
        self._empty_reads += 1
        await asyncio.sleep(self._polls.whole_s(self._empty_reads))

    def _read_wait_s(self) -> float:
        return self._options.read_wait_s if self._has_wakeup else 0.0

    def _mark_repeats(self, messages: Sequence[QueueMessage]) -> None:
        """After an unclean hand-over, what was stored before it may be known to its handlers.

        That is the backlog: up to the first read that finds nothing, or a message that is younger
        than the hand-over.
        """
        if not self._may_repeat:
            return
        young_s = self._started_s + CLOCKS_APART_S
        self._may_repeat = bool(messages) and messages[-1].enqueued_s < young_s
        self._repeats_waiting += len(messages)

    def _take(self, messages: Sequence[QueueMessage]) -> None:
        """Put messages into the cache and hand them to their subscriptions, as far as they fit."""
        self._waiting.extend(messages)
        self.cache.purge()
        while self._waiting and self.cache.fits(self._waiting[0]):
            message = self._waiting.popleft()
            index = self.cache.append(message)
            if self._repeats_waiting:
                self._repeats_waiting -= 1
                self.repeats_upto = index
            self.read_count += len(message.items)
            self.subscribers.route(message, index)
        self.dispatch.pump()

    def _fenced(self, error: QueueFenced) -> None:
        log.warning("%s: fenced in epoch %d: %s", self.queue, self.epoch, error)
        self.dispatch.pause()
        self.fenced()

    def fenced(self) -> None:
        """Another silo reads the queue in a newer epoch: write nothing more."""
        self.is_fenced = True
        self._changed(self.queue)

    def drained(self) -> None:
        """A call that was out has ended while nothing new is sent."""
        self._changed(self.queue)

    async def measure(self) -> None:
        """Ask the provider how much is not read yet, if it can tell."""
        if isinstance(self._receiver, Measurable):
            try:
                self.backlog = await self._receiver.backlog()
            except Exception as error:  # whatever an adapter raises
                log.info("%s: backlog is not known: %s", self.queue, error)

    # -- housekeeping

    def progressed(self) -> None:
        """A delivery moved: there may be room, and something to acknowledge."""
        self._ack_due.set()
        if not self._room.is_set():
            self._room.set()

    async def _keep_house(self) -> None:
        """Acknowledge, and forget idle streams."""
        while True:
            await self._ack_due.wait()
            self._ack_due.clear()
            try:
                await self._acknowledge()
            except QueueFenced as error:
                self._fenced(error)
                return
            except Exception as error:
                log.warning("%s: acknowledgement failed: %r", self.queue, error)
                await asyncio.sleep(self._options.read_retry_s)
                self._ack_due.set()
            self._forget_idle_streams()

    def _forget_idle_streams(self) -> None:
        """Now and then, as it looks at each stream."""
        now_s, idle_s = self._clock.now(), self._options.stream_idle_s
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + idle_s / FORGETS_PER_IDLE_TIME
            self.subscribers.forget_idle(now_s - idle_s)

    async def _acknowledge(self) -> None:
        upto, left = self.cache.acked_upto(), self.cache.base
        self._room.set()
        now = self._clock.now()
        due = self._acks.due(upto, left, now)
        if due is None and upto is not None and self._acks.next_s > now:
            await asyncio.sleep(self._acks.next_s - now)
            upto, left = self.cache.acked_upto(), self.cache.base
            due = self._acks.due(upto, left, self._clock.now())
        if due is not None and self._receiver is not None:
            await self._receiver.ack(due)
            self._acks.sent(due, left, self._clock.now())
