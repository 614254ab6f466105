"""The places from which a test calls a grain of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from millstream.runtime import (
    CallFilter,
    CallFilters,
    Grain,
    GrainCall,
    LocalCluster,
    Proceed,
    Runtime,
    RuntimeOptions,
)
from millstream.runtime.testing import SimCluster, Simulation, run

__all__ = ["CALLERS", "ask", "runtime_of"]

CALLERS = ("its own silo", "another silo", "a client")


def runtime_of(cluster: LocalCluster, where: str) -> Runtime:
    """Return the silo of most grains ("local"), another silo ("silo"), or a client ("client")."""
    runtimes: dict[str, Runtime] = {
        "local": cluster.silos[0],
        "silo": cluster.silos[1],
        "client": cluster.client,
    }
    return runtimes[where]


def from_now_on(fn: CallFilter, is_ready: list[bool]) -> CallFilter:
    """Return a filter that does nothing before the test itself begins."""

    @wraps(fn)
    async def filtered(call: GrainCall, proceed: Proceed) -> object:
        return await (fn(call, proceed) if is_ready else proceed())

    return filtered


def ask(
    caller: str,
    main: Callable[[Any], Awaitable[Any]],
    *grains: type[Grain],
    activate: Callable[[Any], Awaitable[None]] | None = None,
    filters: CallFilters | None = None,
    options: RuntimeOptions | None = None,
) -> Any:
    """Run a program at one place of a cluster of two silos in virtual time. Return its result.

    Args:
        caller: One of CALLERS: the first silo, the second silo, or a client.
        activate: Runs in the first silo before the program.
        filters: The filters of each silo and client. They do nothing before the program begins.
    """
    found: list[Any] = []
    is_ready: list[bool] = []
    given = filters or CallFilters()
    filters = CallFilters(
        incoming=[from_now_on(one, is_ready) for one in given.incoming],
        outgoing=[from_now_on(one, is_ready) for one in given.outgoing],
    )

    async def driver(sim: Simulation) -> None:
        async with SimCluster(
            sim, silos=2, grains=grains, filters=filters, options=options
        ) as cluster:
            first, second = cluster.names

            async def prepare() -> None:
                if activate is not None:
                    await activate(cluster.silo(first))

            async def program() -> None:
                is_ready.append(True)
                try:
                    if caller == "a client":
                        async with cluster.client(sim.host("laptop")) as client:
                            found.append(await main(client))
                    else:
                        silo = cluster.silo(first if caller == "its own silo" else second)
                        found.append(await main(silo))
                except Exception as error:
                    found.append(error)

            await sim.call(sim.host(first), prepare())
            at = {"a client": "laptop", "its own silo": first, "another silo": second}[caller]
            await sim.call(sim.host(at), program())

    run(driver, seed=1)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
