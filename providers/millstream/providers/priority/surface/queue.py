"""`PriorityQueue`: the handle with which programs use one queue.

`opening` makes handles, `poll` dequeues, `lease` has the leases, and the core carries out the
operations.

Invariants: programs pass seconds, and commands carry milliseconds. An error names the queue, the
field and the limit.
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
"""How long one dequeue of `leases` waits, in seconds."""


class PriorityQueue:
    """A handle of one priority queue, which `priority_queue` returns.

    A message is `pending` until a worker leases it. The worker then completes it, fails it, or
    releases it. A lease that ends by time makes the message pending again, until its attempts are
    used up; then the message is `errored`. Finished messages can be read for `retention_ms`; then
    they are collected, and their ids are free again.

    **Failures.** Every operation may also raise the errors of calls (`SiloUnavailable`,
    `CallTimeout`, `Overloaded`, `NotInCluster`, `NotHosted`) and `StorageUnavailable`. The handle
    first retries for `patience_s` if the error may pass. A change of messages carries a request id,
    so a retry does not carry it out twice. `create`, `configure` and `delete` have no request id,
    because repeating them has the same result. After an error of a call, an operation may have been
    carried out.

    **Order.** The most urgent message comes first; of equal priorities, the message that was
    enqueued first. In a queue with several shards, the order holds within a bound of 0.1 seconds.

    **Exclusivity.** In a queue with an `exclusivity_key`, at most `limit` leases of one value of
    that key are valid at a time. This is mutual exclusion and not order: a more urgent message of a
    value overtakes.

    Attributes:
        name: The name of the queue.
    """

    def __init__(self, opener: Opener, part: str, name: str, patience_s: float) -> None:
        check_request_text(show_value(name), "queue", name)
        if SHARD_MARK in name:
            raise RequestInvalid(
                show_value(name), "queue", f"must not have {SHARD_MARK!r} in its name"
            )
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
        """Store one message. When this returns, the message is durable and workers can lease it.

        Args:
            payload: The content, at most `payload_bytes_max` of the queue (32,768 bytes by
                default).
            priority: A lower number is more urgent. Pass a whole number from -2**53 to 2**53, such
                as a deadline in Unix milliseconds; a `PriorityClass`, which counts from the time of
                the enqueue; or None for the time of the enqueue.
            id: The message's id, 1 to 256 bytes; None chooses a new one. The same body under the
                same id is stored once. If you may enqueue it again, also pass the priority as a
                number, because the time of the enqueue is part of the body.
            metadata: At most 4 pairs of texts, each text at most 256 bytes. A message of an
                exclusive queue must have the `exclusivity_key`.
            invisible_s: How long no worker can lease the message, in seconds. None uses the queue's
                setting.
            lease_s: Length of its leases, in seconds. None uses the queue's setting.
            attempts: How often it may be leased. None uses the queue's setting.

        Returns:
            The id, state and version of the message. `is_changed` is False if it was stored before.

        Raises:
            RequestInvalid: A field is not valid or exceeds a limit of the queue.
            ExclusivityMissing: The metadata lack the queue's `exclusivity_key`.
            EnqueueBlocked: `enqueue_blocked` is set.
            MessageExists: A message with another body has this id.
            PriorityQueueFull: `messages_max` or `bytes_max` is reached.
            PriorityQueueNotFound: The queue does not exist, and first use does not create it.
        """
        calls, terms = self._calls, (invisible_s, lease_s, attempts)
        command = enqueue_of(self.name, calls.new_name, payload, priority, id, metadata, *terms)
        done: Enqueued = await calls.do(command)
        return done

    async def enqueue_many(
        self, messages: Iterable[NewMessage], *, all_or_nothing: bool = False
    ) -> list[Enqueued | PriorityQueueError]:
        """Store up to 1,000 messages, in order and in one commit per shard.

        Args:
            messages: The messages.
            all_or_nothing: Whether the first refused message refuses all of them. The error is
                raised then, and nothing changes. In a queue with several shards, all messages must
                belong to one shard.

        Returns:
            One item per message in order, either `Enqueued` or the error that refused this message.
                A refused message does not stop the others.

        Raises:
            RequestInvalid: An argument is not valid, or more than 1,000 messages are given.
            PriorityQueueError: With `all_or_nothing`, the error of the first refused message, as in
                `enqueue`.
            PriorityQueueNotFound: The queue does not exist, and first use does not create it.
        """
        check_flag(self.name, "all_or_nothing", all_or_nothing)
        commands = enqueues_of(self.name, messages, self._calls.new_name)
        many = cast(EnqueuedMany, await self._calls.do(EnqueueMany(commands, all_or_nothing)))
        why = {refused.at: as_given(refused.error(self.name)) for refused in many.refusals}
        return [why[at] if one is None else one for at, one in enumerate(many.answers)]

    async def requeue(self, id: str, *, new_id: str | None = None) -> Enqueued:
        """Enqueue a copy of an errored or canceled message, with all its attempts.

        The original message stays until it is collected.

        Args:
            id: The finished message.
            new_id: The id of the copy. None derives the id from the message, such as `a~again-7`,
                so a repeat adds no second copy as long as both are kept. In a simple queue with
                several shards, only the derived id is sure to belong to the shard of the message.

        Returns:
            The id, state and version of the copy.

        Raises:
            MessageNotFound: The message does not exist.
            RequestInvalid: The message is in another state.
            Moved: The message or `new_id` belongs to another shard. Enqueue the message as a new
                one, or omit `new_id`.
            PriorityQueueError: The copy is refused, as in `enqueue`.
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
        """Lease the most urgent messages that are available.

        A caller that is cancelled loses no message: leased messages are released in the background,
        and their attempts do not count. Waiting costs the queue no work. Of several waiting callers
        with the same filter, the first one is served first. In an exclusive queue, a value whose
        leases are all in use is skipped, and hides no other value.

        Args:
            worker: Name of the worker, 1 to 256 bytes. `get` shows it.
            count: Maximum number of messages, 1 to 1,000. There are fewer if their payloads reach
                16 MiB.
            wanted: Lease only messages that have all of these metadata pairs, at most 4. If the
                keys are one of the queue's `shapes`, the cost is O(log n). Otherwise the queue may
                first build an index.
            lease_s: Length of the leases, in seconds. None uses the setting of the message or the
                queue.
            wait_s: How long to wait for a first message, in seconds.
            same_value_ok: In an exclusive queue, whether this worker may get several messages of
                one value, even more than `limit`. Other workers get the value when fewer than
                `limit` of these leases are left.

        Returns:
            The leases, the most urgent first; an empty list if no message became available in time.

        Raises:
            RequestInvalid: An argument is not valid, or the filter would check too many messages
                and the queue already has 8 indexes.
            PriorityQueueNotFound: The queue does not exist and first use does not create it, or it
                was deleted during the wait.
            Overloaded: Too many callers wait (`PriorityOptions.waiting_polls_max`).
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
        """Iterate over leases without end: `async for lease in queue.leases(worker="w1")`.

        The iteration waits while no message is available. Leases that the loop has not received
        when it ends are released, and their attempts do not count.

        Args:
            worker: Name of the worker, 1 to 256 bytes.
            count: How many messages to lease at a time. Above 1, the time of the later leases
                passes while your code processes the earlier ones.
            wanted: Lease only messages that have all of these metadata pairs.
            lease_s: Length of the leases, in seconds. None uses the setting of the message or the
                queue.
            same_value_ok: As in `dequeue`.

        Yields:
            One lease at a time.

        Raises:
            RequestInvalid: An argument is not valid.
            PriorityQueueNotFound: As in `dequeue`.
            Overloaded: As in `dequeue`.
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

    # -- one message

    async def cancel(self, id: str, *, reason: str = "") -> Done:
        """Cancel a message in any unfinished state.

        A worker that has leased the message loses its lease.

        Args:
            id: The message.
            reason: Why, at most 1,024 bytes. The stream of changes has it; `get` shows it if the
                message was leased.

        Returns:
            The message's new state. `is_changed` is False if it was canceled before.

        Raises:
            MessageNotFound: The message does not exist.
            MessageFinished: The message is completed or errored.
            RequestInvalid: An argument is not valid.
        """
        check_request_text(self.name, "id", id)
        check_request_text(self.name, "reason", reason, least=0, most=REASON_BYTES_MAX)
        return cast(Done, await self._calls.do(Cancel(id, None, reason)))

    async def prioritise(self, id: str, priority: int) -> Done:
        """Change the priority of a message.

        The new priority of a leased message applies when the message comes back.

        Args:
            id: The message.
            priority: The new priority, from -2**53 to 2**53; lower is more urgent.

        Returns:
            The message's state.

        Raises:
            MessageNotFound: The message does not exist.
            MessageFinished: The message is finished.
            RequestInvalid: An argument is not valid.
        """
        check_request_text(self.name, "id", id)
        check_number(self.name, "priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
        return cast(Done, await self._calls.do(Prioritise(id, priority)))

    async def get(self, id: str) -> MessageView:
        """Read one message.

        Args:
            id: The message.

        Returns:
            The message with its payload, state and latest lease.

        Raises:
            MessageNotFound: The message does not exist.
            PriorityQueueNotFound: The queue does not exist.
        """
        check_request_text(self.name, "id", id)
        return cast(MessageView, await self._calls.look(Get(id)))

    # -- leases by their tokens, for a program that does not have the `Lease` object

    async def complete(self, id: str, token: LeaseToken) -> Done:
        """Complete a message whose lease another object or program holds.

        Args:
            id: The message.
            token: The token of the lease.

        Returns:
            The message's new state. A repeat has the same result.

        Raises:
            LeaseLost: The lease is over; another worker may have the message.
            LeaseForeign: The queue never gave this lease.
            MessageFinished: The message was finished in another way.
            MessageNotFound: The message does not exist.
            PriorityQueueNotFound: The queue was deleted.
            RequestInvalid: An argument is not valid.
        """
        return await self._end(Complete(id, token))

    async def fail(self, id: str, token: LeaseToken, *, reason: str = "") -> Done:
        """Make a message errored at once, even if attempts are left.

        Args:
            id: The message.
            token: The token of the lease.
            reason: Why the work failed, at most 1,024 bytes.

        Returns:
            The message's new state.

        Raises:
            PriorityQueueError: As in `complete`.
        """
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
        """Release a message, so that a worker can lease it again.

        Without attempts left, the message becomes errored.

        Args:
            id: The message.
            token: The token of the lease.
            delay_s: How long no worker can lease it, in seconds.
            refund: Whether this attempt does not count, because the work did not start.
            reason: Why the message comes back, at most 1,024 bytes.

        Returns:
            The message's new state.

        Raises:
            PriorityQueueError: As in `complete`.
        """
        delay_ms = milliseconds(self.name, "delay_s", delay_s) or 0
        check_flag(self.name, "refund", refund)
        check_request_text(self.name, "reason", reason, least=0, most=REASON_BYTES_MAX)
        return await self._end(Release(id, token, delay_ms, refund, reason))

    async def extend(self, id: str, token: LeaseToken, lease_s: float | None = None) -> Done:
        """Extend a lease. A lease is never shortened.

        Args:
            id: The message.
            token: The token of the lease.
            lease_s: The lease then ends so many seconds from now, at least. None uses the setting
                of the message or the queue.

        Returns:
            The message's state; `due_ms` is the new end of the lease.

        Raises:
            PriorityQueueError: As in `complete`.
        """
        return await self._end(Extend(id, token, milliseconds(self.name, "lease_s", lease_s)))

    async def _end(self, ending: Complete | Fail | Release | Extend) -> Done:
        check_request_text(self.name, "id", ending.id)
        if not isinstance(ending.token, LeaseToken):
            raise RequestInvalid(
                self.name, "token", f"is {show_value(ending.token)}, not a LeaseToken"
            )
        return cast(Done, await self._calls.do(ending))

    # -- all messages

    async def peek(self, count: int = 1, *, wanted: Pairs = ()) -> list[MessageView]:
        """Show the messages that a dequeue would lease, without leasing them.

        Args:
            count: Maximum number of messages, 1 to 1,000. There are fewer if their payloads reach
                16 MiB.
            wanted: Only messages that have all of these metadata pairs.

        Returns:
            The messages, the most urgent first.

        Raises:
            RequestInvalid: An argument is not valid.
            PriorityQueueNotFound: The queue does not exist.
        """
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
        """List messages in the order in which they were enqueued.

        The cost is O(n) for the whole queue, for each page. A queue with several shards lists one
        shard after the other.

        Args:
            count: Maximum number of messages, 1 to 1,000.
            after: `sequence` of the last message of the previous page; 0 starts at the beginning.
            state: Only messages in this state.
            wanted: Only messages that have all of these metadata pairs.

        Returns:
            The messages. Fewer than `count` are the last ones, unless their payloads reach 16 MiB.

        Raises:
            RequestInvalid: An argument is not valid.
            PriorityQueueNotFound: The queue does not exist.
        """
        check_count(self.name, count)
        whole(self.name, "after", after)
        if state is not None and not isinstance(state, State):
            raise RequestInvalid(self.name, "state", f"is {show_value(state)}, not a State")
        look = Page(count, after, state, pairs_of(self.name, "wanted", wanted))
        return list(cast("tuple[MessageView, ...]", await self._calls.look(look)))

    async def depth(self, *, wanted: Pairs = (), value: str | None = None) -> dict[State, int]:
        """Count the messages in each state.

        Args:
            wanted: Only messages that have all of these metadata pairs. The cost is O(1) if their
                keys are one of the queue's `shapes`.
            value: Only messages of this exclusivity value.

        Returns:
            The number of messages for every state.

        Raises:
            RequestInvalid: An argument is not valid.
            PriorityQueueNotFound: The queue does not exist.
        """
        if value is not None:
            check_request_text(self.name, "value", value, least=0)
        look = Depth(pairs_of(self.name, "wanted", wanted), value)
        return cast("dict[State, int]", await self._calls.look(look))

    async def values(self) -> dict[str, dict[State, int]]:
        """Count the messages in each state for each exclusivity value.

        Returns:
            The counts by value; empty for a queue without an `exclusivity_key`.

        Raises:
            PriorityQueueNotFound: The queue does not exist.
        """
        return cast(ValueDepths, await self._calls.look(Values())).values

    # -- the queue itself

    async def create(self, settings: QueueSettings | None = None) -> SettingsRow:
        """Create the queue. An existing queue with the same settings stays as it is.

        Args:
            settings: The settings; None uses the defaults of `QueueSettings`.

        Returns:
            The stored settings and their version.

        Raises:
            SettingsConflict: The queue exists with other settings.
            RequestInvalid: The settings are not valid for this queue.
        """
        wanted = QueueSettings() if settings is None else self._check(settings)
        return await self._calls.create(wanted)

    async def settings(self) -> SettingsRow:
        """Read the settings of the queue and their version.

        Returns:
            The settings and their version.

        Raises:
            PriorityQueueNotFound: The queue does not exist.
        """
        return cast(SettingsRow, await self._calls.look(ReadSettings()))

    async def configure(
        self, settings: QueueSettings, *, version: int | None = None
    ) -> SettingsRow:
        """Change the settings of the queue.

        Pass the version that you have read to prevent a lost update. Without a version, a retry of
        this call may undo a change that another program made before this call returned.

        Args:
            settings: All new settings. To change one field, use `dataclasses.replace`.
            version: The version on which the change is based; None overwrites any version.

        Returns:
            The stored settings and their version.

        Raises:
            SettingsConflict: The stored settings have another version; unfinished messages prevent
                another `exclusivity_key`; or a change of `shards` is still in progress.
            PriorityQueueNotFound: The queue does not exist.
            RequestInvalid: The settings are not valid for this queue.
        """
        if version is not None:
            whole(self.name, "version", version)
        command = Configure(self._check(settings), version)
        return cast(SettingsRow, await self._calls.do(command))

    def _check(self, settings: QueueSettings) -> QueueSettings:
        if not isinstance(settings, QueueSettings):
            what = f"is {show_value(settings)}, not a QueueSettings"
            raise RequestInvalid(self.name, "settings", what)
        return settings

    async def clocks(self) -> tuple[ClockReading, ...]:
        """Read the time of each shard, and the wall clock of its machine.

        Both agree unless the machine's clock was wrong at some time. A client must be connected as
        an operator.

        Returns:
            One reading per shard.

        Raises:
            NotAllowed: The client did not prove the operator's secret.
            PriorityQueueNotFound: The queue does not exist.
        """
        return await self._calls.clocks(False)

    async def reset_clocks(self) -> tuple[ClockReading, ...]:
        """Set the clock of each shard to the clock of its machine, also backwards.

        Call it after a machine's wrong clock was corrected. Leases, delays and retention keep their
        remaining length. The cost is one stored row per message that is not pending. A client must
        be connected as an operator.

        Returns:
            One reading per shard, after the change.

        Raises:
            NotAllowed: The client did not prove the operator's secret.
            PriorityQueueNotFound: The queue does not exist.
        """
        return await self._calls.clocks(True)

    async def delete(self) -> None:
        """Delete the queue with all its messages, in any state.

        Waiting dequeues get `PriorityQueueNotFound`. A worker with a lease gets `MessageNotFound`
        or `PriorityQueueNotFound` when it ends the lease. No changes are published for the deleted
        messages. If first use creates queues, the next enqueue or dequeue creates a new queue. A
        retry of this call may delete messages that arrive there before the call returns.

        Raises:
            PriorityQueueNotFound: The queue does not exist.
        """
        await self._calls.delete()
