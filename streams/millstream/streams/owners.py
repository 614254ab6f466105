"""The owners of queues in a cluster of this process, for tests.

Owns: `owners` and `wait_owned`. Not: ownership itself (`ownership`), the cluster. Invariants: only
running silos are asked, so a crashed silo owns nothing. If two silos claim one queue, the one with
the later epoch owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from millstream.runtime import ConfigError, Silo

from .contracts.identity import QueueId
from .provider.provider import PersistentStreams

__all__ = ["Running", "owners", "wait_owned"]

LOOK_S = 0.05


class Running(Protocol):
    """A cluster in this process, such as a `SimCluster`."""

    def silos(self) -> Sequence[Silo]:
        """The silos that run now."""
        ...


def owners(cluster: Running, provider: str = "default") -> dict[QueueId, str]:
    """Return the owner of each queue now: silo names by queue. Queues without an owner are missing.

    A silo that hands a queue over is its owner until the hand-over is done.

    Args:
        cluster: a `SimCluster`, or another cluster of this process.
        provider: name of the stream provider.

    Raises:
        ConfigError: a running silo has no such provider, or the provider has no queues.
    """
    found: dict[QueueId, tuple[int, str]] = {}
    for silo in cluster.silos():
        for agent in _streams(silo, provider).manager.agents():
            claim = (agent.epoch, silo.services.name)
            found[agent.queue] = max(claim, found.get(agent.queue, claim))
    return {queue: found[queue][1] for queue in sorted(found)}


async def wait_owned(
    cluster: Running, provider: str = "default", within_s: float = 60.0
) -> dict[QueueId, str]:
    """Wait until every queue has an owner, and return the `owners`.

    A balancer that does not know every silo yet may still move some queues afterwards.

    Args:
        cluster: a `SimCluster`, or another cluster of this process.
        provider: name of the stream provider.
        within_s: longest wait, in seconds.

    Raises:
        TimeoutError: queues have no owner after `within_s`; the error names them.
        ConfigError: a running silo has no such provider, or the provider has no queues.
    """
    try:
        async with asyncio.timeout(within_s):
            while not cluster.silos() or _list_unowned(cluster, provider):  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        left = ", ".join(_list_unowned(cluster, provider)) or "no silo runs"
        raise TimeoutError(
            f"stream provider {provider!r}: queues without an owner after {within_s:g} s: {left}"
        ) from None
    return owners(cluster, provider)


def _list_unowned(cluster: Running, provider: str) -> list[QueueId]:
    """Queues that a running silo knows and no silo reads."""
    known = {
        queue for silo in cluster.silos() for queue in _streams(silo, provider).mapper.queues()
    }
    return sorted(known - owners(cluster, provider).keys())


def _streams(silo: Silo, provider: str) -> PersistentStreams:
    part = silo.services.part(provider)
    if not isinstance(part, PersistentStreams):
        raise ConfigError(
            f"{silo.services.name}: {provider!r} is a {type(part).__name__}, which has no queues: "
            "name a stream provider of PersistentStreams"
        )
    return part
