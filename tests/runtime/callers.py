"""The places from which a test calls a grain of a cluster."""

from __future__ import annotations

from millstream.runtime import LocalCluster, Runtime

__all__ = ["runtime_of"]


def runtime_of(cluster: LocalCluster, where: str) -> Runtime:
    """Return the silo of most grains ("local"), another silo ("silo"), or a client ("client")."""
    runtimes: dict[str, Runtime] = {
        "local": cluster.silos[0],
        "silo": cluster.silos[1],
        "client": cluster.client,
    }
    return runtimes[where]
