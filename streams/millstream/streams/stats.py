"""Asking for the figures of every silo and of the queues that it reads.

Owns: `cluster_stats`. Not: the figures, and the target that has them (`provider.target`).
"""

from __future__ import annotations

from millstream.runtime import Client
from millstream.runtime.extending import ask_gateway

from .provider.target import SiloStats, StreamsTarget, target_of

__all__ = ["cluster_stats"]


async def cluster_stats(client: Client, provider: str = "default", /) -> list[SiloStats]:
    """Every active silo that answers, by name, with the queues that it reads.

    The client is an operator's. Raises what calls raise.
    """
    return await ask_gateway(client, "", target_of(provider), StreamsTarget.cluster_stats)
