"""Where handles of queues come from: `priority_queue(client, "encode")`.

Owns: the functions that give them. A client cannot have a method for it, as it knows nothing of
priority queues; so they are opened as streams are, by what `stream()` of a client, silo or grain
takes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from millstream.providers.priority.core.body import check_request_text
from millstream.providers.priority.owner.target import NAMES_MAX, QueuesTarget
from millstream.runtime import Runtime
from millstream.runtime.extending import Opener, check_text, show_value

from .calls import PATIENCE_S
from .queue import PriorityQueue

__all__ = ["QueuesOf", "changes_lag_s", "priority_queue", "priority_queues"]


@dataclass(frozen=True, slots=True)
class QueuesOf:
    """Opens the queues of a part; what `stream()` takes, and what a unit test gives a fake for:
    `grain_of(Encoder, streams={(QueuesOf("priority"), "encode"): fake})`."""

    part: str = "priority"
    patience_s: float = PATIENCE_S

    @property
    def name(self) -> str:
        """As messages show it."""
        return f"QueuesOf({self.part!r})"

    def open(self, runtime: Opener, key: str, /) -> PriorityQueue:
        """The handle of a queue."""
        return PriorityQueue(runtime, self.part, key, self.patience_s)


def priority_queue(
    runtime: Runtime, name: str, /, *, part: str = "priority", patience_s: float = PATIENCE_S
) -> PriorityQueue:
    """The handle of a queue. Nothing is asked before it is used; all handles of a process share
    their request ids.

    Args:
        runtime: a client, a silo, a LocalCluster, or in a grain `self`.
        name: of the queue, 1 to 256 bytes.
        part: the name under which silos were given `PriorityQueues`.
        patience_s: how long an operation is asked again while the cluster does not answer. Each
            has a request id, so it is done once, however often it is asked for.
    Raises: `RequestInvalid` (the name, `patience_s`), TypeError (part).
    """
    check_text("the name of a part", part)
    return runtime.stream(QueuesOf(part, patience_s), name)


class Whole:
    """A part as a whole."""

    def __init__(self, opener: Opener, part: str) -> None:
        self._opener = opener
        self._part = part
        self._target = f"{QueuesTarget.target_name}/{part}"

    async def page(self, prefix: str, after: str) -> list[str]:
        """The next ones that begin so."""
        gateway = self._opener.gateway
        if gateway is None:
            return await self._here().queues(prefix, after, NAMES_MAX)
        return await gateway.call("", self._target, QueuesTarget.queues, prefix, after, NAMES_MAX)

    async def changes_lag_s(self) -> float:
        """How late its changes are."""
        gateway = self._opener.gateway
        if gateway is None:
            return await self._here().changes_lag_s()
        return await gateway.call("", self._target, QueuesTarget.changes_lag_s)

    def _here(self) -> QueuesTarget:
        found: QueuesTarget = self._opener.part(self._part).target
        return found


@dataclass(frozen=True, slots=True)
class WholeOf:
    """Opens a part as a whole."""

    part: str

    def open(self, runtime: Opener, key: str, /) -> Whole:
        """The same, whatever the key."""
        return Whole(runtime, self.part)


async def priority_queues(
    runtime: Runtime, prefix: str = "", /, *, part: str = "priority"
) -> AsyncGenerator[str, None]:
    """The names of all queues that begin so, in order: `async for name in priority_queues(client)`.

    A queue that is created or deleted meanwhile may be among them or not. Raises `RequestInvalid`
    (the prefix), StorageUnavailable, and what calls raise.
    """
    check_request_text(show_value(prefix), "prefix", prefix, least=0)
    whole, after = runtime.stream(WholeOf(part), ""), ""
    while page := await whole.page(prefix, after):
        for name in page:
            yield name
        after = page[-1]


async def changes_lag_s(runtime: Runtime, /, *, part: str = "priority") -> float:
    """How long the oldest change of a message has waited for its relay, in seconds; 0: none waits.

    Raises StorageUnavailable, and what calls raise.
    """
    return await runtime.stream(WholeOf(part), "").changes_lag_s()
