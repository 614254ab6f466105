"""Streams over priority queues: grains receive the most urgent event first.

Owns: `DeadlineQueues`, `DeadlineAdapter`. Not: reading (`receiver`), enqueueing (`publishing`), who
owns a priority queue (`owner`).
Invariants: one exclusive priority queue for each queue of the provider, whose exclusivity value is
the stream, so of one stream one event at a time is with a silo, whichever reads the queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from millstream.providers.priority.core.errors import SettingsConflict
from millstream.providers.priority.core.shards import STREAMS
from millstream.providers.priority.owner.target import QueuesTarget
from millstream.providers.priority.surface.queue import PriorityQueue
from millstream.runtime import (
    ConfigError,
    Contract,
    EnqueueFailed,
    MillstreamError,
    QueueUnavailable,
)
from millstream.runtime.extending import Gateway, check_kind, check_text
from millstream.streams import AdapterHost, Capability, MessageLimits, OutMessage, QueueId, Token

from .options import STREAM_KEY, DeadlineOptions
from .publishing import cause_of, enqueue
from .receiver import DeadlineReceiver

__all__ = ["DeadlineAdapter", "DeadlineQueues"]

PATIENCE_S = 6.0
"""How long a call is asked again: the runtime waits 10 s for an answer."""
C = TypeVar("C", bound=Contract)


class DeadlineQueues:
    """Queues of earliest deadlines first: `PersistentStreams(DeadlineQueues(), balancer=...)`.

    The header `priority` of an event, a whole number such as a deadline in Unix milliseconds, says
    how urgent it is; lower is more urgent, and without it the time of publishing counts. Events of
    one stream are delivered one at a time, the most urgent first; those of different streams beside
    each other. An event whose handler fails comes again after the back-off, in any silo, and keeps
    no other stream waiting.

    Args:
        part: the name under which all silos were given `PriorityQueues`, whose store keeps them.
        durable: whether that store does; `EmbeddedStore` does, `MemoryStore` does not.
        options: leases, limits. All silos have the same.

    Raises ConfigError.
    """

    def __init__(
        self,
        part: str = "priority",
        /,
        *,
        durable: bool = True,
        options: DeadlineOptions | None = None,
    ) -> None:
        check_text("the name of a part", part)
        self._part = part
        self._is_durable = durable
        self._options = DeadlineOptions() if options is None else options
        check_kind("DeadlineQueues(options)", self._options, DeadlineOptions)
        always = {Capability.WAKEUP, Capability.ITEM_ACK, Capability.LEASED}
        kept = {Capability.DURABLE} if durable else set[Capability]()
        self.capabilities = frozenset({Capability.OWN_POSITION, *always, *kept})
        self.agreement: Mapping[str, str] = {"part": part, "options": repr(self._options)}

    async def open(self, provider: str, host: AdapterHost, /) -> DeadlineAdapter:
        return DeadlineAdapter(host, self._part, self._is_durable, self._options)


class DeadlineAdapter:
    """The provider in one silo."""

    def __init__(
        self, host: AdapterHost, part: str, is_durable: bool, options: DeadlineOptions
    ) -> None:
        self._host = host
        self._part = part
        self._is_durable = is_durable
        self._options = options
        self.message_limits = MessageLimits(bytes_max=options.payload_bytes_max)
        self._opener = HostOpener(host)
        self._queues: dict[QueueId, PriorityQueue] = {}
        self._made: set[QueueId] = set()  # with these settings, as far as is known here

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Store messages, each under its priority."""
        try:
            found = await self.make(queue)
        except QueueUnavailable as error:
            raise EnqueueFailed((), error) from None
        try:
            most = self._options.payload_bytes_max
            return await enqueue(found, messages, self._host.clock, most)
        except EnqueueFailed:
            self._made.discard(queue)  # perhaps it was deleted
            raise

    def receiver(self, queue: QueueId, epoch: int, /) -> DeadlineReceiver:
        worker = f"{self._host.silo} in epoch {epoch}"

        def make() -> Awaitable[PriorityQueue]:
            self._made.discard(queue)  # perhaps it was deleted
            return self.make(queue)

        return DeadlineReceiver(make, worker)

    async def aclose(self) -> None:
        """Nothing is open: leases are their receivers'."""

    async def make(self, queue: QueueId) -> PriorityQueue:
        """The priority queue of a queue, made if it is not there. Raises QueueUnavailable."""
        found = self._queues.get(queue)
        if found is None:
            name = f"{STREAMS}{self._host.provider}/{queue}"
            found = PriorityQueue(self._opener, self._part, name, PATIENCE_S)
            self._queues[queue] = found
        if queue not in self._made:
            self._check_store()
            try:
                await self._make(found)
            except MillstreamError as error:
                raise QueueUnavailable(str(cause_of(found.name, error))) from None
            self._made.add(queue)
        return found

    async def _make(self, queue: PriorityQueue) -> None:
        try:
            await queue.create(self._options.settings())
        except SettingsConflict:  # an operator has changed it, or options were others
            key = (await queue.settings()).settings.exclusivity_key
            if key != STREAM_KEY:
                text = f"its exclusivity_key is {key!r}, not {STREAM_KEY!r}: delete the queue"
                raise QueueUnavailable(f"priority queue {queue.name!r}: {text}") from None

    def _check_store(self) -> None:
        """Raise QueueUnavailable if the store of this silo's part is not what was said."""
        target = self._host.targets.find(f"{QueuesTarget.target_name}/{self._part}")
        if isinstance(target, QueuesTarget) and self._is_durable and not target.is_durable:
            raise QueueUnavailable(
                f"the store of part {self._part!r} is not durable: write "
                f"DeadlineQueues({self._part!r}, durable=False)"
            )


class HostOpener:
    """Opens priority queues in the silo of an adapter (`Opener`), by what an adapter is given."""

    def __init__(self, host: AdapterHost) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        chance = int(host.clock.uniform(0.0, 1.0) * 2**52)  # opened twice in one silo
        self._name = f"{host.silo}/{host.provider}/{chance:013x}"

    @property
    def gateway(self) -> Gateway | None:
        """None: it is in a silo."""
        return None

    def grain(self, cls: type[C], key: str, /) -> C:
        found: C = self._host.grain(cls, key)
        return found

    def part(self, name: str, /) -> Any:
        raise ConfigError(f"adapters know no parts, also not {name!r}")

    def new_name(self) -> str:
        return f"{self._name}/{next(self._numbers):x}"

    def check_running(self) -> None:
        """A silo that has ended answers no call."""
