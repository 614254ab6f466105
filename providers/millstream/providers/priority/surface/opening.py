"""The functions that return handles of queues, such as `priority_queue(client, "encode")`.

The runtime does not know priority queues, so a client has no method for them. Handles are opened
through `stream()` of a client, silo or grain, as streams are.
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
    """The argument of `stream()` that opens a priority queue of one part.

    Programs call `priority_queue` instead. Unit tests of grains use this class to replace a queue
    by a fake: `grain_of(Encoder, streams={(QueuesOf("priority"), "encode"): fake})`.

    Attributes:
        part: The name under which silos have `PriorityQueues`.
        patience_s: How long an operation is retried while the cluster does not answer, in seconds.
    """

    part: str = "priority"
    patience_s: float = PATIENCE_S

    @property
    def name(self) -> str:
        """The text by which messages name this object."""
        return f"QueuesOf({self.part!r})"

    def open(self, runtime: Opener, key: str, /) -> PriorityQueue:
        """Open the handle of the queue that is called `key`."""
        return PriorityQueue(runtime, self.part, key, self.patience_s)


def priority_queue(
    runtime: Runtime, name: str, /, *, part: str = "priority", patience_s: float = PATIENCE_S
) -> PriorityQueue:
    """Open the handle of a priority queue.

    The function sends nothing; the first operation of the handle does. Handles are cheap, and all
    handles of one process share their request sessions.

    ```python
    queue = priority_queue(client, "encode")
    await queue.enqueue(b"the film", priority=100)
    async for lease in queue.leases(worker="w1"):
        async with lease:
            await encode(lease.payload)
    ```

    Args:
        runtime: A client, a silo, a `LocalCluster`, or, inside a grain, `self`.
        name: Name of the queue, 1 to 256 bytes in UTF-8. The character U+001F is not allowed.
        part: The name under which the silos have `PriorityQueues`.
        patience_s: How long an operation is retried while the cluster does not answer, in seconds.
            Changes of messages carry a request id, so a retry does not carry them out twice.

    Returns:
        The handle.

    Raises:
        RequestInvalid: The name or `patience_s` is not valid.
        TypeError: The part's name is not a text.
    """
    check_text("the name of a part", part)
    return runtime.stream(QueuesOf(part, patience_s), name)


class Whole:
    """One part in all silos, as a whole."""

    def __init__(self, opener: Opener, part: str) -> None:
        self._opener = opener
        self._part = part
        self._target = f"{QueuesTarget.target_name}/{part}"

    async def page(self, prefix: str, after: str) -> list[str]:
        """Return the names of queues that begin with `prefix` and follow the name `after`: the next
        page."""
        gateway = self._opener.gateway
        if gateway is None:
            return await self._here().queues(prefix, after, NAMES_MAX)
        return await gateway.call("", self._target, QueuesTarget.queues, prefix, after, NAMES_MAX)

    async def changes_lag_s(self) -> float:
        """How long the oldest change has waited for its relay, in seconds."""
        gateway = self._opener.gateway
        if gateway is None:
            return await self._here().changes_lag_s()
        return await gateway.call("", self._target, QueuesTarget.changes_lag_s)

    def _here(self) -> QueuesTarget:
        found: QueuesTarget = self._opener.part(self._part).target
        return found


@dataclass(frozen=True, slots=True)
class WholeOf:
    """The argument of `stream()` that opens a part as a whole."""

    part: str

    def open(self, runtime: Opener, key: str, /) -> Whole:
        """Open the part; the key has no meaning."""
        return Whole(runtime, self.part)


async def priority_queues(
    runtime: Runtime, prefix: str = "", /, *, part: str = "priority"
) -> AsyncGenerator[str, None]:
    """Iterate over the names of all queues with a prefix, in order.

    Write `async for name in priority_queues(client)`. The names are read in pages of 1,000. A queue
    that is created or deleted during the iteration may be missing or listed.

    Args:
        runtime: A client, a silo, a `LocalCluster`, or, inside a grain, `self`.
        prefix: Beginning of the names; the empty text lists all queues.
        part: The name under which the silos have `PriorityQueues`.

    Yields:
        Names of queues. Shards of a queue are not listed.

    Raises:
        RequestInvalid: The prefix is not a text of at most 256 bytes.
        StorageUnavailable: The store cannot be read.
    """
    check_request_text(show_value(prefix), "prefix", prefix, least=0)
    whole, after = runtime.stream(WholeOf(part), ""), ""
    while page := await whole.page(prefix, after):
        for name in page:
            yield name
        after = page[-1]


async def changes_lag_s(runtime: Runtime, /, *, part: str = "priority") -> float:
    """How long the oldest change of a message has waited for its relay.

    It is 0 when no change waits. A growing value means that the stream `PRIORITY_CHANGES` does not
    accept events; when the outbox is full, queues refuse work with `Overloaded`.

    Args:
        runtime: A client, a silo, a `LocalCluster`, or, inside a grain, `self`.
        part: The name under which the silos have `PriorityQueues`.

    Returns:
        The lag, in seconds.

    Raises:
        StorageUnavailable: The store cannot be read.
    """
    return await runtime.stream(WholeOf(part), "").changes_lag_s()
