"""Calls of one process to one queue, with one or several shards.

Owns `QueueCalls`: the choice of the shard, and learning new layouts. One shard is in `calls`,
dequeues from several shards are in `shard_polls`, and the place of each message is in
`core.shards`.

Invariants:

- An operation has one patience, however many shards it asks.
- A queue with one shard costs no extra calls, except that reads and operations by an id refresh a
  layout older than `LAYOUT_S`.
- A message is offered to its former shard first, then to its present one.
- An operation by an id goes to the shards that may have the message, until one has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from millstream.providers.priority.core.commands import (
    Command,
    Configure,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Get,
    Look,
    Page,
    Peek,
    ReadSettings,
    Values,
)
from millstream.providers.priority.core.errors import (
    LeaseForeign,
    LeaseLost,
    MessageNotFound,
    Moved,
    PriorityQueueError,
    PriorityQueueNotFound,
    RequestInvalid,
)
from millstream.providers.priority.core.message import State
from millstream.providers.priority.core.reading import is_large
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import (
    Enqueued,
    EnqueuedMany,
    MessageView,
    ValueDepths,
)
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow
from millstream.providers.priority.owner.grain import Polled, QueueOwner
from millstream.providers.priority.store.contract import ClockReading
from millstream.runtime.extending import Backoff, Opener

from .calls import ShardCalls
from .layouts import Layout
from .lease import Lease
from .offering import Offering
from .poll import leases_of
from .shard_polls import ShardedPoll

__all__ = ["QueueCalls"]

T = TypeVar("T")
LAYOUT_S = 1.0
"""Maximum age of the layout for reads and for operations by an id, in seconds."""
PAUSES = Backoff(first_s=0.01, ceiling_s=0.5)
ELSEWHERE = (MessageNotFound, LeaseForeign)
"""Errors of a shard that does not have the message, or has another one of the same id."""
SHARD_BITS = 47
"""Bits of a message's number in a page below the number of its shard.

With `SHARDS_MAX` shards, such a number is at most 2^53, which a double of JSON represents exactly.
No shard ever has so many messages.
"""
Depths = dict[State, int]


class QueueCalls(ShardCalls):
    """The calls of the handles of one queue: to the owner of shard 0, and to other shards if
    there are any.
    """

    def __init__(self, opener: Opener, part: str, queue: str, patience_s: float) -> None:
        super().__init__(opener, part, queue, patience_s)
        self._opener, self._part = opener, part
        self._shards: dict[int, ShardCalls] = {}

    def shard(self, number: int) -> ShardCalls:
        """The calls to one shard."""
        found = self._shards.get(number)
        if found is None:
            found = ShardCalls(self._opener, self._part, self.queue, self.patience_s, number)
            self._shards[number] = found
        return found

    # -- the layout

    async def learn(self, until_s: float) -> Layout:
        """Read the present layout. A missing queue has one shard."""
        try:
            row = cast(SettingsRow, await self.look_here(ReadSettings(), until_s))
        except PriorityQueueNotFound:
            layout = Layout()
        else:
            layout = Layout.of(row.settings)
        self.routes.learn(layout, now_s())
        return layout

    async def _find_known(self, until_s: float) -> Layout:
        """The layout, at most `LAYOUT_S` old."""
        routes = self.routes
        at_s = routes.learned_s
        if routes.is_stale or at_s is None or now_s() - at_s >= LAYOUT_S:
            return await self.learn(until_s)
        return routes.layout

    # -- commands

    def do(self, command: Command, own: Request | None = None) -> Coroutine[Any, Any, Any]:
        """Carry out a command, once. Raises the errors of its operation and of `ask`.

        `own` is the caller's request id, if it has one.
        """
        if isinstance(command, Enqueue) and self.routes.total == 1:
            return self.here(command, own)
        if isinstance(command, Enqueue | EnqueueMany):
            return self._enter(command, own, self.until_s())
        if isinstance(command, Configure):
            return self._configure(command, own)
        assert not isinstance(command, Dequeue), "a dequeue is a poll, not a change"
        until_s = self.until_s()
        return self._where_it_is(
            command.id, until_s, lambda shard: shard.here(command, own, until_s)
        )

    async def _configure(self, command: Configure, own: Request | None) -> SettingsRow:
        row: SettingsRow = await self.here(command, own)
        self.routes.learn(Layout.of(row.settings), now_s())
        return row

    async def _elsewhere(
        self, command: Command, own: Request | None, until_s: float, moved: Moved
    ) -> Any:
        assert isinstance(command, Enqueue), "only an enqueue moves to another shard"
        await self.learn(until_s)
        return await self._enter(command, own, until_s)

    async def _enter(
        self, command: Enqueue | EnqueueMany, own: Request | None, until_s: float
    ) -> object:
        """Enqueue messages in their shards, and again if the layout has changed meanwhile."""
        layout, attempt = self.routes.layout, 0
        done: dict[int, Enqueued] = {}
        while True:
            try:
                if layout.total == 1:
                    answer = await self.shard(0).here(command, own, until_s)
                    return take(self.queue, answer, done)
                offering = Offering(self.queue, layout, self.shard, until_s, own, done)
                return await offering.of(command)
            except (Moved, PriorityQueueNotFound) as error:
                attempt += 1
                is_late = now_s() + PAUSES.whole_s(attempt) >= until_s
                if is_late or (layout.total == 1 and isinstance(error, PriorityQueueNotFound)):
                    raise
            finally:
                self.routes.on_changed()
            layout = await self.learn(until_s)
            if attempt > 1:  # the shards are being told the new layout
                await asyncio.sleep(PAUSES.whole_s(attempt))

    async def _where_it_is(
        self, id: str, until_s: float, call: Callable[[ShardCalls], Awaitable[T]]
    ) -> T:
        """Call the shard that has a message and the named lease.

        An id that was used twice in an exclusive queue is in two shards. A lease that is over in
        one of them may be valid in the next.
        """
        layout = await self._find_known(until_s)
        passed = ELSEWHERE if layout.key is None else (*ELSEWHERE, LeaseLost)
        found: PriorityQueueError | None = None
        for number in order_of(layout, id):
            try:
                return await call(self.shard(number))
            except passed as error:
                found = error if found is None or closeness(error) > closeness(found) else found
            except PriorityQueueNotFound:
                if number == 0:
                    raise
        assert found is not None, "shard 0 has answered"
        raise found

    # -- reads

    async def look(self, look: Look) -> object:
        """Read the queue. Raises the errors of `do`."""
        until_s = self.until_s()
        if isinstance(look, ReadSettings):
            return await self.look_here(look, until_s)
        if isinstance(look, Get):
            return await self._where_it_is(
                look.id, until_s, lambda shard: shard.look_here(look, until_s)
            )
        layout = await self._find_known(until_s)
        if layout.total == 1:
            return await self.look_here(look, until_s)
        if isinstance(look, Page):
            return await self._page(look, layout, until_s)
        shards = range(layout.total)
        seen = await asyncio.gather(*(self._look_at(number, look, until_s) for number in shards))
        return merge(look, {at: one for at, one in enumerate(seen) if one is not None})

    async def _look_at(self, number: int, look: Look, until_s: float) -> object:
        """The answer of one shard; None if it is not created yet, or not needed any more."""
        try:
            return await self.shard(number).look_here(look, until_s)
        except PriorityQueueNotFound:
            if number == 0:
                raise
            return None

    async def _page(self, look: Page, layout: Layout, until_s: float) -> tuple[MessageView, ...]:
        """Read one shard after the other."""
        first, after = place_of(look.after)
        found: list[MessageView] = []
        for number in range(first, layout.total):
            at_most = look.at_most - len(found)
            rest = look._replace(at_most=at_most, after=after)
            seen = await self._look_at(number, rest, until_s)
            views = cast("Sequence[MessageView]", seen or ())
            found += [place(number, view) for view in views]
            if len(found) >= look.at_most or is_large(found):
                break
            after = 0
        return tuple(found)

    # -- dequeues

    async def leases(self, command: Dequeue, wait_s: float) -> list[Lease]:
        """Dequeue, and wait at most `wait_s` for a first message.

        A cancelled caller loses no message.
        """
        routes, attempt = self.routes, 0
        until_s = asyncio.get_running_loop().time() + wait_s
        while True:
            if routes.is_stale:
                await self.learn(self.until_s())
            layout = routes.layout
            if layout.number:
                command = command._replace(layout=layout.number)
            if routes.total == 1:
                found = await leases_of(self, command, until_s)
            else:
                shards = [self.shard(number) for number in range(layout.total)]
                found = await ShardedPoll(shards, routes, command, until_s).leases()
            if found or not (routes.is_stale or routes.layout.number != layout.number):
                return found
            attempt += 1
            if attempt > 1:  # the shards are being told the new layout
                await asyncio.sleep(PAUSES.whole_s(attempt))
            if now_s() >= until_s + self.patience_s:
                return []

    async def poll(self, command: Dequeue, request: Request, wait_ms: int) -> Polled:
        """Make one call of a poll under the caller's request id, without retries.

        Raises `RequestInvalid` for a queue with several shards, which could not recognise a repeat.
        """
        while (layout := self.routes.layout).total == 1:
            polled = await self.poll_here(command, request, wait_ms)
            if polled.leases or polled.layout == layout.number:
                return polled
            await self.learn(self.until_s())
        what = "is not supported by a dequeue of a queue with several shards: omit it"
        raise RequestInvalid(self.queue, "Idempotency-Key", what)

    # -- the queue itself

    async def create(self, settings: QueueSettings) -> SettingsRow:
        """Create the queue.

        An existing queue with these settings stays as it is. Raises the errors of `do`.
        """
        self.routes.is_stale = True
        return await self.of_owner(lambda owner: owner.create(settings))

    async def clocks(self, is_reset: bool) -> tuple[ClockReading, ...]:
        """The clock of each shard; with `is_reset`, after it was set to the machine's clock."""
        total = (await self.learn(self.until_s())).total
        shards = [self.shard(number) for number in range(total)]
        return tuple(
            [await shard.of_owner(lambda owner: owner.clock(is_reset)) for shard in shards]
        )

    async def delete(self) -> None:
        """Delete all shards, shard 0 last, so that an incomplete deletion can be repeated."""
        for number in range((await self.learn(self.until_s())).total - 1, 0, -1):
            with suppress(PriorityQueueNotFound):
                await delete(self.shard(number))
        await delete(self)
        self.routes.learn(Layout(), now_s())


async def delete(shard: ShardCalls) -> None:
    """Delete one shard."""
    asked = 0

    async def delete(owner: QueueOwner) -> None:
        nonlocal asked
        asked += 1
        await owner.delete()

    try:
        await shard.of_owner(delete)
    except PriorityQueueNotFound:
        if asked == 1:
            raise  # otherwise an earlier call has deleted it, and its answer was lost


def closeness(error: PriorityQueueError) -> int:
    """The order of errors by how much the shard knew of the message."""
    return (MessageNotFound, LeaseForeign, LeaseLost).index(type(error))


def take(queue: str, answer: object, done: dict[int, Enqueued]) -> object:
    """The answer of a queue with one shard.

    Raises `Moved` if it has several shards and some messages belong elsewhere; `done` then has the
    stored ones.
    """
    if isinstance(answer, EnqueuedMany):
        for refused in answer.refusals:
            if refused.kind == Moved.__name__:
                done |= {at: one for at, one in enumerate(answer.answers) if one is not None}
                raise refused.error(queue)
    return answer


def now_s() -> float:
    """The time of this process."""
    return asyncio.get_running_loop().time()


def order_of(layout: Layout, id: str) -> Sequence[int]:
    """The shards that may have a message. Of a simple queue, the shards of its id come first."""
    every = range(layout.total)
    if layout.key is not None or layout.total == 1:
        return every
    homes = layout.homes(id)[::-1]
    return [*homes, *(number for number in every if number not in homes)]


def merge(look: Look, seen: Mapping[int, object]) -> object:
    """The merged answer of all shards to one read. A `Page` is read shard by shard instead."""
    answers = list(seen.values())
    if isinstance(look, Depth):
        return add_depths(cast("Sequence[Depths]", answers))
    if isinstance(look, Values):
        return values_of(cast("Sequence[ValueDepths]", answers))
    assert isinstance(look, Peek), "only answers of several shards are merged"
    return merge_peeks(cast("Mapping[int, tuple[MessageView, ...]]", seen), look.at_most)


def add_depths(depths: Sequence[Depths]) -> Depths:
    return {state: sum(depth[state] for depth in depths) for state in State}


def values_of(seen: Sequence[ValueDepths]) -> ValueDepths:
    """The counts of values.

    A value is in two shards while finished messages are left in its former one.
    """
    found: dict[str, list[Depths]] = {}
    for one in seen:
        for value, depths in one.values.items():
            found.setdefault(value, []).append(depths)
    return ValueDepths({value: add_depths(depths) for value, depths in found.items()})


def merge_peeks(
    seen: Mapping[int, tuple[MessageView, ...]], at_most: int
) -> tuple[MessageView, ...]:
    """Return the most urgent messages of all shards: at most `at_most`, and no more than an answer
    can hold.

    Of equals, lower shards come first.
    """
    views = [place(shard, view) for shard, views in seen.items() for view in views]
    chosen: list[MessageView] = []
    for view in sorted(views, key=lambda one: (one.priority, one.sequence))[:at_most]:
        chosen.append(view)
        if is_large(chosen):
            break
    return tuple(chosen)


def place(shard: int, view: MessageView) -> MessageView:
    """The message with its number in the whole queue."""
    return view._replace(sequence=(shard << SHARD_BITS) + view.sequence)


def place_of(after: int) -> tuple[int, int]:
    """Return the shard of the number `after` of a page, and the number within the shard."""
    return after >> SHARD_BITS, after & ((1 << SHARD_BITS) - 1)
