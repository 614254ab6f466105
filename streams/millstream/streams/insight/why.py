"""`why(stream)`: the sentence that names what holds a stream up; `lagging`: which streams are.

Owns: asking, from a silo or through a gateway. Not: what answers (`target`).
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
    """A stream, as `stream(namespace, key)` gives it."""

    @property
    def id(self) -> StreamId: ...
    @property
    def provider(self) -> str: ...


class Question:
    """What is asked of one provider."""

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
    """What holds a stream up: checks in order, from its queue to its grains; takes half a second.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        stream: as `program.stream(namespace, key)` gives it.

    `str` of the result is the sentence, `reports` are the figures behind it. Raises ConfigError
    (no such provider), StorageError, and what calls raise.
    """
    return await program.stream(Questions(), stream.provider).ask(stream.id)


async def lagging(
    program: Program, namespace: str, /, provider: str = "default", *, limit: int = 20
) -> Sequence[LaggingStream]:
    """The streams of a namespace of which something is not done, the furthest behind first.

    First come those that have not moved for the longest time, then those whose oldest event is the
    oldest. A silo that does not answer leaves its queues out.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        namespace: its name.
        provider: the name under which silos were given the provider that carries it.
        limit: streams at most, 1 to 1,000.

    Raises ConfigError (the limit, or no such provider), and what calls raise.
    """
    if type(limit) is not int or not 1 <= limit <= STREAMS_MAX:
        raise ConfigError(f"lagging(limit={limit!r}): 1 to {STREAMS_MAX:,}")
    return await program.stream(Questions(), provider).lagging(namespace, limit)
