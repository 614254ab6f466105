"""Figures of every silo and of the queues that it reads.

Owns: `cluster_stats`. Not: the figures, and the target that answers (`provider.target`).
"""

from __future__ import annotations

from millstream.runtime import Client
from millstream.runtime.extending import ask_gateway

from .provider.target import SiloStats, StreamsTarget, target_of

__all__ = ["cluster_stats"]


async def cluster_stats(client: Client, provider: str = "default", /) -> list[SiloStats]:
    """Return the figures of every active silo that answers, with the queues that it reads, by name.

    Args:
        client: a client of an operator.
        provider: name of the stream provider.
    """
    return await ask_gateway(client, "", target_of(provider), StreamsTarget.cluster_stats)
