"""One partition of a broker that keeps no position, and several clusters over it in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.contract.adapters.partitions import (
    PartitionedBroker,
    PartitionedQueues,
    PartitionMapper,
)

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster, MemoryStateStore
from millstream.streams import FailureHandler, OwnershipOptions, PersistentStreams, StreamOptions
from millstream.streams.ownership.record import QueueRecord
from millstream.streams.ownership.store import OwnershipStore

__all__ = ["PartitionPlace"]

OPTIONS = StreamOptions(
    ownership=OwnershipOptions(poll_s=0.02, max_handoff_s=0.5), read_wait_s=0.05
)


class PartitionPlace:
    """The state that survives the clusters: the log, and the store of states and queue records."""

    def __init__(
        self,
        grains: Sequence[type[Grain]],
        *,
        options: StreamOptions = OPTIONS,
        on_give_up: FailureHandler | None = None,
        queues: Callable[[PartitionedBroker], PartitionedQueues] = PartitionedQueues,
    ) -> None:
        self.broker = PartitionedBroker(partitions=1)
        self.store = MemoryStateStore()
        self._grains = grains
        self._options = options
        self._on_give_up = on_give_up
        self._queues = queues

    def cluster(self, silos: int = 1) -> LocalCluster:
        def provider() -> PersistentStreams:
            return PersistentStreams(
                self._queues(self.broker),
                mapper=PartitionMapper(1),
                balancer=DeploymentBalancer(rebalance_delay_s=0.01),
                options=self._options,
                on_give_up=self._on_give_up,
            )

        stores = {"default": self.store}
        return LocalCluster(
            silos=silos, grains=self._grains, streams={"default": provider}, stores=stores
        )

    async def record(self) -> QueueRecord:
        """Return the record of the queue."""
        stored = await OwnershipStore(self.store, "default").read("p0")
        assert stored is not None
        return stored.record
