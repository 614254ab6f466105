"""The generator's factory, adapter, receiver and reader.

This module owns `GeneratorQueues` and the objects that it opens. `sequence` owns the order of
events, `events` their items, and `event_rate` their rate. Invariants:

- A stream is generated in the queue that the provider's mapper gives it.
- The token of an event is (era, number in the queue).
- A receiver continues right after its start position.
- Only `read` waits, and never between taking events and returning them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from millstream.runtime import ConfigError, CursorTooOld, StreamError
from millstream.runtime.extending import check_kind
from millstream.streams.api.namespace import StreamNamespace
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.host import AdapterHost
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.contracts.message import OutMessage, Page, QueueMessage
from millstream.streams.contracts.token import Token

from .event_rate import EventRate
from .events import Generated, GeneratedEvent, ItemMaker
from .options import GeneratorOptions
from .sequence import QueueSequence

__all__ = ["GeneratorAdapter", "GeneratorQueues", "GeneratorReader", "GeneratorReceiver"]


class GeneratorQueues:
    """A queue provider that generates its own events.

    Use it for tests, benchmarks and first experiments: it needs no broker and no producer, and
    every run has the same events. Example: `PersistentStreams(GeneratorQueues(Generated(ARRIVALS,
    make)))`.

    - The provider's mapper decides the queue of each stream. Each stream has its events in the
      order of their numbers, from 0.
    - Seed, queue and position determine each event, in every process and at any time. The same
      token always means the same event, so a new owner of a queue continues with the same events.
    - `events_per_s` limits the rate of all streams of the cluster together. Events come in ticks of
      10 ms. After a pause, a reader catches up by at most one second of events.
    - After the last event of all streams, reads wait and use no CPU.
    - Events begin when the first silo starts. A grain that subscribes explicitly later receives
      only later events.
    - Publishing raises `StreamError`. Opening costs about 2 µs for each stream.

    Capabilities: `REWIND`, `ORDERED`, `STABLE_TOKENS`, `WAKEUP`.

    Args:
        what: The namespaces to generate, at least one. Each is a `Generated`, a `StreamNamespace`
            whose item type has default items, or the name of a namespace, for items of type
            `GeneratedEvent`.
        options: Streams, counts, order and rate of the events. Default: `GeneratorOptions()`. Give
            all silos the same options.

    Raises:
        ConfigError: There is no namespace, a namespace is repeated, or an argument has the wrong
            type.
    """

    capabilities = frozenset(
        {Capability.REWIND, Capability.ORDERED, Capability.STABLE_TOKENS, Capability.WAKEUP}
    )

    def __init__(
        self,
        *what: Generated[Any] | StreamNamespace[Any] | str,
        options: GeneratorOptions | None = None,
    ) -> None:
        if not what:
            raise ConfigError("GeneratorQueues(): name at least one namespace to generate")
        for one in what:
            if not isinstance(one, str):
                check_kind("GeneratorQueues(what)", namespace_of(one), StreamNamespace)
        names = [one if isinstance(one, str) else namespace_of(one).name for one in what]
        if len(set(names)) < len(names):
            raise ConfigError(f"GeneratorQueues({', '.join(names)}): a namespace is repeated")
        self._what = [Generated(one) if isinstance(one, StreamNamespace) else one for one in what]
        self._options = GeneratorOptions() if options is None else options
        check_kind("GeneratorQueues(options=...)", self._options, GeneratorOptions)

    async def open(self, provider: str, host: AdapterHost, /) -> GeneratorAdapter:
        """Assign the streams to queues; the runtime calls this method.

        Args:
            provider: The name of the stream provider.
            host: The silo's side of the adapter.

        Raises:
            ConfigError: A namespace belongs to another provider, or the mapper returned an unknown
                queue.
        """
        what = [self._generate(one, provider) for one in self._what]
        return GeneratorAdapter(host, what, self._options)

    def _generate(self, one: Generated[Any] | str, provider: str) -> Generated[Any]:
        if isinstance(one, str):
            return Generated(StreamNamespace(one, GeneratedEvent, provider=provider))
        if one.namespace.provider != provider:
            raise ConfigError(
                f"GeneratorQueues as {provider!r}: {one.namespace!r} is of provider "
                f"{one.namespace.provider!r}, so its events would reach no subscription"
            )
        return one


def namespace_of(one: Generated[Any] | StreamNamespace[Any]) -> StreamNamespace[Any]:
    """Return the namespace of an argument of `GeneratorQueues`."""
    return one.namespace if isinstance(one, Generated) else one


class GeneratorAdapter:
    """The generator in one silo."""

    capabilities = GeneratorQueues.capabilities

    def __init__(
        self,
        host: AdapterHost,
        what: Sequence[Generated[Any]],
        options: GeneratorOptions,
    ) -> None:
        self.options = options
        self._provider = host.provider
        self._host = host
        self._makers = {one.namespace.name: ItemMaker(one, options.seed) for one in what}
        streams = [StreamId(name, key) for name in self._makers for key in options.keys()]
        self._stream_count = len(streams)
        self._sequences = self._deal(host.mapper, streams)

    def _deal(
        self, mapper: QueueMapper, streams: Iterable[StreamId]
    ) -> Mapping[QueueId, QueueSequence]:
        dealt: dict[QueueId, list[StreamId]] = {queue: [] for queue in mapper.queues()}
        for stream in streams:
            queue = mapper.queue_for(stream)
            if queue not in dealt:
                raise ConfigError(
                    f"the mapper puts {stream} into {queue!r}, which is not one of its queues"
                )
            dealt[queue].append(stream)
        seed, count = self.options.seed, self.options.events_per_stream
        return {queue: QueueSequence(seed, queue, mine, count) for queue, mine in dealt.items()}

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Refuse, with StreamError."""
        raise StreamError(
            f"{messages[0].stream}: provider {self._provider!r} ({queue}) generates its events and "
            "accepts none; publish to a namespace of another provider"
        )

    def receiver(self, queue: QueueId, epoch: int, /) -> GeneratorReceiver:
        """Return a receiver. Raises ConfigError for a queue that the mapper does not have."""
        return GeneratorReceiver(self, queue, self._sequence(queue))

    def reader(self, queue: QueueId, /) -> GeneratorReader:
        """Return a reader. Raises ConfigError for a queue that the mapper does not have."""
        return GeneratorReader(self, queue, self._sequence(queue))

    def _sequence(self, queue: QueueId) -> QueueSequence:
        if queue not in self._sequences:
            raise ConfigError(
                f"provider {self._provider!r} has no queue {queue!r}: its mapper has "
                f"{len(self._sequences)} queues, the first is {next(iter(self._sequences))!r}"
            )
        return self._sequences[queue]

    def pace_of(self, sequence: QueueSequence, now_s: float) -> EventRate:
        """Return the queue's share of the rate, in proportion to its streams."""
        rate = self.options.events_per_s
        if rate is None or not sequence.streams:
            return EventRate(None, now_s)
        return EventRate(rate * len(sequence.streams) / self._stream_count, now_s)

    def message(self, sequence: QueueSequence, seq: int, wall_s: float) -> QueueMessage:
        """Make the event of a number. Raises StreamError if that fails."""
        stream, number = sequence.at(seq)
        item = self._makers[stream.namespace].encode(stream, number)
        return QueueMessage(stream, Token(self.options.era, seq), [item], {}, wall_s)

    def messages(
        self, sequence: QueueSequence, first: int, count: int, max_bytes: int
    ) -> list[QueueMessage]:
        """Make up to `count` events from a number on, within `max_bytes`, but at least one.

        An event that cannot be made ends the batch. If it is the first one, StreamError is raised.
        """
        found: list[QueueMessage] = []
        left, wall_s = max_bytes, self._host.clock.wall_s()
        for seq in range(first, first + count):
            if not sequence.has(seq):
                break
            try:
                message = self.message(sequence, seq, wall_s)
            except StreamError:
                if found:
                    break  # the events before it are read first
                raise
            left -= len(message.items[0])
            if found and left < 0:
                break
            found.append(message)
        return found

    async def aclose(self) -> None:
        """Release nothing."""


class GeneratorReceiver:
    """Makes the events of one queue, in order, from a position on."""

    def __init__(self, adapter: GeneratorAdapter, queue: QueueId, sequence: QueueSequence) -> None:
        self._adapter = adapter
        self._queue = queue
        self._sequence = sequence
        self._given = 0  # the number of the last event that was read
        self._pace = EventRate(None, 0.0)

    async def start(self, after: Token | None, /) -> None:
        """Begin after a position; with None or a position of an older era, at the first event."""
        era = self._adapter.options.era
        if after is not None and after.era > era:
            raise ConfigError(
                f"{self._queue}: the position {after} is of era {after.era}, but "
                f"GeneratorOptions.era is {era}"
            )
        self._given = after.seq if after is not None and after.era == era else 0
        self._pace = self._adapter.pace_of(self._sequence, asyncio.get_running_loop().time())

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        await asyncio.sleep(0)  # there are always more events: let other tasks of this loop run
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        wanted = min(max_events, self._adapter.options.batch_events_max)
        while True:
            now_s, has_more = loop.time(), wanted > 0 and self._sequence.has(self._given + 1)
            if has_more and (due := self._pace.due(now_s, wanted)) > 0:
                found = self._adapter.messages(self._sequence, self._given + 1, due, max_bytes)
                self._given += len(found)
                self._pace.gave(len(found), now_s)
                return found
            if now_s >= end_s:
                return []
            until_s = min(end_s, self._pace.next_s) if has_more else end_s
            await asyncio.sleep(until_s - now_s)

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        """Do nothing, because the queue record has the position."""

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        """Do nothing: unacknowledged events are made again for the next receiver."""

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        """Return nothing, because this provider has no leases."""
        return ()

    async def aclose(self) -> None:
        """Release nothing."""


class GeneratorReader:
    """Makes the events of one queue again, from any position."""

    def __init__(self, adapter: GeneratorAdapter, queue: QueueId, sequence: QueueSequence) -> None:
        self._adapter = adapter
        self._queue = queue
        self._sequence = sequence

    async def bounds(self) -> tuple[Token | None, Token | None]:
        """Return the first event and the last; of an endless sequence, the highest number."""
        era, count = self._adapter.options.era, self._sequence.count
        if not count:
            return None, None
        return Token(era, 1), Token(era, count)

    async def seek(self, when: datetime, /) -> Token | None:
        """Refuse, with StreamError: generated events have no times."""
        raise StreamError(f"{self._queue}: generated events have no times; give a token")

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
        /,
    ) -> Page:
        """Return a page of events from a position on. Raises CursorTooOld for another era."""
        era, first = self._adapter.options.era, max(1, position.seq + (position.index > 0))
        if position.era != era:
            text = f"{self._queue}: {position} is not of era {era} (GeneratorOptions.era)"
            raise CursorTooOld(text, first=Token(era, 1))
        wanted = min(max_events, self._adapter.options.batch_events_max)
        found = self._adapter.messages(self._sequence, first, wanted, max_bytes)
        following = first + len(found)
        if streams is not None:
            found = [message for message in found if message.stream in streams]
        return Page(found, Token(era, following), not self._sequence.has(following))

    async def aclose(self) -> None:
        """Release nothing."""
