"""The silo that the processes of the ledger tests run. They load it by the name of this module."""

from __future__ import annotations

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import (
    BookieOptions,
    LedgerOptions,
    LedgerQueues,
    LedgerTopicOptions,
)
from millstream.runtime import Grain, Silo, grain, state
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe

__all__ = ["NUMBERS", "Listener", "make"]

NUMBERS = StreamNamespace("numbers", int)


@grain(name="LedgerListener")
class Listener(Grain):
    """Keeps the numbers that it heard."""

    heard = state(list[int])

    @subscribe(NUMBERS, commit_with=heard)
    async def on_number(self, event: Event[int]) -> None:
        self.heard.value.append(event.item)

    async def numbers(self) -> list[int]:
        return self.heard.value


def make(
    directory: str,
    name: str,
    ledger: str,
    address: str = "127.0.0.1:0",
    is_bookie: bool = False,
    segment_bytes: int = 64 << 20,
    retention_s: float = 0.0,
) -> Silo:
    """Make a silo over a ledger in a folder of the directory. `{silo}` in the folder's name gives
    each silo its own.
    """
    rows = f"sqlite:{directory}/rows"
    bookie = BookieOptions(segment_bytes=segment_bytes, allocate_bytes=segment_bytes // 4)
    options = LedgerOptions(bookie=bookie, topic=LedgerTopicOptions(retention_s=retention_s))
    streams = PersistentStreams(
        LedgerQueues(f"{directory}/{ledger}", options),
        mapper=HashRingMapper(queues=4),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
    )
    silo = Silo(
        grains=[Listener],
        name=name,
        address=address,
        membership=rows,
        stores={"default": rows},
        streams={"default": streams},
    )
    if is_bookie:
        silo.reduce_to_bookie()
    return silo
