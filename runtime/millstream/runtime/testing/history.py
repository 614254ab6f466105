"""The events of a run with their virtual times, as the input of the checkers.

This module owns the event types and `History`. The judgements are in `checkers`. Times never fall.
Events hold plain values only. After `close` nothing is recorded, so actions of crashed programs
during the shutdown of the loop are not part of the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from .world.errors import SimulationError

__all__ = [
    "Activated",
    "CallEnded",
    "CallStarted",
    "Deactivated",
    "DeadLettered",
    "Delivered",
    "Event",
    "History",
    "HostDown",
    "HostUp",
    "Published",
    "QueueAcquired",
    "Repaired",
    "SiloDeclaredDead",
    "SiloEnded",
    "Subscribed",
    "Unsubscribed",
    "ViewAdopted",
]

EVENTS_MAX = 5_000_000

Token = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A caller began a call. Record it in your own program.

    Attributes:
        call: A name of the call that is unique in the run.
        host: The caller's host. Empty for the driver.
        what: A description for messages.
    """

    call: str
    host: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call has ended. Record it in your own program.

    Attributes:
        call: The name of the call.
        error: The error that the caller got. Empty for a result.
    """

    call: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Activated:
    """A silo runs an activation of a grain. `SimCluster` records it.

    Attributes:
        grain: The grain, `Type/key`.
        silo: The address of the silo.
        registered_version: The version of the view at which the activation was registered. 0 for a
            stateless worker.
        host: The host of the silo.
        is_worker: True for a stateless worker. A grain may have several of them.
    """

    grain: str
    silo: str
    registered_version: int
    host: str = ""
    is_worker: bool = False


@dataclass(frozen=True, slots=True)
class Deactivated:
    """An activation of a grain has ended. `SimCluster` records it.

    Attributes:
        grain: The grain, `Type/key`.
        silo: The address of the silo.
    """

    grain: str
    silo: str


@dataclass(frozen=True, slots=True)
class SiloDeclaredDead:
    """The membership table declares a silo dead. `SimMembershipTable` records it.

    Attributes:
        silo: The address of the silo.
        version: The first version of the table that says so.
        by: The host that wrote it.
    """

    silo: str
    version: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class ViewAdopted:
    """A silo uses a view from now on. `SimCluster` records it.

    Attributes:
        silo: The address of the silo.
        version: The version of the view.
        statuses: The silo and status of each row.
    """

    silo: str
    version: int
    statuses: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SiloEnded:
    """The silo stopped, was evicted, or could not start. `SimCluster` records it.

    Attributes:
        silo: The address of the silo.
    """

    silo: str


@dataclass(frozen=True, slots=True)
class HostDown:
    """A host crashed. `Simulation` records it.

    Attributes:
        host: The name of the host.
    """

    host: str


@dataclass(frozen=True, slots=True)
class HostUp:
    """A host was started, or started again. `Simulation` records it.

    Attributes:
        host: The name of the host.
    """

    host: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """The network was repaired. From here work must end in time."""


@dataclass(frozen=True, slots=True)
class Published:
    """An event of a stream was accepted.

    Attributes:
        stream: The stream.
        item: A name of the event that is unique in the run.
        started_s: The virtual time at which the publish began. None: the time of this record.
    """

    stream: str
    item: str
    started_s: float | None = None


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription exists from now on. Record implicit subscriptions at the start of the run.

    Attributes:
        stream: The stream.
        subscription: The name of the subscription.
    """

    stream: str
    subscription: str


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A subscription has ended, and need not get any event from now on.

    Attributes:
        stream: The stream.
        subscription: The name of the subscription.
    """

    stream: str
    subscription: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """The handler of a subscription got an event.

    Attributes:
        stream: The stream.
        subscription: The name of the subscription.
        token: The token of the event.
        item: The name of the event.
        is_redelivered: Whether the handler was told that it may have got the event before.
        is_stray: Whether an evicted silo or a former owner of the queue delivered the event. The
            order of such deliveries is not judged.
    """

    stream: str
    subscription: str
    token: Token
    item: str
    is_redelivered: bool = False
    is_stray: bool = False


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """An event was given up for a subscription, and became a dead letter.

    Attributes:
        stream: The stream.
        subscription: The name of the subscription.
        item: The name of the event.
    """

    stream: str
    subscription: str
    item: str


@dataclass(frozen=True, slots=True)
class QueueAcquired:
    """A silo became the owner of a queue.

    Attributes:
        queue: The queue.
        owner: The owner.
        epoch: The epoch of the ownership.
    """

    queue: str
    owner: str
    epoch: int


Event = (
    CallStarted
    | CallEnded
    | Activated
    | Deactivated
    | SiloDeclaredDead
    | SiloEnded
    | HostDown
    | HostUp
    | Repaired
    | Published
    | Subscribed
    | Unsubscribed
    | Delivered
    | DeadLettered
    | QueueAcquired
    | ViewAdopted
)
E = TypeVar("E")


class History:
    """The events of a run, each with its virtual time, in the order of recording.

    `Simulation.history` is the history of a run.

    Args:
        clock: Returns the virtual time in seconds.
        events_max: The most events.

    Attributes:
        events: Pairs of virtual seconds and event.
    """

    def __init__(self, clock: Callable[[], float], events_max: int = EVENTS_MAX) -> None:
        self.events: list[tuple[float, Event]] = []
        self._clock = clock
        self._events_max = events_max
        self._ended_s: float | None = None

    @property
    def ended_s(self) -> float:
        """The virtual time at which the run ended, or the current time."""
        return self._clock() if self._ended_s is None else self._ended_s

    def record(self, event: Event) -> None:
        """Add an event at the current time. After `close` it does nothing.

        Args:
            event: The event.

        Raises:
            SimulationError: The history has `events_max` events.
        """
        if self._ended_s is not None:
            return
        if len(self.events) >= self._events_max:
            raise SimulationError(f"history is full: events_max is {self._events_max}")
        self.events.append((self._clock(), event))

    def close(self) -> None:
        """End the history. Later events are ignored."""
        if self._ended_s is None:
            self._ended_s = self._clock()

    def of(self, kind: type[E]) -> Iterator[tuple[float, E]]:
        """Return the events of one type, with their times.

        Args:
            kind: The type of the events.
        """
        return ((at_s, event) for at_s, event in self.events if isinstance(event, kind))

    def text(self, count: int, *, around_s: float | None = None) -> str:
        """Return some events as text, one in each line.

        Args:
            count: The number of events.
            around_s: Events around this virtual time, half of them before it. None: the last
                events.
        """
        first = len(self.events) - count
        if around_s is not None:
            before = bisect_right(self.events, around_s, key=lambda pair: pair[0])
            first = min(first, before - count // 2)
        events = self.events[max(0, first) :][:count]
        return "\n".join(f"{at_s:12.6f} {event!r}" for at_s, event in events)

    def check(self) -> None:
        """Assert that times never fall."""
        times = [at_s for at_s, _ in self.events]
        assert times == sorted(times)
