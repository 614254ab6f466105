"""Idle collection: ends activations that were not used for a while.

A call sets a mark of last use in its activation, and each scan clears it. An activation is
therefore collected between one and two `idle_after` after its last use. An activation is never
collected while a turn runs or a request waits, or while it is kept alive. Each slice of a scan
yields to the event loop. A scan costs about 25 ns per activation.

A pool of stateless workers (`workers`) ends the workers that its load does not need sooner than
that, one with each look. Its last worker ends as every activation does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from millstream.runtime.definition.grain import DeactivationReason

from .activation import Activation
from .catalog import Catalog
from .kind import GrainKind
from .run import Turns
from .turn_rule import VALID
from .workers import WorkerTable

__all__ = ["LOOK_EVERY_S", "collect_kind", "collect_while_running", "trim_while_running"]

SCANNED_AT_ONCE = 1_000  # activations; they take about 25 µs
LOOK_EVERY_S = 1.0
"""Seconds between two looks at the pools of stateless workers."""


async def collect_kind(catalog: Catalog, kind: str, turns: Turns) -> int:
    """Scan one grain type once. Returns the number of activations that begin to end."""
    now, collected = turns.loop.time(), 0
    for at, activation in enumerate(list(catalog.of(kind).all())):
        was_used, activation.is_used = activation.is_used, False
        if not was_used and is_collectable(activation, now):
            collected += 1
            catalog.deactivate(activation, DeactivationReason.IDLE)
            await turns.budget.spend()
        elif not at % SCANNED_AT_ONCE:
            await turns.budget.spend()
    return collected


def is_collectable(activation: Activation, now: float) -> bool:
    """Return True if the activation is valid, without turns, and not kept alive."""
    box = activation.mailbox
    return (
        activation.state is VALID
        and activation.is_idle
        and (box is None or (box.keep_until <= now and not box.tasks))
    )


async def collect_while_running(catalog: Catalog, kinds: Iterable[GrainKind], turns: Turns) -> None:
    """Scan each hosted type at the interval of its own `idle_after`."""
    scanned_at: dict[str, float] = {}
    hosted = [(kind.name, kind.hosted.options) for kind in kinds if kind.hosted is not None]
    while True:
        await asyncio.sleep(turns.options.collect_every_s)
        now = turns.loop.time()
        for name, options in hosted:
            idle_after_s = options.idle_after or turns.options.idle_after_s
            if now - scanned_at.setdefault(name, 0.0) >= idle_after_s:
                scanned_at[name] = now
                await collect_kind(catalog, name, turns)


async def trim_while_running(catalog: Catalog, kinds: Iterable[GrainKind], turns: Turns) -> None:
    """End the stateless workers that are not needed. Returns at once if no class has workers."""
    tables = [catalog.of(kind.name) for kind in kinds if kind.workers_max]
    while tables:
        await asyncio.sleep(LOOK_EVERY_S)
        for table in tables:
            assert isinstance(table, WorkerTable)
            await trim(catalog, table, turns)


async def trim(catalog: Catalog, table: WorkerTable, turns: Turns) -> None:
    """Look once at each pool of several workers."""
    now = turns.loop.time()
    for at, pool in enumerate(table.list_crowded()):
        worker = pool.find_surplus(lambda worker: is_collectable(worker, now))
        if worker is not None:
            catalog.deactivate(worker, DeactivationReason.IDLE)
        if worker is not None or not at % SCANNED_AT_ONCE:
            await turns.budget.spend()
