"""The contract between a store of priority queues and the owners of queues.

Owns `PriorityStore`, `OwnedQueue` and `StoredEvent`. Each store decides how it keeps the rows.

Promises of every store, which `tests/providers/priority/store_contract.py` checks:

- **One owner.** `acquire` raises the queue's epoch in the store. After its return, the former owner
  changes nothing and gives no answer that it had not completed before. The former owner and all its
  waiting callers get `OwnerLost`.
- **Durable answers.** An answer leaves only when all changes on which it may be based are
  committed. This includes refusals, reads and polls without messages. If nothing is uncommitted,
  the answer leaves at once.
- **Order.** An owner carries out operations in the order of the calls, each one at its call and
  before the first wait. The pair (`epoch`, number of the call) orders the operations of a queue.
- **Whole commits.** A commit stores all its rows, counters, answers for repeats and events, or
  nothing.
- **Failed commits.** A failed commit may have been stored. The owner is lost then: waiting callers
  get `StorageUnavailable`, and later calls get `OwnerLost`. After another `acquire`, a request that
  is repeated under its id is carried out once.
- **Cancelled callers.** The operation of a cancelled caller is carried out as if the caller had
  waited.
- **Time.** The store and not the caller supplies the time. The stored time of a queue never goes
  back, also across owners and restarts, unless an operator resets it or the queue is deleted. It
  advances at the rate of real time, even if the machine's wall clock jumps.
- **Limits.** At a limit, an operation raises `Overloaded` and changes nothing.
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
    """An event of an outbox.

    (store, outbox, position) identifies an event for ever.

    Attributes:
        position: Rises with each event and is never given twice. Positions may have gaps.
        event: The event.
    """

    position: int
    event: ChangeEvent


class ClockReading(NamedTuple):
    """The time of a queue, and the wall clock of its owner's machine at the same moment.

    Attributes:
        queue_ms: The queue's time, in Unix milliseconds.
        machine_ms: The machine's wall clock, in Unix milliseconds.
    """

    queue_ms: int
    machine_ms: int


class OwnedQueue(Protocol):
    """The ownership of one queue by one owner, until it is lost, released or deleted."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        ...

    @property
    def epoch(self) -> int:
        """The number of this ownership.

        A later ownership of the name has a higher number, also after a deletion.
        """
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the ownership has ended, for ever.

        All methods then raise `OwnerLost`; acquire the queue again.
        """
        ...

    async def do(self, command: Operation[A], request: Request | None = None, /) -> A:
        """Carry out one `Command`, and return its answer when it is stored.

        Args:
            command: The command.
            request: A request id, under which the command is carried out once.

        Returns:
            The answer of the command.

        Raises:
            PriorityQueueError: The queue refuses the command, or the ownership has ended
                (`OwnerLost`).
            StorageUnavailable: The store failed; the command may have been carried out.
            Overloaded: A limit of `StoreLimits` is reached; the command was not carried out.
        """
        ...

    async def look(self, look: Operation[A], /) -> A:
        """The result of a `Look`, when everything that it shows is stored.

        Raises the errors of `do`.
        """
        ...

    async def sweep(self, steps: int = STEPS_INLINE_MAX, /) -> Swept:
        """Do due work, at most this number of steps, and return when it is stored.

        Raises the errors of `do`.
        """
        ...

    def watch(self, stored: Callable[[int | None], None], lost: Callable[[], None], /) -> None:
        """Register callbacks of the owner.

        Args:
            stored: Called after each commit, with the time when work is due next; None if there is
                none.
            lost: Called when the ownership is lost, but not when the queue is released or deleted.
        """
        ...

    def next_due_ms(self) -> int | None:
        """When `sweep` has work next, in Unix milliseconds of the queue's clock; None if nothing
        is due by itself.
        """
        ...

    def take_available(self, wanted: Collection[Metadata], /) -> Mapping[Metadata, int]:
        """The metadata pairs of messages that became available since the last call.

        The first call returns nothing. Until the next call, the queue notes only messages that help
        one of the `wanted` filters.

        Args:
            wanted: The filters for which callers wait.

        Returns:
            The number of messages for each set of pairs.
        """
        ...

    def is_answered(self, request: Request, /) -> bool:
        """Whether the request was carried out before, so that `do` returns its earlier answer."""
        ...

    def now_ms(self) -> int:
        """The time of the queue, in Unix milliseconds; `next_due_ms` uses this time.

        It is the wall clock of the machine, as long as that is plausible: see `clock.QueueClock`.
        """
        ...

    async def read_clock(self) -> ClockReading:
        """The queue's time, and the machine's wall clock. Raises `OwnerLost`."""
        ...

    async def reset_clock(self) -> ClockReading:
        """Set the queue's time to the machine's, also backwards, and return when it is stored.

        Leases, delays and retention keep their remaining length. The cost is O(n log n). Raises the
        errors of `do`.
        """
        ...

    async def delete(self) -> None:
        """Delete the queue with its messages, in any state and without events.

        The counters and the epoch are kept for the next queue of this name. Waiting operations are
        answered first; later ones get `OwnerLost`.

        Raises:
            OwnerLost: The ownership has ended.
            StorageUnavailable: The store failed; the queue may have been deleted.
        """
        ...

    async def release(self) -> None:
        """Answer all waiting operations, then end the ownership.

        It never raises, and may be called twice.
        """
        ...


class PriorityStore(Protocol):
    """A store of priority queues, for `PriorityQueues`. Implement this protocol to add a store.

    A store has all queues of one place. Silos of one process may share the object. Stores of
    several processes may share the place, if the store's documentation says so.
    `millstream.providers.priority.store.contract` lists the promises that a store must keep.
    """

    @property
    def outboxes(self) -> int:
        """The number of outboxes. All events of one queue are in the same outbox, for ever."""
        ...

    @property
    def is_durable(self) -> bool:
        """Whether answered operations survive the end of every process."""
        ...

    @property
    def keeps_events(self) -> bool:
        """Whether every transition of a message is written to an outbox.

        A program must then relay or forget the events.
        """
        ...

    async def open(self) -> None:
        """Open the store for one more user. Raises `ConfigError` or `StorageUnavailable`."""
        ...

    async def acquire(self, queue: str, create: QueueSettings | None, /) -> OwnedQueue:
        """Acquire the ownership of a queue, and end the ownership of its former owner.

        Args:
            queue: Name of the queue.
            create: Settings with which a missing queue is created; None creates nothing.

        Returns:
            The ownership.

        Raises:
            PriorityQueueNotFound: The queue does not exist, and `create` is None.
            RequestInvalid: The name is not valid.
            StorageUnavailable: The store failed.
        """
        ...

    async def due(self, until_ms: int, after: str, limit: int, /) -> Sequence[str]:
        """Names of queues that have stored work due by `until_ms`, in order, after the name
        `after`; at most `limit`.
        """
        ...

    async def queues(self, prefix: str, after: str, limit: int, /) -> Sequence[str]:
        """Names of queues that begin with `prefix`, in order, after the name `after`; at most
        `limit`.
        """
        ...

    async def events(self, outbox: int, after: int, limit: int, /) -> Sequence[StoredEvent]:
        """Return events of an outbox after a position, in order, at most `limit`.

        Events of one message are in the order of its versions. An event that is committed after
        another one was read never has a lower position.
        """
        ...

    async def outbox_name(self, outbox: int, /) -> str:
        """Return the name of the outbox, at most 200 characters.

        No other outbox ever has this name. If an outbox is lost and created again, so that its
        positions start again, it has another name.
        """
        ...

    async def forget_events(self, outbox: int, through: int, /) -> None:
        """Delete the events of an outbox up to and including a position."""
        ...

    async def aclose(self) -> None:
        """Close the store for one user; an extra call does nothing.

        The last user releases every queue that this store owns, waits for running commits, and
        closes the store. Later calls raise `OwnerLost` or `StorageUnavailable`.
        """
        ...
