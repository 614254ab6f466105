"""What happened in a run, with virtual times: the input of the checkers.

Owns: the event types and `History`. Not: judgement (`checkers`). Invariants: times never fall;
events hold plain values only; after `close` nothing is recorded, so that what crashed programs do
while the loop shuts down is no part of the run.
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
    """A caller on `host` ("" for the driver) began a call; `call` is unique in the run."""

    call: str
    host: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The caller got a result, or the error named."""

    call: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Activated:
    """A silo, on `host`, runs code of a grain that was registered at this view version."""

    grain: str
    silo: str
    registered_version: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class Deactivated:
    """The silo's activation of the grain is over."""

    grain: str
    silo: str


@dataclass(frozen=True, slots=True)
class SiloDeclaredDead:
    """The membership table says so, from this version on; `by`: the host that wrote it."""

    silo: str
    version: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class ViewAdopted:
    """A silo works with this view from here on; `statuses`: (silo, status) of each row."""

    silo: str
    version: int
    statuses: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SiloEnded:
    """The silo's program is over: it stopped, was evicted, or could not start."""

    silo: str


@dataclass(frozen=True, slots=True)
class HostDown:
    """A host crashed."""

    host: str


@dataclass(frozen=True, slots=True)
class HostUp:
    """A host was started, or started again."""

    host: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """The network was repaired; from here work must end in time."""


@dataclass(frozen=True, slots=True)
class Published:
    """A publish returned: `item` (unique in the run) is accepted. It began at `started_s`."""

    stream: str
    item: str
    started_s: float | None = None


@dataclass(frozen=True, slots=True)
class Subscribed:
    """`subscribe` returned; record implicit subscriptions at the start."""

    stream: str
    subscription: str


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The subscription is owed nothing from here on."""

    stream: str
    subscription: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A subscription's handler saw an item.

    `is_redelivered`: it was told that it may know the item. `is_stray`: its silo was evicted, or a
    former owner of the queue had sent the item; nothing is said of the order of such deliveries.
    """

    stream: str
    subscription: str
    token: Token
    item: str
    is_redelivered: bool = False
    is_stray: bool = False


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The item was given up for this subscription, visibly."""

    stream: str
    subscription: str
    item: str


@dataclass(frozen=True, slots=True)
class QueueAcquired:
    """An owner took a queue in an epoch."""

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
    """A list of (virtual seconds, event), in the order of recording."""

    def __init__(self, clock: Callable[[], float], events_max: int = EVENTS_MAX) -> None:
        self.events: list[tuple[float, Event]] = []
        self._clock = clock
        self._events_max = events_max
        self._ended_s: float | None = None

    @property
    def ended_s(self) -> float:
        """When the run ended, or the time now."""
        return self._clock() if self._ended_s is None else self._ended_s

    def record(self, event: Event) -> None:
        """Add an event at the present time. Raises SimulationError above `events_max`."""
        if self._ended_s is not None:
            return
        if len(self.events) >= self._events_max:
            raise SimulationError(f"history is full: events_max is {self._events_max}")
        self.events.append((self._clock(), event))

    def close(self) -> None:
        """The run is over; later events are ignored."""
        if self._ended_s is None:
            self._ended_s = self._clock()

    def of(self, kind: type[E]) -> Iterator[tuple[float, E]]:
        """Events of one type, with their times."""
        return ((at_s, event) for at_s, event in self.events if isinstance(event, kind))

    def text(self, count: int, *, around_s: float | None = None) -> str:
        """So many events, one per line: the last ones, or half before a time and half after it."""
        first = len(self.events) - count
        if around_s is not None:
            before = bisect_right(self.events, around_s, key=lambda pair: pair[0])
            first = min(first, before - count // 2)
        events = self.events[max(0, first) :][:count]
        return "\n".join(f"{at_s:12.6f} {event!r}" for at_s, event in events)

    def check(self) -> None:
        """Times never fall."""
        times = [at_s for at_s, _ in self.events]
        assert times == sorted(times)
