"""Hooks by which the author of an adapter acts on the provider under test.

Owns: `AdapterHooks`. Invariant: a check that needs a missing hook is not run, and its result says
so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.queue import QueueAdapter, QueueAdapterFactory

__all__ = ["AdapterHooks", "Make", "without_hook"]

Make = Callable[[], QueueAdapterFactory]
PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class AdapterHooks:
    """The hooks that the author of an adapter can give to the suite. Each is optional.

    `run_adapter_check` returns `not run: the hook ... is not given` for a check that needs a
    missing hook. Leave out a hook for an event that cannot happen to the provider: for example
    `skip`, if the numbers of its messages have no holes.
    """

    forget: Callable[[QueueId, int], Awaitable[None]] | None = None
    """`await forget(queue, count)`: lose the first `count` messages of the queue, as the retention
    of the provider would. Messages that a reader retains (`Retains`) stay."""

    skip: Callable[[QueueId, int], Awaitable[None]] | None = None
    """`await skip(queue, count)`: use up the next `count` numbers of the queue without a message,
    as the markers of transactions or a compaction do. No message is lost by it."""

    kill: Callable[[QueueAdapter], Awaitable[None]] | None = None
    """`await kill(adapter)`: end the adapter and its receivers as a crash of their process would.

    Drop their buffers, cancel their tasks, and cut their connections, sessions and locks as a crash
    does: without a goodbye, a flush or a commit. Do all of this before the first `await`: a buffer
    that is written after that hides a fault. You may then wait until the broker notices. The suite
    does not call the adapter afterwards, not even `aclose`. If the adapter holds nothing beyond its
    calls, pass a function that does nothing.
    """

    relayout: Callable[[], Awaitable[None]] | None = None
    """`await relayout()`: change the queues of a broker that decides them (`BringsMapper`), as its
    operator would; for example add a partition."""

    narrow: Make | None = None
    """Makes a factory over the same content whose receivers hold few messages: `PushReceiver` with
    `events_max` of 2 to 10, and a prefetch of the source that is no larger. The suite stores 40
    messages, so that the source is paused and resumed many times."""

    patience_s: float = PATIENCE_S
    """The longest delay or lease, in seconds, that a check asks for and waits for. The runtime asks
    for delays of 60 s and, with the back-off of a subscription, of more. Pass 60 if waiting costs
    nothing: the suite then also finds a provider that shortens long delays."""


def without_hook(name: str) -> str:
    """The result of a check that needs a missing hook."""
    return f"not run: the hook `{name}` is not given"
