"""Suite `membership`: silos join, crash, are cut off and stop; at the end all crash at once.

In some runs calls of the membership table fail, hang, or lose their answers until the repair. The
suite judges these promises:

- Views rise and agree; dead silos stay dead.
- In a network that is only slow, no live silo is evicted.
- If crashes are the only fault, a crash is detected in time.
- A silo that the others consider dead stops.
- After the repair the silo of each host is active in each view.
- When all silos crashed, silos that start then on any host are active in each view within the time
  of detection, and the crashed silos are dead.
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
# A crash is detected after `missed_probes_max` probes that time out; a refused connection is
# detected sooner. After the first miss, probes follow at half intervals. One more probe comes from
# another silo.
DETECTED_S = (PROBES.missed_probes_max + 1) * PROBES.probe_timeout_s + 3 * PROBES.probe_every_s
# If two silos crash at nearly the same time, the silo that should send that probe may be the other
# crashed silo. A member waits two probe timeouts for its answer, and votes without it.
BOTH_DETECTED_S = 6.0  # the promise of docs/guarantees.md


class Idle(Grain):
    """A grain type, because a cluster must host at least one."""


async def membership(simulation: Simulation) -> Counter[str]:
    """Run one seed; return its figures. Raises Violated."""
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
    cluster.names = hosts[: plan.silos]  # the other hosts are for the end
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
    """Return the share of failing table calls until the repair; 0 if detection times are judged."""
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
    await leaving  # its loop ends after the current pause


async def replace_all(run: Run, cluster: SimCluster, hosts: Sequence[str]) -> None:
    """Crash all silos at once; start as many or fewer, at new and old addresses."""
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
    """Count events, to show that the suite tests something."""
    run.figures["crashes"] += plan.crashes
    run.figures["deaths"] += sum(1 for _ in run.history.of(SiloDeclaredDead))
    run.figures["views"] += sum(1 for _ in run.history.of(ViewAdopted))


def check_deaths(run: Run, plan: Plan) -> list[str]:
    """In a network that answers within the time of probes, no running silo is declared dead."""
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
    """If crashes are the only fault, the table shows the crash of a member in time."""
    if plan.kind != "crashes":
        return []
    members = Members()
    found = []
    for at_s, event in run.history.events:
        took_s, limit_s = members.step(at_s, event)
        if took_s is None:
            continue
        run.figures["detections"] += 1
        run.figures["slowest detection ms"] = max(
            run.figures["slowest detection ms"], round(1000 * took_s)
        )
        if took_s > limit_s:
            found.append(f"t={at_s:.6f}: noticed after {took_s:.1f} s: {event}")
    missed = members.list_unnoticed(run.simulation.loop.time() - BOTH_DETECTED_S)
    return found + [f"{silo} crashed and was never noticed" for silo in missed]


class Members:
    """The members in the table, and the time since which the host of a member is down."""

    def __init__(self) -> None:
        self._of_host: dict[str, str] = {}
        self._down_s: dict[str, float] = {}
        self._crashes_s: dict[str, float] = {}  # by host: its last crash

    def step(self, at_s: float, event: object) -> tuple[float | None, float]:
        """Take the next event. Return the seconds that the detection of a crash took, or None if
        the event is no detection; and the seconds that it may take."""
        if isinstance(event, ViewAdopted):
            for silo, status in event.statuses:
                if status in ("active", "joining") and host_of(silo) == host_of(event.silo):
                    self._of_host[host_of(silo)] = silo
        elif isinstance(event, HostDown) and event.host in self._of_host:
            self._crashes_s[event.host] = self._down_s[self._of_host[event.host]] = at_s
        elif isinstance(event, SiloDeclaredDead):
            if self._of_host.get(host_of(event.silo)) == event.silo:
                del self._of_host[host_of(event.silo)]
            down_s = self._down_s.pop(event.silo, None)
            if down_s is not None:
                return at_s - down_s, self._limit_s(host_of(event.silo), down_s)
        return None, DETECTED_S

    def _limit_s(self, host: str, down_s: float) -> float:
        """Return the longer limit if another host crashed at nearly the same time or since."""
        others_s = [at_s for other, at_s in self._crashes_s.items() if other != host]
        is_alone = all(at_s < down_s - BOTH_DETECTED_S for at_s in others_s)
        return DETECTED_S if is_alone else BOTH_DETECTED_S

    def list_unnoticed(self, before_s: float) -> list[str]:
        """Return silos that went down before a time and are not declared dead."""
        return [silo for silo, down_s in self._down_s.items() if down_s < before_s]


def host_of(silo: str) -> str:
    """Return the host's name in a silo's address."""
    return silo.partition(":")[0]
