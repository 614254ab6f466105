"""A priority queue as programs see it.

Owns: `PriorityQueue`. Not: where it comes from (`opening`), polls (`poll`), leases (`lease`), what
an operation does (the core).
Invariants: times are seconds here and milliseconds below; a refusal names queue, field and limit.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterable
from typing import cast

from millstream.providers.priority.core.body import (
    PRIORITY_MAX,
    REASON_BYTES_MAX,
    check_flag,
    check_number,
    check_request_text,
)
from millstream.providers.priority.core.commands import (
    Cancel,
    Complete,
    Configure,
    Depth,
    EnqueueMany,
    Extend,
    Fail,
    Get,
    Page,
    Peek,
    Prioritise,
    ReadSettings,
    Release,
    Requeue,
    Values,
)
from millstream.providers.priority.core.errors import PriorityQueueError, RequestInvalid
from millstream.providers.priority.core.message import LeaseToken, State
from millstream.providers.priority.core.results import (
    Done,
    Enqueued,
    EnqueuedMany,
    MessageView,
    ValueDepths,
)
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow
from millstream.providers.priority.core.shards import SHARD_MARK
from millstream.providers.priority.store.contract import ClockReading
from millstream.runtime.extending import Opener, show_text, show_value

from .given import (
    NewMessage,
    Pairs,
    as_given,
    check_count,
    check_seconds,
    dequeue_of,
    enqueue_of,
    enqueues_of,
    milliseconds,
    pairs_of,
    whole,
)
from .lease import Lease
from .poll import give_back
from .priorities import Priority
from .routed import QueueCalls

__all__ = ["PriorityQueue"]

LEASES_WAIT_S = 30.0
"""How long one poll of `leases` waits."""


class PriorityQueue:
    """One priority queue; made by `priority_queue`.

    Every operation may raise what the runtime raises (SiloUnavailable, CallTimeout, Overloaded,
    NotInCluster, NotHosted), StorageUnavailable, and the errors that it names. What may pass is
    asked again for `patience_s` before.

    Attributes: `name`.
    """

    def __init__(self, opener: Opener, part: str, name: str, patience_s: float) -> None:
        check_request_text(show_value(name), "queue", name)
        if SHARD_MARK in name:
            raise RequestInvalid(show_value(name), "queue", f"has {SHARD_MARK!r} in its name")
        check_seconds(name, "patience_s", patience_s, math.inf)
        self.name = name
        self._calls = QueueCalls(opener, part, name, patience_s)

    def __repr__(self) -> str:
        return f"<priority queue {show_text(repr(self.name))}>"

    # -- into the queue

    async def enqueue(
        self,
        payload: bytes,
        *,
        priority: Priority = None,
        id: str | None = None,
        metadata: Pairs = (),
        invisible_s: float | None = None,
        lease_s: float | None = None,
        attempts: int | None = None,
    ) -> Enqueued:
        """Take a message in. It can be dequeued when this returns.

        Args:
            payload: at most `payload_bytes_max` of the queue, 32,768 bytes.
            priority: lower is more urgent: a number, such as a deadline in Unix milliseconds; a
                `PriorityClass`, from the time of the enqueue; None: that time itself.
            id: None: one is made. The same body under the same id is taken once, so who enqueues
                again gives the priority as a number, too.
            metadata: at most 4 pairs; in an exclusive queue one has its `exclusivity_key`.
            invisible_s, lease_s, attempts: None: as the queue has them.
        Raises: `RequestInvalid`, `ExclusivityMissing`, `EnqueueBlocked`, `MessageExists`,
            `PriorityQueueFull`, `PriorityQueueNotFound` (queues are not created on use).
        """
        calls, terms = self._calls, (invisible_s, lease_s, attempts)
        command = enqueue_of(self.name, calls.new_name, payload, priority, id, metadata, *terms)
        done: Enqueued = await calls.do(command)
        return done

    async def enqueue_many(
        self, messages: Iterable[NewMessage], *, all_or_nothing: bool = False
    ) -> list[Enqueued | PriorityQueueError]:
        """Take messages in, at most 1,000, in order and at once; for each what became of it.

        Args:
            all_or_nothing: the first refusal is raised, and nothing was changed.
        """
        check_flag(self.name, "all_or_nothing", all_or_nothing)
        commands = enqueues_of(self.name, messages, self._calls.new_name)
        many = cast(EnqueuedMany, await self._calls.do(EnqueueMany(commands, all_or_nothing)))
        why = {refused.at: as_given(refused.error(self.name)) for refused in many.refusals}
        return [why[at] if one is None else one for at, one in enumerate(many.answers)]

    async def requeue(self, id: str, *, new_id: str | None = None) -> Enqueued:
        """An errored or canceled message once more, as a new one with all its attempts.

        Args:
            new_id: None: it is made of `id` and the message's sequence, so who asks again adds no
                other message, for as long as both are kept. In a queue of several shards that
                is simple, only that id is sure to belong where the message is.
        Raises: as `enqueue`; `MessageNotFound`; `RequestInvalid`: it is in another state; `Moved`:
            it, or `new_id`, belongs to another shard by now.
        """
        check_request_text(self.name, "id", id)
        if new_id is not None:
            check_request_text(self.name, "new_id", new_id)
        return cast(Enqueued, await self._calls.do(Requeue(id, new_id)))

    # -- out of the queue

    async def dequeue(
        self,
        *,
        worker: str,
        count: int = 1,
        wanted: Pairs = (),
        lease_s: float | None = None,
        wait_s: float = 0.0,
        same_value_ok: bool = False,
    ) -> list[Lease]:
        """Lease the most urgent messages that can be had; an empty list: there are none.

        Who is cancelled meanwhile leaves: messages that were leased for it are given back, with
        their attempts.

        Args:
            worker: who works, for people who look.
            count: at most so many, 1..1,000; fewer when their payloads reach 16 MiB.
            wanted: only messages with all of these pairs.
            lease_s: how long, instead of what messages or the queue say.
            wait_s: wait so long for a first message. Who waits longer is served before.
            same_value_ok: in an exclusive queue, messages of one value may come together.
        Raises: `RequestInvalid`; `PriorityQueueNotFound`: the queue was deleted while this waited,
            or queues are not created on use; Overloaded: as many wait as may.
        """
        command = dequeue_of(self.name, worker, count, wanted, lease_s, same_value_ok)
        wait_ms = milliseconds(self.name, "wait_s", wait_s)
        return await self._calls.leases(command, (wait_ms or 0) / 1000)

    async def leases(
        self,
        *,
        worker: str,
        count: int = 1,
        wanted: Pairs = (),
        lease_s: float | None = None,
        same_value_ok: bool = False,
    ) -> AsyncGenerator[Lease, None]:
        """Leases for ever, one after the other: `async for lease in queue.leases(worker="w1")`.

        Waits while there are none. With a `count` above 1 so many are leased at once, and the time
        of the later ones passes while the first are worked at. Those that were not given yet when
        the loop ends are given back. Raises as `dequeue`.
        """
        while True:
            found = await self.dequeue(
                worker=worker,
                count=count,
                wanted=wanted,
                lease_s=lease_s,
                wait_s=LEASES_WAIT_S,
                same_value_ok=same_value_ok,
            )
            try:
                while found:
                    yield found.pop(0)
            finally:
                give_back(found)

    # -- of one message

    async def cancel(self, id: str, *, reason: str = "") -> Done:
        """The work is not needed any more, in whatever state it is; who works at it loses its
        lease.

        Raises: `MessageNotFound`, `MessageFinished`, `RequestInvalid`.
        """
        check_request_text(self.name, "id", id)
        check_request_text(self.name, "reason", reason, least=0, most=REASON_BYTES_MAX)
        return cast(Done, await self._calls.do(Cancel(id, None, reason)))

    async def prioritise(self, id: str, priority: int) -> Done:
        """Give a message another priority; while it runs, for when it comes back. Raises as
        `cancel`."""
        check_request_text(self.name, "id", id)
        check_number(self.name, "priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
        return cast(Done, await self._calls.do(Prioritise(id, priority)))

    async def get(self, id: str) -> MessageView:
        """A message as it is. Raises `MessageNotFound`, `PriorityQueueNotFound`."""
        check_request_text(self.name, "id", id)
        return cast(MessageView, await self._calls.look(Get(id)))

    # -- leases of which only the token is known, as another program has the block

    async def complete(self, id: str, token: LeaseToken) -> Done:
        """The work is done. Raises `LeaseLost`, `MessageFinished`, `MessageNotFound`,
        `RequestInvalid`."""
        return await self._end(Complete(id, token))

    async def fail(self, id: str, token: LeaseToken, *, reason: str = "") -> Done:
        """The work cannot be done: errored, whatever attempts are left. Raises as `complete`."""
        check_request_text(self.name, "reason", reason, least=0, most=REASON_BYTES_MAX)
        return await self._end(Fail(id, token, reason))

    async def release(
        self,
        id: str,
        token: LeaseToken,
        *,
        delay_s: float = 0.0,
        refund: bool = False,
        reason: str = "",
    ) -> Done:
        """Give the message back, to be had again after `delay_s`. Raises as `complete`.

        Args:
            refund: the attempt was none, as the work was not begun.
        """
        delay_ms = milliseconds(self.name, "delay_s", delay_s) or 0
        check_flag(self.name, "refund", refund)
        check_request_text(self.name, "reason", reason, least=0, most=REASON_BYTES_MAX)
        return await self._end(Release(id, token, delay_ms, refund, reason))

    async def extend(self, id: str, token: LeaseToken, lease_s: float | None = None) -> Done:
        """The lease holds until `lease_s` from now, if that is later. Raises as `complete`.

        Args:
            lease_s: default: as message and queue say.
        """
        return await self._end(Extend(id, token, milliseconds(self.name, "lease_s", lease_s)))

    async def _end(self, ending: Complete | Fail | Release | Extend) -> Done:
        check_request_text(self.name, "id", ending.id)
        if not isinstance(ending.token, LeaseToken):
            raise RequestInvalid(
                self.name, "token", f"is {show_value(ending.token)}, no LeaseToken"
            )
        return cast(Done, await self._calls.do(ending))

    # -- of all

    async def peek(self, count: int = 1, *, wanted: Pairs = ()) -> list[MessageView]:
        """What a dequeue would lease, and leases nothing. Raises `RequestInvalid`,
        `PriorityQueueNotFound`."""
        look = Peek(check_count(self.name, count), pairs_of(self.name, "wanted", wanted))
        seen = await self._calls.look(look)
        return list(cast("tuple[MessageView, ...]", seen))

    async def page(
        self,
        count: int = 100,
        *,
        after: int = 0,
        state: State | None = None,
        wanted: Pairs = (),
    ) -> list[MessageView]:
        """Messages in the order in which they were enqueued: O(n) of the queue. Fewer than `count`
        are the last ones, unless their payloads have 16 MiB together.

        Args:
            after: `sequence` of the last one of the page before.
            state, wanted: only messages in this state, with all of these pairs.
        """
        check_count(self.name, count)
        whole(self.name, "after", after)
        if state is not None and not isinstance(state, State):
            raise RequestInvalid(self.name, "state", f"is {show_value(state)}, no State")
        look = Page(count, after, state, pairs_of(self.name, "wanted", wanted))
        return list(cast("tuple[MessageView, ...]", await self._calls.look(look)))

    async def depth(self, *, wanted: Pairs = (), value: str | None = None) -> dict[State, int]:
        """How many messages are in each state.

        Args:
            wanted: only those with all of these pairs.
            value: only those of this exclusivity value.
        """
        if value is not None:
            check_request_text(self.name, "value", value, least=0)
        look = Depth(pairs_of(self.name, "wanted", wanted), value)
        return cast("dict[State, int]", await self._calls.look(look))

    async def values(self) -> dict[str, dict[State, int]]:
        """The depth of each exclusivity value; of a simple queue none."""
        return cast(ValueDepths, await self._calls.look(Values())).values

    # -- the queue itself

    async def create(self, settings: QueueSettings | None = None) -> SettingsRow:
        """Create the queue; one that has these settings already is left alone.

        Raises: `SettingsConflict`: it has others.
        """
        wanted = QueueSettings() if settings is None else self._check(settings)
        return await self._calls.create(wanted)

    async def settings(self) -> SettingsRow:
        """The settings, and which version of them. Raises `PriorityQueueNotFound`."""
        return cast(SettingsRow, await self._calls.look(ReadSettings()))

    async def configure(
        self, settings: QueueSettings, *, version: int | None = None
    ) -> SettingsRow:
        """Change the settings.

        Args:
            version: which ones the caller knew; None: whichever. A lost answer is asked for again,
                so without a version what somebody else sets before this returns may be undone.
        Raises: `SettingsConflict`: others were set meanwhile, or messages that are not finished
            stand against another exclusivity key; `PriorityQueueNotFound`.
        """
        if version is not None:
            whole(self.name, "version", version)
        command = Configure(self._check(settings), version)
        return cast(SettingsRow, await self._calls.do(command))

    def _check(self, settings: QueueSettings) -> QueueSettings:
        if not isinstance(settings, QueueSettings):
            what = f"is {show_value(settings)}, no QueueSettings"
            raise RequestInvalid(self.name, "settings", what)
        return settings

    async def clocks(self) -> tuple[ClockReading, ...]:
        """The time of each shard of the queue beside its machine's, in Unix milliseconds.

        Both agree unless the machine's clock was wrong once. Raises `PriorityQueueNotFound`.
        """
        return await self._calls.clocks(False)

    async def reset_clocks(self) -> tuple[ClockReading, ...]:
        """Set the time of each shard to its machine's, also back: after a wrong clock.

        What waits for a time (a lease, a delay, retention) waits for as long as before. Cost: each
        message that is not pending is stored again. Raises `PriorityQueueNotFound`.
        """
        return await self._calls.clocks(True)

    async def delete(self) -> None:
        """Delete the queue with its messages, whatever state they are in; no events tell of them.

        Polls that wait get `PriorityQueueNotFound`. A worker that has a lease hears of it when it
        ends that: `MessageNotFound`, or `PriorityQueueNotFound`. Where queues are created on use,
        the next enqueue or dequeue makes a new one; what comes to that before this returns may be
        deleted too, as a lost answer is asked for again. Raises `PriorityQueueNotFound`.
        """
        await self._calls.delete()
