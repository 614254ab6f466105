"""The silo of the tests with several hosts. `millstream run` loads this module by its name."""

from __future__ import annotations

import os
from typing import Any

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicSettings, Quorum
from millstream.runtime import Grain, MembershipOptions, Silo, grain, state
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe

__all__ = ["NUMBERS", "Account", "make"]

NUMBERS = StreamNamespace("numbers", int)


@grain(name="HostAccount")
class Account(Grain):
    """Counts calls, and keeps the numbers of the stream of its key."""

    count = state(int)
    heard = state(list[int])

    async def add(self) -> int:
        self.count.value += 1
        await self.count.write()
        return self.count.value

    async def see(self) -> tuple[int, list[int]]:
        return self.count.value, self.heard.value

    async def echo(self, text: str) -> str:
        return text

    @subscribe(NUMBERS, commit_with=heard)
    async def on_number(self, event: Event[int]) -> None:
        self.heard.value.append(event.item)


def make(**options: Any) -> Silo:
    """Make a silo with a ledger directory of its own: each entry has three replicas."""
    settings = LedgerTopicSettings(quorum=Quorum(3, 3, 2))
    streams = PersistentStreams(
        LedgerQueues(f"{os.environ['LEDGER']}/{{silo}}", LedgerOptions(settings=settings)),
        mapper=HashRingMapper(queues=4),
        balancer=DeploymentBalancer(rebalance_delay_s=0.5),
    )
    return Silo(
        grains=[Account],
        streams={"default": streams},
        membership_options=MembershipOptions(refresh_s=1.0),
        **options,
    )
