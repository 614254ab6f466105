"""What a silo tells clients and others about itself: gateways, loads.

Owns: the `$gateway` target and the exchange of activation counts for placement.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.runtime.calls.system_target import SystemTarget
from millstream.runtime.errors import MillstreamError

from .table import Status

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost

__all__ = ["GatewayTarget", "exchange_loads"]

LOADS_EVERY_S = 1.0


class GatewayTarget(SystemTarget):
    """Asked by clients, and by silos for loads."""

    target_name = "$gateway"

    def __init__(self, host: SiloHost) -> None:
        self._host = host

    async def gateways(self) -> list[str]:
        """The active silos that take clients, as `host:port@generation`."""
        rows = self._host.membership.view.rows
        return sorted(row.silo for row in rows if row.is_gateway and row.status is Status.ACTIVE)

    async def load(self, silo: str, activations: int) -> None:
        """How many activations a silo has."""
        self._host.loads[silo] = activations


async def exchange_loads(host: SiloHost) -> None:
    """Tell the others this silo's activation count, each second that it changed."""
    told = -1
    while True:
        await asyncio.sleep(LOADS_EVERY_S)
        count = host.loads[host.address] = host.catalog.count
        if count == told:
            continue
        told = count
        for silo in host.membership.active():
            if silo != host.address:
                host.spawn(_tell(host, silo, count))


async def _tell(host: SiloHost, silo: str, count: int) -> None:
    try:
        await host.targets.call(
            silo, GatewayTarget.target_name, GatewayTarget.load, host.address, count
        )
    except MillstreamError:
        return  # the next exchange tells it again
