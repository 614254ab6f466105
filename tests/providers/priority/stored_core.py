"""A stored queue with the interface of a core, so that the tests of cores also test stores. Its
calls take the time and do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from tests.providers.priority.places import place_of

from millstream.providers.priority import (
    Done,
    Enqueued,
    LeaseToken,
    MessageView,
    PriorityStore,
    QueueSettings,
    SettingsRow,
    State,
)
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.changes import ChangeEvent
from millstream.providers.priority.core.commands import (
    Cancel,
    Complete,
    Configure,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Extend,
    Fail,
    Get,
    Operation,
    Page,
    Peek,
    Prioritise,
    ReadSettings,
    Release,
    Requeue,
    Values,
)
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued, EnqueuedMany, Swept
from millstream.providers.priority.store.contract import OwnedQueue

T = TypeVar("T")


class Stage:
    """A place of one kind with its own loop. It closes all stores at the end."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.place = place_of(kind, Path(self.folder.name))
        self.stores: list[PriorityStore] = []
        self.opened = 0

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for store in self.stores:
            self.run(store.aclose())
        self.loop.close()
        self.folder.cleanup()

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(act)

    def store(self) -> PriorityStore:
        """Open another store over the place."""
        store = self.place.store()
        self.run(store.open())
        self.stores.append(store)
        return store

    def core(self, settings: QueueSettings, now_ms: int = 0, queue: str = "") -> StoredCore:
        """Make a new queue. The first one has the name that the core's tests use."""
        self.opened += 1
        self.place.clock.now_ms = now_ms
        first = "encode" if self.opened == 1 else f"encode{self.opened}"
        return StoredCore(self, queue or first, settings)


class Drained(NamedTuple):
    events: tuple[ChangeEvent, ...]


class StoredCore:
    """One queue. `reopen` gives it another owner."""

    def __init__(self, stage: Stage, queue: str, settings: QueueSettings) -> None:
        self.stage = stage
        self.queue = queue
        self.request: Request | None = None
        self.stores = [stage.store(), stage.store()]
        self.owned: OwnedQueue = self.run(self.stores[0].acquire(queue, settings))
        self.seen: dict[int, int] = {}  # by outbox, its latest position
        self.read = StoredReading(self)

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        return self.stage.run(act)

    def reopen(self) -> None:
        """Let another store take over the queue. The earlier one keeps its state."""
        self.stores.reverse()
        self.owned = self.run(self.stores[0].acquire(self.queue, None))

    def do(self, now_ms: int, command: Operation[T]) -> T:
        self.stage.place.clock.now_ms = now_ms
        return self.run(self.owned.do(command, self.request))

    @property
    def sessions(self) -> OwnedQueue:
        """Whether a request is answered."""
        return self.owned

    def look(self, look: Operation[T]) -> T:
        return self.run(self.owned.look(look))

    def once(self, now_ms: int, request: Request, what: str, act: Callable[[], T]) -> T:
        self.request = request
        try:
            return act()
        finally:
            self.request = None

    def enqueue(self, now_ms: int, new: MessageFields) -> Enqueued:
        return self.do(now_ms, Enqueue(*new))  # type: ignore[arg-type]

    def enqueue_many(
        self, now_ms: int, news: Sequence[MessageFields], all_or_nothing: bool = False
    ) -> EnqueuedMany:
        messages = tuple(Enqueue(*new) for new in news)  # type: ignore[arg-type]
        return self.do(now_ms, EnqueueMany(messages, all_or_nothing))

    def enqueue_many_once(
        self,
        now_ms: int,
        request: Request,
        what: str,
        news: Sequence[MessageFields],
        all_or_nothing: bool = False,
    ) -> EnqueuedMany:
        act = partial(self.enqueue_many, now_ms, news, all_or_nothing)
        return self.once(now_ms, request, what, act)

    def requeue(self, now_ms: int, id: str, new_id: str) -> Enqueued:
        return self.do(now_ms, Requeue(id, new_id))

    def dequeue(
        self,
        now_ms: int,
        worker: str,
        count: int = 1,
        wanted: Any = (),
        *,
        lease_ms: int | None = None,
        same_value_ok: bool = False,
    ) -> Dequeued:
        return self.do(now_ms, Dequeue(worker, count, wanted, lease_ms, same_value_ok))

    def complete(self, now_ms: int, id: str, token: LeaseToken, reason: str = "") -> Done:
        return self.do(now_ms, Complete(id, token, reason))

    def fail(self, now_ms: int, id: str, token: LeaseToken, reason: str = "") -> Done:
        return self.do(now_ms, Fail(id, token, reason))

    def cancel(
        self,
        now_ms: int,
        id: str,
        token: LeaseToken | None = None,
        reason: str = "",
        *,
        unless_leased: bool = False,
    ) -> Done:
        return self.do(now_ms, Cancel(id, token, reason, unless_leased))

    def extend(self, now_ms: int, id: str, token: LeaseToken, lease_ms: int | None = None) -> Done:
        return self.do(now_ms, Extend(id, token, lease_ms))

    def release(
        self,
        now_ms: int,
        id: str,
        token: LeaseToken,
        delay_ms: int = 0,
        *,
        refund: bool = False,
        reason: str = "",
    ) -> Done:
        return self.do(now_ms, Release(id, token, delay_ms, refund, reason))

    def prioritise(self, now_ms: int, id: str, priority: int) -> Done:
        return self.do(now_ms, Prioritise(id, priority))

    def configure(
        self, now_ms: int, settings: QueueSettings, version: int | None = None
    ) -> SettingsRow:
        return self.do(now_ms, Configure(settings, version))

    def sweep(self, now_ms: int, steps: int = 512) -> Swept:
        self.stage.place.clock.now_ms = now_ms
        return self.run(self.owned.sweep(steps))

    def next_due_ms(self) -> int | None:
        return self.owned.next_due_ms()

    @property
    def now_ms(self) -> int:
        """The latest time that the queue has seen, without reading the clock."""
        owned: Any = self.owned
        seen_ms: int = owned._core.now_ms
        return seen_ms

    @property
    def settings(self) -> QueueSettings:
        return self.look(ReadSettings()).settings

    @property
    def settings_version(self) -> int:
        return self.look(ReadSettings()).version

    def drain(self) -> Drained | None:
        """Return the queue's new events in the outboxes since the last call."""
        store, found = self.stores[0], list[ChangeEvent]()
        for outbox in range(store.outboxes):
            after = self.seen.get(outbox, 0)
            for position, event in self.run(store.events(outbox, after, 100_000)):
                self.seen[outbox] = position
                found += [event] if event.queue == self.queue else []
        return Drained(tuple(found)) if found else None

    def check(self) -> None:
        core = getattr(self.owned, "_core", None)
        if core is not None:
            core.check()


class StoredReading:
    """The read operations."""

    def __init__(self, core: StoredCore) -> None:
        self.core = core

    def get(self, id: str) -> MessageView:
        return self.core.look(Get(id))

    def peek(self, count: int = 1, wanted: Any = ()) -> list[MessageView]:
        return list(self.core.look(Peek(count, wanted)))

    def page(
        self, count: int = 100, *, after: int = 0, state: State | None = None, wanted: Any = ()
    ) -> list[MessageView]:
        return list(self.core.look(Page(count, after, state, wanted)))

    def depth(self, wanted: Any = (), *, value: str | None = None) -> dict[State, int]:
        return self.core.look(Depth(wanted, value))

    def values(self) -> dict[str, dict[State, int]]:
        return self.core.look(Values()).values

    def parkings(self) -> int:
        core: Any = self.core.owned
        parkings: int = core._core.read.parkings()
        return parkings
