"""The operations of a queue as plain values, so that code that forwards them need not know them.

Owns one class for each operation of `PriorityCore` that changes a queue (`Command`), one for each
read (`Look`), and `perform`, which runs a command. Their meaning is in `core` and `reading`.

Invariants: every field and answer is a plain value that the wire format can represent. Another
store could carry out a class without a core.
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
    """A command or a read, with the type of its answer."""

    def on(self, core: PriorityCore, now_ms: int, /) -> A_co:
        """Carry it out. Raises the errors of the core's operation of the same name."""
        ...


# -- into the queue


class Enqueue(NamedTuple):
    """Enqueue a message: an implementation of `body.New`."""

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
    """Enqueue messages in order.

    With `all_or_nothing`, the first refusal is raised and nothing changes.
    """

    messages: tuple[Enqueue, ...]
    all_or_nothing: bool = False

    def on(self, core: PriorityCore, now_ms: int) -> EnqueuedMany:
        return core.enqueue_many(now_ms, self.messages, self.all_or_nothing)


class Requeue(NamedTuple):
    """Enqueue a copy of an errored or canceled message.

    Without `new_id`, the id is derived from the message.
    """

    id: str
    new_id: str | None = None

    def on(self, core: PriorityCore, now_ms: int) -> Enqueued:
        return core.requeue(now_ms, self.id, self.new_id)


# -- out of the queue


class Dequeue(NamedTuple):
    """Lease the most urgent pending messages whose values are free, to one worker.

    `not_above` excludes messages that are less urgent than this priority. `layout` is the layout
    that the caller knows.
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


# -- leases


class Complete(NamedTuple):
    """Complete the message."""

    id: str
    token: LeaseToken
    reason: str = ""

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.complete(now_ms, self.id, self.token, self.reason)


class Fail(NamedTuple):
    """Make the message errored."""

    id: str
    token: LeaseToken
    reason: str = ""

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.fail(now_ms, self.id, self.token, self.reason)


class Cancel(NamedTuple):
    """Cancel the message.

    Without a token, an operator cancels it in any unfinished state; with `unless_leased`, a message
    that a worker has leased stays as it is.
    """

    id: str
    token: LeaseToken | None = None
    reason: str = ""
    unless_leased: bool = False

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        id, token, reason, unless_leased = self
        return core.cancel(now_ms, id, token, reason, unless_leased=unless_leased)


class Extend(NamedTuple):
    """Extend the lease to `lease_ms` from now."""

    id: str
    token: LeaseToken
    lease_ms: int | None = None

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.extend(now_ms, self.id, self.token, self.lease_ms)


class Release(NamedTuple):
    """End the lease without a result. With `refund`, the attempt does not count."""

    id: str
    token: LeaseToken
    delay_ms: int = 0
    refund: bool = False
    reason: str = ""

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        id, token, delay_ms, refund, reason = self
        return core.release(now_ms, id, token, delay_ms, refund=refund, reason=reason)


# -- the queue


class Prioritise(NamedTuple):
    """Change the priority of a message."""

    id: str
    priority: int

    def on(self, core: PriorityCore, now_ms: int) -> Done:
        return core.prioritise(now_ms, self.id, self.priority)


class Configure(NamedTuple):
    """Change the settings. `version` is the version on which the change is based.

    The queue does not remember the request id. A repeat with `version` is refused if the settings
    have changed since, and a repeat of the current settings changes nothing. A repeat without
    `version` may overwrite a later change.
    """

    settings: QueueSettings
    version: int | None = None

    def on(self, core: PriorityCore, now_ms: int) -> SettingsRow:
        return core.configure(now_ms, self.settings, self.version)


class Adopt(NamedTuple):
    """As a shard, take over the settings of the queue; settings of an older layout change nothing.

    Later leases of the shard get numbers above `floor`.
    """

    settings: QueueSettings
    floor: int = 0

    def on(self, core: PriorityCore, now_ms: int) -> SettingsRow:
        return core.adopt(now_ms, self.settings, self.floor)


class Settle(NamedTuple):
    """Record that no message of this layout is in a former shard."""

    layout: int

    def on(self, core: PriorityCore, now_ms: int) -> SettingsRow:
        return core.settle(now_ms, self.layout)


# -- reads


class Get(NamedTuple):
    """Read one message."""

    id: str

    def on(self, core: PriorityCore, now_ms: int) -> MessageView:
        return core.read.get(self.id)


class Peek(NamedTuple):
    """Show the messages that a dequeue would lease."""

    at_most: int = 1
    wanted: Metadata = ()

    def on(self, core: PriorityCore, now_ms: int) -> tuple[MessageView, ...]:
        return tuple(core.read.peek(self.at_most, self.wanted))


class Page(NamedTuple):
    """List messages in the order in which they were enqueued, after a sequence."""

    at_most: int = 100
    after: int = 0
    state: State | None = None
    wanted: Metadata = ()

    def on(self, core: PriorityCore, now_ms: int) -> tuple[MessageView, ...]:
        at_most, after, state, wanted = self
        return tuple(core.read.page(at_most, after=after, state=state, wanted=wanted))


class Depth(NamedTuple):
    """Count the messages in each state, if given only those of a filter and an exclusivity
    value.
    """

    wanted: Metadata = ()
    value: str | None = None

    def on(self, core: PriorityCore, now_ms: int) -> dict[State, int]:
        return core.read.depth(self.wanted, value=self.value)


class Values(NamedTuple):
    """Count the messages in each state, for each exclusivity value."""

    def on(self, core: PriorityCore, now_ms: int) -> ValueDepths:
        return ValueDepths(core.read.values())


class Heads(NamedTuple):
    """Show the priorities of the messages that a dequeue would lease."""

    at_most: int = 1
    wanted: Metadata = ()

    def on(self, core: PriorityCore, now_ms: int) -> HeadPriorities:
        return HeadPriorities(tuple(core.read.heads(self.at_most, self.wanted)))


class Strays(NamedTuple):
    """Say whether messages of a shard may belong to another shard, and how many leases it has
    given.
    """

    def on(self, core: PriorityCore, now_ms: int) -> Moving:
        return core.read.moving()


class ReadSettings(NamedTuple):
    """Read the settings and their version."""

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
"""Operations of programs that change a queue."""
Answered = Dequeued | Enqueued | EnqueuedMany | Done | SettingsRow
"""The answers of commands."""
Look = Get | Peek | Heads | Page | Depth | Values | Strays | ReadSettings
"""Operations that read a queue."""
Seen = (
    MessageView
    | tuple[MessageView, ...]
    | HeadPriorities
    | dict[State, int]
    | ValueDepths
    | SettingsRow
    | Moving
)
"""The answers of reads."""

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
"""Frozen, because answers are stored with the names of their commands."""


FREE: frozenset[type[Any]] = frozenset({Configure, Adopt, Settle})
"""Commands whose answers the queue does not remember."""


def name_of(operation: Operation[Any]) -> str:
    """The name of a command or read in stored answers, metrics and scripts."""
    return NAMES[type(operation)]


def perform(core: PriorityCore, now_ms: int, command: Operation[A], request: Request | None) -> A:
    """Run a command on a core. Under a request id it is carried out once, unless it is in `FREE`.

    Raises the errors of the command and of `PriorityCore.once`.
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
