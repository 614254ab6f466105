"""Suite `membership`: silos join, crash, are cut off, stop and come back; then all crash at once.

In some runs calls of the membership table fail, hang, or lose their answers until the repair.
Judged: views rise and agree, the dead stay dead; in a network that is only slow nobody who lives is
evicted; a crash that is the only trouble is noticed in time; a silo that is dead to the others
stops; after the repair every host's silo is active in every view. When every silo crashed, those
that are started then, wherever, are active in every view within the time of detection, and the
crashed ones are dead.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence

from tests.sim.suites.run.plan import Plan, make_plan
from tests.sim.suites.run.record import Run
from tests.sim.suites.run.stops import Stops

from millstream.runtime import Grain, MembershipOptions, RuntimeOptions, Status
from millstream.runtime.testing import (
    FailingTable,
    HostDown,
    SiloDeclaredDead,
    SiloEnded,
    SimCluster,
    Simulation,
    ViewAdopted,
    check_views,
    make_random,
)

__all__ = ["membership"]

DURATION_S = 60.0
RECOVERY_S = 60.0
PROBES = MembershipOptions()
RUNTIME = RuntimeOptions(drain_s=2.0)
# A crash is noticed after `missed_probes_max` probes that time out (a connection that is refused is
# quicker), asked at half intervals after the first miss, and one more by another silo.
DETECTED_S = (PROBES.missed_probes_max + 1) * PROBES.probe_timeout_s + 3 * PROBES.probe_every_s


class Idle(Grain):
    """A cluster hosts something."""


async def membership(simulation: Simulation) -> Counter[str]:
    """Run one seed; returns its figures. Raises Violated."""
    run = Run(simulation)
    plan = make_plan(simulation, ("table",), duration_s=DURATION_S)
    table = FailingTable(make_random(simulation.seed, "table"))
    cluster = SimCluster(
        simulation,
        silos=2 * plan.silos,
        grains=[Idle],
        options=RUNTIME,
        membership_options=PROBES,
        membership=table,
    )
    hosts = cluster.names
    cluster.names = hosts[: plan.silos]  # the others are for the end
    await cluster.start()
    table.rate = failing_rate(run, plan)
    await trouble(run, plan, cluster)
    await asyncio.sleep(PROBES.refresh_s)
    if not cluster.is_whole():
        run.on_violated("the cluster was whole after the repair, and is not any more")
    count(run, plan)
    run.figures["failures of the table"] += table.failed_count
    found = check_deaths(run, plan), check_detection(run, plan)
    await replace_all(run, cluster, hosts)
    run.judge(check_views(simulation.history), *found)
    await cluster.close()
    return run.figures


def failing_rate(run: Run, plan: Plan) -> float:
    """How many calls of the table fail until the repair; 0 where times are judged."""
    rng = make_random(run.simulation.seed, "failing table")
    is_timed = plan.kind in ("crashes", "slow network")
    return 0.0 if is_timed or rng.random() < 0.5 else rng.uniform(0.01, 0.2)


async def trouble(run: Run, plan: Plan, cluster: SimCluster) -> None:
    """Play the script and stop silos beside it; then wait until all views agree again."""
    assert isinstance(cluster.table, FailingTable)
    loop = run.simulation.loop
    stops = Stops(run, cluster)
    leaving = loop.create_task(stops.play())
    await run.simulation.nemesis(plan.script, cluster.boot)
    stops.is_over = True
    cluster.table.rate = 0.0
    repaired_s = loop.time()
    await cluster.until_active(RECOVERY_S)
    run.figures["recovery ms"] = round(1000 * (loop.time() - repaired_s))
    await leaving  # it looks up when its pause is over


async def replace_all(run: Run, cluster: SimCluster, hosts: Sequence[str]) -> None:
    """Every silo crashes at once; as many or fewer start, at new addresses and at old ones."""
    simulation, rng = run.simulation, run.simulation.rng
    crashed = [silo.address for silo in cluster.silos()]
    is_silent = rng.random() < 0.5
    for name in cluster.names:
        simulation.crash(name, is_silent=is_silent)
    await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, PROBES.stale_after_s))))
    cluster.names = tuple(rng.sample(list(hosts), rng.randint(1, len(crashed))))
    started_s = simulation.loop.time()
    try:
        for name in cluster.names:
            cluster.boot(name)
        await cluster.until_active(DETECTED_S)
    except TimeoutError:
        run.on_violated(f"all crashed, and {cluster.names} are not active after {DETECTED_S:g} s")
    run.figures["joining after all crashed ms"] = round(1000 * (simulation.loop.time() - started_s))
    rows = {row.silo: row.status for row in cluster.table.view().rows}
    for silo in crashed:
        if rows[silo] is not Status.DEAD:
            run.on_violated(f"{silo} crashed with all others, and is {rows[silo].value}")


def count(run: Run, plan: Plan) -> None:
    """What happened, so that a suite that tests nothing is seen."""
    run.figures["crashes"] += plan.crashes
    run.figures["deaths"] += sum(1 for _ in run.history.of(SiloDeclaredDead))
    run.figures["views"] += sum(1 for _ in run.history.of(ViewAdopted))


def check_deaths(run: Run, plan: Plan) -> list[str]:
    """In a network that answers within the probes' time, nobody declares a silo dead that runs."""
    is_slow = any(step.verb == "latency" and float(step.words[1]) > 1.0 for step in plan.script)
    if plan.kind != "slow network" or is_slow:
        return []
    ended = {event.silo: at_s for at_s, event in run.history.of(SiloEnded)}
    return [
        f"t={at_s:.6f}: {event.by} evicted {event.silo} from a slow network"
        for at_s, event in run.history.of(SiloDeclaredDead)
        if event.by != host_of(event.silo) and at_s < ended.get(event.silo, math.inf)
    ]


def check_detection(run: Run, plan: Plan) -> list[str]:
    """With crashes as the only trouble, a crash of a member is in the table in time."""
    if plan.kind != "crashes":
        return []
    members = Members()
    found = []
    for at_s, event in run.history.events:
        took_s = members.step(at_s, event)
        if took_s is None:
            continue
        run.figures["detections"] += 1
        run.figures["slowest detection ms"] = max(
            run.figures["slowest detection ms"], round(1000 * took_s)
        )
        if took_s > DETECTED_S:
            found.append(f"t={at_s:.6f}: noticed after {took_s:.1f} s: {event}")
    missed = members.list_unnoticed(run.simulation.loop.time() - DETECTED_S)
    return found + [f"{silo} crashed and was never noticed" for silo in missed]


class Members:
    """Who is in the table, and since when a member's host is down."""

    def __init__(self) -> None:
        self._of_host: dict[str, str] = {}
        self._down_s: dict[str, float] = {}

    def step(self, at_s: float, event: object) -> float | None:
        """Take the next event; returns how long a crash took to be noticed, when it was."""
        if isinstance(event, ViewAdopted):
            for silo, status in event.statuses:
                if status in ("active", "joining") and host_of(silo) == host_of(event.silo):
                    self._of_host[host_of(silo)] = silo
        elif isinstance(event, HostDown) and event.host in self._of_host:
            self._down_s[self._of_host[event.host]] = at_s
        elif isinstance(event, SiloDeclaredDead):
            if self._of_host.get(host_of(event.silo)) == event.silo:
                del self._of_host[host_of(event.silo)]
            down_s = self._down_s.pop(event.silo, None)
            return None if down_s is None else at_s - down_s
        return None

    def list_unnoticed(self, before_s: float) -> list[str]:
        """Silos that went down before a time, and are not declared dead."""
        return [silo for silo, down_s in self._down_s.items() if down_s < before_s]


def host_of(silo: str) -> str:
    """The host's name in a silo's address."""
    return silo.partition(":")[0]
