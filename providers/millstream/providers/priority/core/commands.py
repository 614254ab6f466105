"""The operations of a queue as plain values, so that what passes them on need not know them.

Owns: one class for each operation of `PriorityCore` that changes a queue (`Command`), and for each
look at one (`Look`); `perform`, which runs one. Not: what they do (`core`, `reading`).
Invariants: every field and answer is a plain value that the wire's codec takes; another store can
do what a class says without a core.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from .core import PriorityCore
from .message import LeaseToken, Metadata, State
from .requests.sessions import Request
from .results import (
    Dequeued,
    Done,
    Enqueued,
    EnqueuedMany,
    HeadPriorities,
    MessageView,
    Moving,
    ValueDepths,
)
from .settings import QueueSettings, SettingsRow

__all__ = [
    "Adopt",
    "Answered",
    "Cancel",
    "Command",
    "Complete",
    "Configure",
    "Depth",
    "Dequeue",
    "Enqueue",
    "EnqueueMany",
    "Extend",
    "Fail",
    "Get",
    "Heads",
    "Look",
    "Operation",
    "Page",
    "Peek",
    "Prioritise",
    "ReadSettings",
    "Release",
    "Requeue",
    "Seen",
    "Settle",
    "Strays",
    "Values",
    "name_of",
    "perform",
]

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")


class Operation(Protocol[A_co]):
    """A command or a look, by what it is answered with."""

    def on(self, core: PriorityCore, now_ms: int, /) -> A_co:
        """Do it. Raises what the core's operation of its name raises."""
        ...


# -- into the queue


class Enqueue(NamedTuple):
    """A message: `body.New`."""

    id: str
    payload: bytes
    priority: int
    metadata: Metadata = ()
    invisible_ms: int | None = None
    lease_ms: int | None = None
    attempts: int | None = None
    floor: int | None = None

    def on(self, core: PriorityCore, now_ms: int) -> Enqueued:
        return core.enqueue(now_ms, self)


class EnqueueMany(NamedTuple):
    """Messages in order; `all_or_nothing`: the first refusal is raised, and nothing was changed."""

    messages: tuple[Enqueue, ...]
    all_or_nothing: bool = False

    def on(self, core: PriorityCore, now_ms: int) -> EnqueuedMany:
        return core.enqueue_many(now_ms, self.messages, self.all_or_nothing)


class Requeue(NamedTuple):
    """An errored or canceled message once more, under another id; None: made of its own."""

    id: str
    new_id: str | None = None

    def on(self, core: PriorityCore, now_ms: int) -> Enqueued:
        return core.requeue(now_ms, self.id, self.new_id)


# -- out of the queue


class Dequeue(NamedTuple):
    """The most urgent pending messages whose values are free, leased to one worker.

    `not_above`: none of a higher priority; `layout`: the one that the caller knows.
    """

    worker: str
    at_most: int = 1
    wanted: Metadata = ()
    lease_ms: int | None = None
    same_value_ok: bool = False
    not_above: int | None = None
    layout: int = 0

    def on(self, core: PriorityCore, now_ms: int) -> Dequeued:
        worker, at_most, wanted, lease_ms, same_value_ok, not_above, _ = self
        return core.dequeue(
            now_ms,
            worker,
            at_most,
            wanted,
            lease_ms=lease_ms,
            same_value_ok=same_value_ok,
            not_above=not_above,
        )


# -- of a lease


class Complete(NamedTuple):
    """The work is done."""

    id: str
    token: LeaseToken

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.complete(now_ms, self.id, self.token)


class Fail(NamedTuple):
    """The work cannot be done."""

    id: str
    token: LeaseToken
    reason: str = ""

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.fail(now_ms, self.id, self.token, self.reason)


class Cancel(NamedTuple):
    """The work is not needed; without a token: in any state, by whoever rules the queue."""

    id: str
    token: LeaseToken | None = None
    reason: str = ""

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.cancel(now_ms, self.id, self.token, self.reason)


class Extend(NamedTuple):
    """The lease holds for so long from now."""

    id: str
    token: LeaseToken
    lease_ms: int | None = None

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.extend(now_ms, self.id, self.token, self.lease_ms)


class Release(NamedTuple):
    """The message is given back; `refund`: the attempt was none."""

    id: str
    token: LeaseToken
    delay_ms: int = 0
    refund: bool = False
    reason: str = ""

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        id, token, delay_ms, refund, reason = self
        return core.release(now_ms, id, token, delay_ms, refund=refund, reason=reason)


# -- of the queue


class Prioritise(NamedTuple):
    """A message gets another priority."""

    id: str
    priority: int

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.prioritise(now_ms, self.id, self.priority)


class Configure(NamedTuple):
    """Other settings; `version`: which ones the caller knew.

    To ask again is safe with a version, and its request id is not remembered: the same settings
    again are no change.
    """

    settings: QueueSettings
    version: int | None = None

    def on(self, core: PriorityCore, now_ms: int) -> SettingsRow:
        return core.configure(now_ms, self.settings, self.version)


class Adopt(NamedTuple):
    """The settings of the queue that this is a shard of; of an older layout they change nothing.

    `floor`: the leases that it gives have higher numbers.
    """

    settings: QueueSettings
    floor: int = 0

    def on(self, core: PriorityCore, now_ms: int) -> SettingsRow:
        return core.adopt(now_ms, self.settings, self.floor)


class Settle(NamedTuple):
    """No message of this layout is where it belonged before."""

    layout: int

    def on(self, core: PriorityCore, now_ms: int) -> SettingsRow:
        return core.settle(now_ms, self.layout)


# -- looks


class Get(NamedTuple):
    """One message."""

    id: str

    def on(self, core: PriorityCore, now_ms: int) -> MessageView:
        return core.read.get(self.id)


class Peek(NamedTuple):
    """What a dequeue would lease."""

    at_most: int = 1
    wanted: Metadata = ()

    def on(self, core: PriorityCore, now_ms: int) -> tuple[MessageView, ...]:
        return tuple(core.read.peek(self.at_most, self.wanted))


class Page(NamedTuple):
    """Messages in the order in which they were enqueued, after a sequence."""

    at_most: int = 100
    after: int = 0
    state: State | None = None
    wanted: Metadata = ()

    def on(self, core: PriorityCore, now_ms: int) -> tuple[MessageView, ...]:
        at_most, after, state, wanted = self
        return tuple(core.read.page(at_most, after=after, state=state, wanted=wanted))


class Depth(NamedTuple):
    """How many messages are in each state, of a filter, of an exclusivity value."""

    wanted: Metadata = ()
    value: str | None = None

    def on(self, core: PriorityCore, now_ms: int) -> dict[State, int]:
        return core.read.depth(self.wanted, value=self.value)


class Values(NamedTuple):
    """The depth of each exclusivity value."""

    def on(self, core: PriorityCore, now_ms: int) -> ValueDepths:
        return ValueDepths(core.read.values())


class Heads(NamedTuple):
    """The priorities of what a dequeue would lease."""

    at_most: int = 1
    wanted: Metadata = ()

    def on(self, core: PriorityCore, now_ms: int) -> HeadPriorities:
        return HeadPriorities(tuple(core.read.heads(self.at_most, self.wanted)))


class Strays(NamedTuple):
    """Whether messages of a shard may belong to another, and how many leases it has given."""

    def on(self, core: PriorityCore, now_ms: int) -> Moving:
        return core.read.moving()


class ReadSettings(NamedTuple):
    """The settings, and which version of them."""

    def on(self, core: PriorityCore, now_ms: int) -> SettingsRow:
        return SettingsRow(core.settings_version, core.settings)


Repeatable = (
    Enqueue
    | EnqueueMany
    | Requeue
    | Dequeue
    | Complete
    | Fail
    | Cancel
    | Extend
    | Release
    | Prioritise
)
Command = Repeatable | Configure
"""What programs ask for that changes a queue."""
Answered = Dequeued | Enqueued | EnqueuedMany | Done | SettingsRow
"""What commands are answered with."""
Look = Get | Peek | Heads | Page | Depth | Values | Strays | ReadSettings
"""What shows a queue."""
Seen = (
    MessageView
    | tuple[MessageView, ...]
    | HeadPriorities
    | dict[State, int]
    | ValueDepths
    | SettingsRow
    | Moving
)
"""What looks are answered with."""

NAMES: dict[type[Any], str] = {
    Enqueue: "enqueue",
    EnqueueMany: "enqueue_many",
    Requeue: "requeue",
    Dequeue: "dequeue",
    Complete: "complete",
    Fail: "fail",
    Cancel: "cancel",
    Extend: "extend",
    Release: "release",
    Prioritise: "prioritise",
    Configure: "configure",
    Adopt: "adopt",
    Settle: "settle",
    Get: "get",
    Peek: "peek",
    Heads: "heads",
    Page: "page",
    Depth: "depth",
    Values: "values",
    Strays: "strays",
    ReadSettings: "settings",
}
"""Frozen: answers are stored with the names of their commands."""


FREE: frozenset[type[Any]] = frozenset({Configure, Adopt, Settle})
"""Commands whose answers are not remembered."""


def name_of(operation: Operation[Any]) -> str:
    """What a command or look is called in stored answers, metrics and scripts."""
    return NAMES[type(operation)]


def perform(core: PriorityCore, now_ms: int, command: Operation[A], request: Request | None) -> A:
    """Run a command on a core; with a request id it is done once, those that are free aside.

    Raises: what the command's operation raises, and what `PriorityCore.once` does.
    """
    kind = type(command)
    if request is None or kind in FREE:
        return command.on(core, now_ms)
    what = f"{NAMES[kind]} {request.mark}" if request.mark else NAMES[kind]
    if isinstance(command, EnqueueMany):
        messages, is_whole = command
        return cast(A, core.enqueue_many_once(now_ms, request, what, messages, is_whole))
    on: Any = command.on
    return cast(A, core.once(now_ms, request, what, partial(on, core, now_ms)))
