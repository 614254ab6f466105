"""What the silo processes of the tests of Spark run: they find it by its name."""

from __future__ import annotations

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicOptions
from millstream.runtime import FAST_DETECTION, Silo
from millstream.streams import HashRingMapper, PersistentStreams

__all__ = ["make"]


def make(directory: str, name: str, address: str = "127.0.0.1:0") -> Silo:
    """A silo over a ledger that it shares with others; what is there is kept."""
    rows = f"sqlite:{directory}/rows"
    options = LedgerOptions(topic=LedgerTopicOptions(retention_s=3600.0))
    streams = PersistentStreams(
        LedgerQueues(f"{directory}/ledger", options),
        mapper=HashRingMapper(queues=4),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
    )
    return Silo(
        grains=[],
        name=name,
        address=address,
        membership=rows,
        stores={"default": rows},
        membership_options=FAST_DETECTION,
        streams={"default": streams},
    )
