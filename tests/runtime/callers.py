"""From where a grain of a cluster is called."""

from __future__ import annotations

from millstream.runtime import LocalCluster, Runtime

__all__ = ["runtime_of"]


def runtime_of(cluster: LocalCluster, where: str) -> Runtime:
    """The silo of most grains ("local"), another one ("silo"), or a client ("client")."""
    runtimes: dict[str, Runtime] = {
        "local": cluster.silos[0],
        "silo": cluster.silos[1],
        "client": cluster.client,
    }
    return runtimes[where]
