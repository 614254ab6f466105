"""`DeadlineQueues`: streams whose most urgent event is delivered first.

Owns `DeadlineQueues` and `DeadlineAdapter`. Reading is in `receiver`, enqueueing in `publishing`,
and the ownership of priority queues in `owner`.

Invariant: each queue of the provider is one exclusive priority queue, and the exclusivity value of
a message is its stream. Therefore only one silo has an event of a stream at a time, whichever silo
reads the queue.
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
"""How long a call is retried, in seconds. The runtime waits 10 s for an answer."""
C = TypeVar("C", bound=Contract)


class DeadlineQueues:
    """Queues of a stream provider that deliver the most urgent event first.

    Use it with `PersistentStreams(DeadlineQueues(), balancer=...)`. All silos also need the part
    `PriorityQueues`.

    - The header `PRIORITY_HEADER` of an event is a whole number, such as a deadline in Unix
      milliseconds; lower is more urgent. Without it, the time of publishing counts.
    - Events of one stream are delivered one at a time, the most urgent of the waiting ones first.
      Events of different streams are delivered in parallel.
    - An event is leased while it waits and runs. If its handler fails, the event comes back after
      the back-off, in any silo, and delays no other stream.
    - If a silo crashes, its events are delivered again after `lease_s`. Handlers are called at
      least once.
    - Because the order is that of urgency, there is no `commit_with`, no rewinding, and no start at
      a token.
    - Queues are priority queues of the names `stream/PROVIDER/QUEUE`; read them with
      `priority_queue`.

    Its capabilities are `WAKEUP`, `ITEM_ACK`, `LEASED`, `OWN_POSITION` and, with `durable`,
    `DURABLE`.

    Args:
        part: The name under which all silos have `PriorityQueues`, whose store keeps the events.
        durable: Whether that store is durable. Set it to False with `MemoryStore`.
        options: Leases and limits; all silos must have the same.

    Raises:
        ConfigError: The options have another type.
        TypeError: The part's name is not a text.
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
        """Open the provider in one silo; `PersistentStreams` calls it."""
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
        # queues that have these settings, as far as this silo knows
        self._made: set[QueueId] = set()

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Store messages, each with its priority."""
        try:
            found = await self.make(queue)
        except QueueUnavailable as error:
            raise EnqueueFailed((), error) from None
        try:
            most = self._options.payload_bytes_max
            return await enqueue(found, messages, self._host.clock, most)
        except EnqueueFailed:
            self._made.discard(queue)  # the queue may have been deleted
            raise

    def receiver(self, queue: QueueId, epoch: int, /) -> DeadlineReceiver:
        worker = f"{self._host.silo} in epoch {epoch}"

        def make() -> Awaitable[PriorityQueue]:
            self._made.discard(queue)  # the queue may have been deleted
            return self.make(queue)

        return DeadlineReceiver(make, worker)

    async def aclose(self) -> None:
        """Do nothing: receivers own the leases."""

    async def make(self, queue: QueueId) -> PriorityQueue:
        """The priority queue of a provider's queue, created if it is missing.

        Raises QueueUnavailable.
        """
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
        except SettingsConflict:  # an operator changed the settings, or the options were different
            key = (await queue.settings()).settings.exclusivity_key
            if key != STREAM_KEY:
                text = f"its exclusivity_key is {key!r}, not {STREAM_KEY!r}: delete the queue"
                raise QueueUnavailable(f"priority queue {queue.name!r}: {text}") from None

    def _check_store(self) -> None:
        """Raise QueueUnavailable if the part's store is not durable although `durable` is set."""
        target = self._host.targets.find(f"{QueuesTarget.target_name}/{self._part}")
        if isinstance(target, QueuesTarget) and self._is_durable and not target.is_durable:
            raise QueueUnavailable(
                f"the store of part {self._part!r} is not durable: use a durable store, or "
                f"DeadlineQueues({self._part!r}, durable=False)"
            )


class HostOpener:
    """Opens priority queues with the services of an adapter (an `Opener`)."""

    def __init__(self, host: AdapterHost) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        # the provider may be opened twice in one silo
        chance = int(host.clock.uniform(0.0, 1.0) * 2**52)
        self._name = f"{host.silo}/{host.provider}/{chance:013x}"

    @property
    def gateway(self) -> Gateway | None:
        """None, because the code runs in a silo."""
        return None

    def grain(self, cls: type[C], key: str, /) -> C:
        found: C = self._host.grain(cls, key)
        return found

    def part(self, name: str, /) -> Any:
        raise ConfigError(f"a queue adapter cannot look up parts such as {name!r}")

    def new_name(self) -> str:
        return f"{self._name}/{next(self._numbers):x}"

    def check_running(self) -> None:
        """Do nothing: a silo that has ended answers no call."""

    def decode_error(self, data: bytes, /) -> Exception:
        raise ConfigError("a queue adapter stores no errors")
