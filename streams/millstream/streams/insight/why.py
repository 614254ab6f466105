"""`why(stream)`: the sentence that names the cause of a delay; `lagging`: the delayed streams.

Owns: asking, from a silo or through a gateway. Not: the answers (`target`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.runtime import ConfigError
from millstream.runtime.extending import Opener, Program
from millstream.streams.contracts.identity import StreamId

from .report import LaggingStream
from .target import WhyTarget
from .verdict import Why

__all__ = ["lagging", "why"]

STREAMS_MAX = 1_000
"""Streams that one answer of `lagging` names."""


class StreamHandle(Protocol):
    """A stream, as `stream(namespace, key)` returns it."""

    @property
    def id(self) -> StreamId: ...
    @property
    def provider(self) -> str: ...


class Question:
    """The questions about one provider."""

    def __init__(self, runtime: Opener, provider: str) -> None:
        self._runtime = runtime
        self._provider = provider

    async def ask(self, stream: StreamId) -> Why:
        gateway = self._runtime.gateway
        if gateway is None:
            found: Why = await self._runtime.part(self._provider).reports.why(stream)
            return found
        target = f"{WhyTarget.target_name}/{self._provider}"
        return await gateway.call(str(stream), target, WhyTarget.why, stream)

    async def lagging(self, namespace: str, limit: int) -> Sequence[LaggingStream]:
        gateway = self._runtime.gateway
        if gateway is None:
            reports = self._runtime.part(self._provider).reports
            found: list[LaggingStream] = await reports.lagging(namespace, limit)
            return found
        target = f"{WhyTarget.target_name}/{self._provider}"
        return await gateway.call(namespace, target, WhyTarget.lagging, namespace, limit)


class Questions:
    """Opens a question as a namespace opens streams; the key is the provider."""

    def open(self, runtime: Opener, key: str, /) -> Question:
        runtime.check_running()
        return Question(runtime, key)


async def why(program: Program, stream: StreamHandle, /) -> Why:
    """Explain what delays a stream: look at its queue, its subscriptions and its grains.

    The call looks twice, half a second apart. `millstream why NAMESPACE KEY` prints the same.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        stream: a stream that `program.stream(namespace, key)` returned.

    Returns:
        `str(why)` is the sentence; `why.reports` are the figures behind it.

    Raises:
        ConfigError: there is no such provider.
        StorageError: the store failed.
    """
    return await program.stream(Questions(), stream.provider).ask(stream.id)


async def lagging(
    program: Program, namespace: str, /, provider: str = "default", *, limit: int = 20
) -> Sequence[LaggingStream]:
    """Return the streams of a namespace with unprocessed events, the most delayed first.

    Streams without progress for the longest time come first, then streams with the oldest events.
    If a silo does not answer, the streams of its queues are missing. `millstream why NAMESPACE`
    prints the same.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        namespace: name of the namespace.
        provider: the name under which silos were given the provider.
        limit: largest number of streams, 1 to 1,000.

    Raises:
        ConfigError: the limit is not valid, or there is no such provider.
    """
    if type(limit) is not int or not 1 <= limit <= STREAMS_MAX:
        raise ConfigError(f"lagging(limit={limit!r}): 1 to {STREAMS_MAX:,}")
    return await program.stream(Questions(), provider).lagging(namespace, limit)
