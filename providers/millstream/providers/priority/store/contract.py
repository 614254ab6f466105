"""What a store of priority queues is, and what an owner of a queue has of it.

Owns: `PriorityStore`, `OwnedQueue`, `StoredEvent`. Not: how a store keeps them.
What holds of every store; `tests/providers/priority/store_contract.py` asks each of them:

- **One owner.** `acquire` raises the queue's epoch in the store. From its return on, whoever owned
  the queue before changes nothing any more and gives no answer that it did not have by then: it
  gets `OwnerLost`, and so does everybody who waits for it.
- **Nothing is answered that is not stored.** An answer leaves only when every change that it may
  rest on is committed: a refusal too, a look, and a poll that gave nothing. If nothing is
  uncommitted, it leaves at once.
- **In order.** Operations of one owner are done in the order of the calls, each at the moment of
  its call, before the first wait; (`epoch`, number of the call) orders the operations of a queue.
- **A commit is whole**: rows, counters, answers for repeats, and events, or nothing of them.
- **A commit that failed** may have been stored or not. The owner is lost then; all that wait get
  `StorageUnavailable`, later calls `OwnerLost`. Acquire anew: what was stored is there, and a
  request that is repeated under its id is done once.
- **A caller that is cancelled** leaves; what it asked for is done as if it had waited.
- **Time** is the store's, not a caller's. The time of one queue never goes back, also over owners
  and restarts, as far as it was stored with a change, unless an operator resets it or the queue is
  deleted. It goes on at the rate of real time, whatever happens to the machine's wall clock.
- **Limits**: at one of them `Overloaded` comes, and nothing was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from millstream.providers.priority.core.changes import ChangeEvent
from millstream.providers.priority.core.commands import Operation
from millstream.providers.priority.core.core import STEPS_INLINE_MAX
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Swept
from millstream.providers.priority.core.settings import QueueSettings

__all__ = ["ClockReading", "OwnedQueue", "PriorityStore", "StoredEvent"]

A = TypeVar("A")


class StoredEvent(NamedTuple):
    """An event of an outbox. Positions rise, and are never given again; they may have gaps.

    (store, outbox, position) names an event for good.
    """

    position: int
    event: ChangeEvent


class ClockReading(NamedTuple):
    """The time of a queue and the wall clock of its owner's machine, in Unix milliseconds."""

    queue_ms: int
    machine_ms: int


class OwnedQueue(Protocol):
    """One owner's hold on one queue, until it is lost, released or deleted."""

    @property
    def name(self) -> str:
        """Of the queue."""
        ...

    @property
    def epoch(self) -> int:
        """Of this owner; a later one of the queue has a higher one, also after a deletion."""
        ...

    @property
    def is_lost(self) -> bool:
        """Everything raises OwnerLost from now on; it stays so. Acquire the queue anew."""
        ...

    async def do(self, command: Operation[A], request: Request | None = None, /) -> A:
        """Do one `Command`; its answer, when it is stored.

        Args:
            request: to do it once, however often it is asked for.
        Raises: what the command's operation raises; `OwnerLost`; StorageUnavailable (may have been
            done); Overloaded (`waiting_max`, `uncommitted_max`, `events_max`: surely not done).
        """
        ...

    async def look(self, look: Operation[A], /) -> A:
        """What a `Look` shows, when that is stored. Raises as `do`."""
        ...

    async def sweep(self, steps: int = STEPS_INLINE_MAX, /) -> Swept:
        """Do what is due, at most so many steps; when it is stored. Raises as `do`."""
        ...

    def watch(self, stored: Callable[[int | None], None], lost: Callable[[], None], /) -> None:
        """Call `stored` after each commit, with when something is due next as of that; `lost` when
        the queue is lost, but not when it is released or deleted."""
        ...

    def next_due_ms(self) -> int | None:
        """When `sweep` has something to do next, in Unix milliseconds; None: nothing by itself."""
        ...

    def take_available(self, wanted: Collection[Metadata], /) -> Mapping[Metadata, int]:
        """The pairs of messages that may be had and could not be when this was asked last, and how
        many; the first time nothing. `wanted`: which pairs are waited for; only whom of these the
        messages help is sure to be told. None: nothing is noted until the next are asked for."""
        ...

    def now_ms(self) -> int:
        """The time of the queue, in Unix milliseconds. `next_due_ms` is told by it.

        It is the machine's wall clock, as long as that is plausible: see `clock.QueueClock`."""
        ...

    async def read_clock(self) -> ClockReading:
        """The queue's time beside the machine's. Raises `OwnerLost`."""
        ...

    async def reset_clock(self) -> ClockReading:
        """Set the queue's time to the machine's, also back; when it is stored. What waits for a
        time waits for as long as before. Cost: O(n log n). Raises as `do`."""
        ...

    async def delete(self) -> None:
        """Delete the queue with its messages, whatever state they are in; no events tell of them.

        Counters and epoch are kept for the next queue of the name. What waits is answered before;
        what comes later gets OwnerLost. Raises `OwnerLost`, StorageUnavailable (may be deleted).
        """
        ...

    async def release(self) -> None:
        """Answer all that waits, then own the queue no more; never raises, may be called twice."""
        ...


class PriorityStore(Protocol):
    """All queues of one place. Silos of one process may share it; stores of several processes may
    share the place, if the store says so."""

    @property
    def outboxes(self) -> int:
        """How many outboxes it has; the events of one queue are in one of them, for good."""
        ...

    @property
    def is_durable(self) -> bool:
        """Is what was answered there after the end of every process?"""
        ...

    @property
    def keeps_events(self) -> bool:
        """Is every transition written to an outbox? Somebody must take it out of there, then."""
        ...

    async def open(self) -> None:
        """Make it ready, once for each of its users. Raises ConfigError, StorageUnavailable."""
        ...

    async def acquire(self, queue: str, create: QueueSettings | None, /) -> OwnedQueue:
        """Own a queue, and end the hold of whoever had it.

        Args:
            create: of a queue that is not there; None: it is not created.
        Raises: `PriorityQueueNotFound`, `RequestInvalid` (the name), StorageUnavailable.
        """
        ...

    async def due(self, until_ms: int, after: str, limit: int, /) -> Sequence[str]:
        """Queues, in order of their names, after one, that have something due by then as stored."""
        ...

    async def queues(self, prefix: str, after: str, limit: int, /) -> Sequence[str]:
        """Queues whose names begin so, in order, after one."""
        ...

    async def events(self, outbox: int, after: int, limit: int, /) -> Sequence[StoredEvent]:
        """An outbox after a position, in order; of one message in the order of its versions.

        An event that is committed later than one that was seen never has a lower position.
        """
        ...

    async def outbox_name(self, outbox: int, /) -> str:
        """Of at most 200 characters. No other outbox has it, now or later, also none that is begun
        anew in the place of this one: where positions begin anew, the name is another one."""
        ...

    async def forget_events(self, outbox: int, through: int, /) -> None:
        """Delete an outbox up to and with a position."""
        ...

    async def aclose(self) -> None:
        """One user less; by the last one: release every queue that is owned through this store,
        then close it. It may be called once too often.

        Waits for commits under way; what comes later gets OwnerLost or StorageUnavailable.
        """
        ...
