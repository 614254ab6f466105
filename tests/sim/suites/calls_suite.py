"""Suite `calls`: programs on each silo and in a client call grains while the cluster has faults.

The suite judges these promises:

- A view has at most one activation of each grain.
- Exclusive turns never overlap.
- Calls of one caller start in the order in which they were sent.
- An acknowledged write is stored exactly once, any other write at most once.
- A call ends by its deadline.
- A timer ticks in time, never overlaps itself, obeys the turn rule, and ends with its activation.
- A reminder that is set is delivered in the end, and none after its cancellation. After the repair
  it is delivered once and in time, also while silos join and stop.
- An observer of a client handles one call at a time, each acknowledged call once, and none after
  its context. After the repair it is reached in time.
- The items of a streamed result arrive once and in order, and its end only after all items. Its
  generator runs ahead by at most one batch, and ends with its consumer or its activation.
- A grain that moves to another silo continues with its value and state as they were, and no
  activation runs in between.
- A pool of stateless workers never has more workers than its limit. A worker runs one turn at a
  time. An acknowledged call of a worker ran once, any other at most once.
- A durable job runs at least once, and not before its due time by more than the clock was set
  forward; a cancelled one does not run. Its result is that of one of its runs. After the repair it
  runs once and in time.
- Two versions of a grain type, in a third of the seeds: see `call_versions`.
- After the repair each grain answers all callers.
- In a part of the seeds the silos rebalance. After the repair the accounts are evened out, and then
  none moves.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.sim.suites.call_balance import rebalancing_of, use_and_check
from tests.sim.suites.call_jobs import JobNotes
from tests.sim.suites.call_moves import Luggage, check_moves
from tests.sim.suites.call_pages import BATCH_ITEMS, Pages
from tests.sim.suites.call_versions import VersionNotes
from tests.sim.suites.run.plan import make_plan
from tests.sim.suites.run.programs import Programs, again_and_again
from tests.sim.suites.run.record import Run, current_run

from millstream.runtime import (
    Client,
    DeactivationReason,
    Grain,
    MillstreamError,
    Observer,
    Occurrence,
    RuntimeOptions,
    Silo,
    grain,
    read_only,
    reminder,
    state,
    stateless_worker,
    timer,
    with_options,
)
from millstream.runtime.testing import (
    Activated,
    CallEnded,
    CallStarted,
    Deactivated,
    Host,
    HostDown,
    Random,
    SiloDeclaredDead,
    SimCluster,
    Simulation,
    check_live_after_repair,
    check_one_activation,
    check_views,
    make_random,
)

__all__ = ["calls"]

ACCOUNTS = tuple(f"account-{number}" for number in range(12))
DURATION_S = 40.0
CALL_S = 5.0
LATE_S = 0.5
RECOVERY_S = 60.0
LOOK_S = 0.7
AUDIT_S = 1.3
TICK_LATE_S = 0.05  # nothing delays a tick that interleaves
TICK_EARLY_S = 0.0015  # timers of even seeds fire early
CHIME_LATE_S = 8.0  # after the repair: a move of its reminders, and the skew of two clocks
CLERKS = ("clerk-0", "clerk-1")
CLERKS_MAX = 3  # stateless workers of one key in one silo
OBSERVED_S = 10.0  # after the repair: all accounts call one observer
READ_S = 60.0  # a streamed result takes as long as its items do
ANSWER_S = 2.0  # a read of the table that began before a cancellation may end so much later
RUNTIME = RuntimeOptions(
    call_timeout_s=CALL_S,
    idle_after_s=4.0,
    collect_every_s=1.0,
    reminder_refresh_s=4.0,
    reminder_release_s=3.0,
    results_batch_items=BATCH_ITEMS,
    results_idle_s=6.0,
)


@dataclass
class Book:
    """The state of an account: ids of operations, in the order of their turns."""

    ops: list[str] = field(default_factory=list)


class Watcher(Observer):
    """An object of the client that accounts call, and that notes violations."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.is_over = False
        self._is_busy = False

    async def see(self, op: str) -> str:
        """Note a call of an account."""
        run = calls_run()
        if self.is_over:
            run.on_violated(f"{op}: an observer is called after its context")
        if self._is_busy:
            run.on_violated(f"{op}: two calls of an observer overlap")
        self._is_busy = True
        try:
            self.seen[op] += 1
            run.figures["observed"] += 1
            await asyncio.sleep(run.simulation.rng.choice((0.0, 0.05)))
        finally:
            self._is_busy = False
        return op


@grain(name="clerk", placement=stateless_worker(max_local=CLERKS_MAX))
class Clerk(Grain):
    """A stateless worker that notes violations of the turn rule."""

    def __init__(self) -> None:
        self._is_busy = False

    async def on_activate(self) -> None:
        """Take some time to start."""
        await asyncio.sleep(calls_run().simulation.rng.choice((0.0, 0.0, 0.3)))

    async def handle(self, op: str, seconds: float) -> str:
        """Note a call."""
        run = calls_run()
        if self._is_busy:
            run.on_violated(f"{op}: two turns of a worker overlap")
        self._is_busy = True
        run.handled[op] += 1
        run.figures["handled"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._is_busy = False
        return op


def check_pools(events: Sequence[tuple[float, object]], most: int) -> list[str]:
    """Check that no silo had more than `most` workers of one key at a time."""
    live: Counter[tuple[str, str]] = Counter()
    found = []
    for at_s, event in events:
        if isinstance(event, Activated) and event.is_worker:
            live[event.silo, event.grain] += 1
            if live[event.silo, event.grain] > most:
                found.append(f"t={at_s:.6f}: {event.silo} has too many workers of {event.grain}")
        elif isinstance(event, Deactivated) and live[event.silo, event.grain]:
            live[event.silo, event.grain] -= 1
    return found


def check_handled(handled: Counter[str], acknowledged: list[str]) -> list[str]:
    """Check that each acknowledged call of a worker ran once, and others at most once."""
    twice = [f"{op} ran {count} times" for op, count in handled.items() if count > 1]
    lost = [f"{op} was acknowledged, and did not run" for op in acknowledged if not handled[op]]
    return twice + lost


def check_seen(seen: Counter[str], acknowledged: list[str]) -> list[str]:
    """Check that each acknowledged call of an observer was handled once, others at most once."""
    twice = [f"{op} was observed {count} times" for op, count in seen.items() if count > 1]
    lost = [f"{op} was acknowledged, and not observed" for op in acknowledged if not seen[op]]
    return twice + lost


@grain(name="account")
class Account(Grain):
    """Stores operations, and notes violations of the turn rule."""

    book = state(Book)

    def __init__(self) -> None:
        self._exclusive = 0
        self._reading = 0
        calls_run().figures["activations"] += 1
        self._number = calls_run().figures["activations"]
        self._is_looking = self._is_ended = False
        self._looked_s = self._began_s = 0.0
        self._ticks = 0

    async def on_activate(self) -> None:
        """Note the time from which on timers run."""
        self._looked_s = self._began_s = calls_run().simulation.loop.time()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Check that the timers have run."""
        self._is_ended = True
        lived_s = calls_run().simulation.loop.time() - self._began_s
        if not self._ticks and lived_s > LOOK_S + CALL_S + LATE_S:  # turns delay the end
            calls_run().on_violated(f"{self.key}: no tick within {lived_s:.3f} s")

    def on_dehydrate(self) -> Luggage:
        """Return the silo of this activation, and the operations in its book."""
        calls_run().figures["departures"] += 1
        return Luggage(self.context.silo, list(self.book.value.ops))

    def on_rehydrate(self, value: Luggage) -> None:
        """Note the arrival, and check that the book is the same."""
        run = calls_run()
        run.figures["arrivals"] += 1
        run.arrivals[f"account/{self.key}", self.context.silo].append(
            (run.simulation.loop.time(), value.silo)
        )
        if self.book.value.ops != value.ops:
            run.on_violated(f"{self.key}: a state has changed on its way to another silo")

    @timer(every=LOOK_S, interleave=True)
    async def _look(self) -> None:
        """Check the time of a tick that no turn delays."""
        run = calls_run()
        late_s = run.simulation.loop.time() - self._looked_s - LOOK_S
        if not -TICK_EARLY_S <= late_s <= TICK_LATE_S:
            run.on_violated(f"{self.key}: a tick {late_s:.3f} s late")
        self._note_tick()
        if self._is_looking:
            run.on_violated(f"{self.key}: a timer overlaps itself")
        self._is_looking = True
        try:
            await asyncio.sleep(run.simulation.rng.choice((0.0, 0.2)))
        finally:
            self._is_looking = False
            self._looked_s = run.simulation.loop.time()

    @timer(every=AUDIT_S)
    async def _audit(self) -> None:
        """Check the turn rule for ticks."""
        self._note_tick()
        self._enter()
        try:
            await asyncio.sleep(0.002)
        finally:
            self._exclusive -= 1

    def _note_tick(self) -> None:
        self._ticks += 1
        calls_run().figures["ticks"] += 1
        if self._is_ended:
            calls_run().on_violated(f"{self.key}: a tick after on_deactivate")

    @reminder
    async def chime(self, occurrence: Occurrence) -> None:
        """Note an occurrence."""
        self._enter()
        try:
            calls_run().chimes.on_delivered(self.key, occurrence.due)
            await asyncio.sleep(calls_run().simulation.rng.choice((0.0, 0.3)))
        finally:
            self._exclusive -= 1

    async def set_chime(self, at: datetime) -> None:
        """Set the reminder."""
        chimes = calls_run().chimes
        chimes.on_unknown(self.key)
        await self.context.reminders.set("chime", at=at, missed="all")
        chimes.on_set(self.key, at)

    async def cancel_chime(self) -> None:
        """Cancel the reminder."""
        chimes = calls_run().chimes
        chimes.on_unknown(self.key)
        await self.context.reminders.cancel("chime")
        chimes.on_cancelled(self.key)

    async def add(self, op: str) -> int:
        """Store an operation. `op` is `caller:number`."""
        self._note_order(op)
        self._enter()
        try:
            self.book.value.ops.append(op)
            await self.book.write()
            return len(self.book.value.ops)
        finally:
            self._exclusive -= 1

    async def relay(self, op: str, others: list[str]) -> int:
        """Store an operation in another account, through accounts in between."""
        self._enter()
        try:
            target = self.grain(Account, others[0])
            return await (target.relay(op, others[1:]) if others[1:] else target.add(op))
        finally:
            self._exclusive -= 1

    async def show(self, watcher: Watcher, op: str) -> str:
        """Call an observer."""
        self._enter()
        try:
            return await watcher.see(op)
        finally:
            self._exclusive -= 1

    async def leave(self) -> None:
        """Move to another silo."""
        self._enter()
        try:
            self.context.migrate_when_idle()
        finally:
            self._exclusive -= 1

    async def charge(self, op: str) -> str:
        """Run as a durable job."""
        self._enter()
        try:
            result = calls_run().jobs.on_ran(op, self.context.headers)
            await asyncio.sleep(calls_run().simulation.rng.choice((0.0, 0.0, 0.5)))
            return result
        finally:
            self._exclusive -= 1

    async def dawdle(self, seconds: float) -> None:
        """Keep the account busy."""
        self._enter()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._exclusive -= 1

    async def pages(self, op: str, count: int) -> AsyncGenerator[int, None]:
        """Yield the numbers below `count`."""
        run, silo = calls_run(), self.context.silo
        run.pages.on_opened(op, silo)
        try:
            for number in range(count):
                await asyncio.sleep(run.simulation.rng.choice((0.0, 0.0, 0.1, 1.0)))
                if self._is_ended:
                    run.on_violated(f"{self.key}: a generator runs after on_deactivate")
                run.pages.on_made(op, number)
                yield number
        finally:
            run.pages.on_closed(op)

    @read_only
    async def ops(self) -> list[str]:
        """Return all operations."""
        if self._exclusive:
            calls_run().on_violated(f"{self.key}: a read overlaps an exclusive turn")
        self._reading += 1
        try:
            await asyncio.sleep(0.001)
            return self.book.value.ops
        finally:
            self._reading -= 1

    def _enter(self) -> None:
        if self._exclusive or self._reading:
            calls_run().on_violated(f"{self.key}: an exclusive turn overlaps another")
        self._exclusive += 1

    def _note_order(self, op: str) -> None:
        caller, _, number = op.rpartition(":")
        run = calls_run()
        run.starts.append(
            Start(self.key, self._number, caller, int(number), run.simulation.loop.time())
        )


@dataclass(frozen=True, slots=True)
class Start:
    """An operation of a caller started in an activation of an account."""

    key: str
    activation: int
    caller: str
    number: int
    at_s: float

    @property
    def op(self) -> str:
        """The id of the operation."""
        return f"{self.caller}:{self.number}"


class Chimes:
    """The reminders of the accounts: which are set, and which were delivered.

    Attributes:
        is_calm: the faults have ended, so an occurrence comes once and in time.
        started_s: the wall time at which the simulation began.
    """

    def __init__(self, run: CallsRun) -> None:
        self._run = run
        env = run.simulation.env(run.simulation.host("client"))
        self.started_s = env.wall_s() - run.simulation.loop.time()
        self._set: dict[str, datetime] = {}  # the last one of each account, if its outcome is known
        self._cancelled_s: dict[str, float] = {}
        self._delivered: Counter[tuple[str, datetime]] = Counter()
        self.is_calm = False

    def on_unknown(self, key: str) -> None:
        """Note that a change begins."""
        self._set.pop(key, None)
        self._cancelled_s.pop(key, None)

    def on_set(self, key: str, due: datetime) -> None:
        """Note that a reminder is set."""
        self._set[key] = due
        self._run.figures["reminders"] += 1

    def on_cancelled(self, key: str) -> None:
        """Note that a reminder is cancelled."""
        self._cancelled_s[key] = self._run.simulation.loop.time()

    def on_delivered(self, key: str, due: datetime) -> None:
        """Judge a delivery."""
        run, now_s = self._run, self._run.simulation.loop.time()
        self._delivered[key, due] += 1
        run.figures["occurrences"] += 1
        cancelled_s = self._cancelled_s.get(key)
        if cancelled_s is not None and now_s > cancelled_s + ANSWER_S:
            run.on_violated(f"{key}: an occurrence {now_s - cancelled_s:.3f} s after its cancel")
        if not self.is_calm:
            return
        if self._delivered[key, due] > 1:
            run.on_violated(f"{key}: the occurrence of {due} is repeated without a fault")
        late_s = now_s - (due.timestamp() - self.started_s)
        if due in self._set.values() and not -1.5 <= late_s <= CHIME_LATE_S:
            run.on_violated(f"{key}: an occurrence {late_s:.3f} s late without a fault")

    def check_delivered(self) -> list[str]:
        """Check that each reminder whose outcome is known was delivered in the end."""
        return [
            f"{key}: the occurrence of {due} was never delivered"
            for key, due in self._set.items()
            if not self._delivered[key, due]
        ]


class CallsRun(Run):
    """The notes of this suite."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.acknowledged: dict[str, str] = {}
        self.sent_s: dict[str, float] = {}
        self.starts: list[Start] = []
        self.chimes = Chimes(self)
        self.pages = Pages(self)
        # times and former silos, by account and new silo
        self.arrivals = defaultdict[tuple[str, str], list[tuple[float, str]]](list)
        self.handled: Counter[str] = Counter()
        self.handled_for: list[str] = []  # acknowledged calls of workers
        self.jobs = JobNotes(self)
        self.versions: VersionNotes
        self.is_over = False

    def now_wall_s(self) -> float:
        """Return the true wall time."""
        return self.chimes.started_s + self.simulation.loop.time()

    def check_order(self) -> list[str]:
        """Check that acknowledged operations of a caller started in the order sent, per activation.

        Operations that were under way while an activation of the account ended are exempt: the
        runtime sends such calls on, one by one.
        """
        ends = self._ends()
        highest: dict[tuple[str, int, str], int] = {}
        found = []
        for start in self.starts:
            sent_s = self.sent_s[start.op]
            was_moved = any(sent_s <= at_s <= start.at_s for at_s in [*ends[start.key], *ends[""]])
            if start.op not in self.acknowledged or was_moved:
                continue
            sender = (start.key, start.activation, start.caller)
            if start.number < highest.get(sender, -1):
                found.append(f"{start.key}: {start.op} started after a later one")
            highest[sender] = max(start.number, highest.get(sender, -1))
            self.figures["orders checked"] += 1
        return found

    def _ends(self) -> dict[str, list[float]]:
        """Find when activations of each account ended; "" stands for all accounts of a silo that
        ended."""
        ends: dict[str, list[float]] = defaultdict(list)
        for at_s, event in self.history.events:
            if isinstance(event, Deactivated):
                ends[event.grain.rpartition("/")[2]].append(at_s)
            elif isinstance(event, HostDown | SiloDeclaredDead):
                ends[""].append(at_s)
        return ends

    def check_books(self, books: dict[str, list[str]]) -> list[str]:
        """Check that each acknowledged operation is stored once, and any other at most once."""
        stored = Counter(op for ops in books.values() for op in ops)
        twice = [f"{op} is stored {count} times" for op, count in stored.items() if count > 1]
        lost = [
            f"{op} was acknowledged by {key} and is not stored there"
            for op, key in self.acknowledged.items()
            if op not in books[key]
        ]
        return twice + lost


def calls_run() -> CallsRun:
    """Return the run that is being simulated."""
    run = current_run()
    assert isinstance(run, CallsRun)
    return run


class Caller:
    """A program that calls accounts through a handle until the run is over."""

    def __init__(self, run: CallsRun, host: Host, name: str) -> None:
        self._run = run
        self._rng: Random = make_random(run.simulation.seed, "caller", name, host.incarnation)
        self._host = host
        self._name = f"{name}#{host.incarnation}"
        self._sent = 0

    async def work(self, handle: Callable[[], Any]) -> None:
        """Call until the run is over; `handle` gives a silo or client, or None."""
        await again_and_again(self._run, self._rng, 0.2, handle, self._one_round)

    async def _one_round(self, runtime: Any) -> None:
        key, other, third = self._rng.sample(ACCOUNTS, 3)
        account, roll = runtime.grain(Account, key), self._rng.random()
        if roll < 0.5:
            count = self._rng.choice((1, 1, 2, 5))
            await asyncio.gather(*(self._add(account, key) for _ in range(count)))
        elif roll < 0.7:
            # the previous account sends it, so its order is not promised
            op = self._next_op("/relayed")
            others = [other] if roll < 0.6 else [other, third]
            await self._call("relay", account.relay(op, others), (op, others[-1]))
        elif roll < 0.75:
            at_s = self._run.now_wall_s() + self._rng.uniform(0.0, 6.0)
            at = datetime.fromtimestamp(round(at_s, 3), UTC)
            await self._call("set", account.set_chime(at))
        elif roll < 0.78:
            await self._call("cancel", account.cancel_chime())
        elif roll < 0.84 and isinstance(runtime, Client):
            await self._observe(runtime, [runtime.grain(Account, one) for one in (key, other)])
        elif roll < 0.86:
            await self._call("ops", account.ops())
        elif roll < 0.885:
            op, count = self._next_op("/read"), self._rng.choice((0, 1, 4, 20))
            last = self._rng.choice((count, count, count // 2))
            await self._call("read", self._read(account, op, count, last), limit_s=READ_S)
        elif roll < 0.905:
            await self._call("leave", account.leave())
        elif roll < 0.93:
            await self._ask_clerks(runtime.grain(Clerk, self._rng.choice(CLERKS)))
        elif roll < 0.96:
            op = self._next_op("/job")
            await self._run.jobs.act(self._rng, runtime, op, account.charge)
        else:
            hurried = with_options(account, timeout=1.0)
            await self._call("dawdle", hurried.dawdle(self._rng.uniform(0, 1.5)), limit_s=1.0)

    async def _observe(self, client: Client, accounts: list[Account]) -> None:
        """Let two accounts call an observer, at the same time, while its context is open."""
        watcher, told = Watcher(), list[str]()
        try:
            async with client.observe(watcher) as reference:
                await asyncio.gather(
                    *(self._show(account, reference, told) for account in accounts * 2)
                )
        except MillstreamError as error:  # no gateway was found
            self._run.figures[type(error).__name__] += 1
        watcher.is_over = True
        for problem in check_seen(watcher.seen, told):
            self._run.on_violated(problem)

    async def _ask_clerks(self, clerk: Clerk) -> None:
        """Call a stateless worker several times at once."""
        count = self._rng.choice((1, 2, 6))
        await asyncio.gather(*(self._ask_clerk(clerk) for _ in range(count)))

    async def _ask_clerk(self, clerk: Clerk) -> None:
        op, seconds = self._next_op("/handled"), self._rng.uniform(0.0, 0.3)
        if await self._call("handle", clerk.handle(op, seconds)):
            self._run.handled_for.append(op)

    async def _show(self, account: Account, watcher: Watcher, told: list[str]) -> None:
        op = self._next_op("/shown")
        if await self._call("show", account.show(watcher, op)):
            told.append(op)

    async def _read(self, account: Account, op: str, count: int, last: int) -> None:
        """Read the streamed result of an account, or leave it after some items."""
        async with aclosing(account.pages(op, count)) as pages:
            async for number in pages:
                self._run.pages.on_received(op, number)
                if number == last or self._run.is_over:
                    return
                await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.3, 1.5)))
            self._run.pages.on_complete(op, count)

    def _next_op(self, way: str = "") -> str:
        self._sent += 1
        return f"{self._name}{way}:{self._sent}"

    def _add(self, account: Account, key: str) -> Awaitable[bool]:
        op = self._next_op()
        return self._call("add", account.add(op), (op, key))

    async def _call(
        self,
        what: str,
        call: Awaitable[Any],
        write: tuple[str, str] | None = None,
        limit_s: float = CALL_S,
    ) -> bool:
        """Await a call, and check its time. Returns whether it was answered."""
        run = self._run
        run.figures["calls"] += 1
        if write is not None:
            run.sent_s[write[0]] = run.simulation.loop.time()
        call_id = f"{self._name}/{run.figures['calls']}"
        told = f"{what} {' to '.join(write)}" if write is not None else what
        run.history.record(CallStarted(call_id, self._host.name, told))
        start_s, error = run.simulation.loop.time(), ""
        try:
            await call
            run.figures["answered"] += 1
            if write is not None:
                run.acknowledged[write[0]] = write[1]
        except MillstreamError as raised:
            error = type(raised).__name__
            run.figures[error] += 1
        took_s = run.simulation.loop.time() - start_s
        if took_s > limit_s + LATE_S:
            run.on_violated(f"{call_id} {what} took {took_s:.3f} s, its limit is {limit_s:g}")
        run.history.record(CallEnded(call_id, error))
        return not error


async def calls(simulation: Simulation) -> Counter[str]:
    """Run one seed; return its figures. Raises Violated."""
    run = CallsRun(simulation)
    simulation.host("client")
    plan = make_plan(simulation, ("client", "table", "store"), duration_s=DURATION_S)
    versions = run.versions = VersionNotes(run, plan.silos, not simulation.seed % 3)
    cluster = SimCluster(
        simulation,
        silos=plan.silos,
        grains=[Account, Clerk, *versions.grains],
        lacking=versions.lacking,
        parts=run.jobs.parts,
        options=RUNTIME,
        rebalancing=rebalancing_of(simulation),
    )
    await cluster.start()
    steps = asyncio.create_task(run.jobs.step_clock())
    names = ("client-0", "client-1")
    programs = Programs(simulation, cluster, lambda host, name: Caller(run, host, name), names)
    programs.start()
    rolling = asyncio.create_task(versions.roll(cluster))
    callers = simulation.host("caller of versions")
    simulation.spawn(callers, versions.call(cluster, callers))
    await simulation.nemesis(plan.script, programs.boot)
    run.is_over = programs.is_over = run.jobs.commits.is_over = versions.is_over = True
    await steps
    await rolling
    books = await read_all(run, cluster)
    await asyncio.sleep(CALL_S + LATE_S)
    await observe_at_the_end(run, cluster)
    await finish_jobs(run, cluster)
    await versions.finish(cluster, callers)
    await chime_while_silos_move(run, cluster)
    await use_and_check(run, cluster, read_ops)
    live = [silo.address for silo in cluster.silos()]
    run.figures["crashes"] += plan.crashes
    run.judge(
        check_one_activation(simulation.history),
        check_moves(simulation.history, run.arrivals),
        check_views(simulation.history),
        check_live_after_repair(simulation.history, CALL_S + LATE_S),
        run.check_order(),
        run.check_books(books),
        run.chimes.check_delivered(),
        run.pages.check_closed(live),
        check_pools(simulation.history.events, CLERKS_MAX),
        check_handled(run.handled, run.handled_for),
        run.jobs.check(),
    )
    run.figures["late requests"] += cluster.late_requests
    await cluster.close()
    return run.figures


async def read_all(run: CallsRun, cluster: SimCluster) -> dict[str, list[str]]:
    """Read all accounts through each silo after the repair; all silos must agree in the end."""
    await cluster.until_settled(CALL_S, RECOVERY_S)  # calls that were under way have ended
    answers: list[dict[str, list[str]]] = []
    for name in cluster.names:
        answers.append(
            await run.simulation.call(run.simulation.host(name), read_from(cluster, name))
        )
    for name, answer in zip(cluster.names, answers, strict=True):
        if answer != answers[0]:
            run.on_violated(f"{name} reads other books than {cluster.names[0]}")
    return answers[0]


async def observe_at_the_end(run: CallsRun, cluster: SimCluster) -> None:
    """Let each account call an observer once all faults have ended."""

    async def observe() -> None:
        watcher = Watcher()
        async with (
            cluster.client(run.simulation.host("client")) as client,
            client.observe(watcher) as reference,
        ):
            for key in ACCOUNTS:
                await client.grain(Account, key).show(reference, f"{key}/end")
        watcher.is_over = True

    try:
        async with asyncio.timeout(OBSERVED_S):
            await run.simulation.call(run.simulation.host("client"), observe())
    except (MillstreamError, TimeoutError) as error:
        run.on_violated(f"an account does not reach an observer after the repair: {error}")


async def finish_jobs(run: CallsRun, cluster: SimCluster) -> None:
    """Wait for all jobs once all faults have ended, and run a few more."""
    host = run.simulation.host("client")

    async def finish() -> None:
        async with cluster.client(host) as client:
            charges = [client.grain(Account, key).charge for key in ACCOUNTS]
            await run.jobs.finish(client, charges)

    await run.simulation.call(host, finish())


async def chime_while_silos_move(run: CallsRun, cluster: SimCluster) -> None:
    """Set reminders once all faults have ended, and move grains and reminders meanwhile."""
    name = cluster.names[0]
    run.chimes.is_calm = True
    begun_s = run.now_wall_s()

    async def set_all() -> None:
        silo = cluster.silo(name)
        assert silo is not None
        for number, key in enumerate(ACCOUNTS):
            at = datetime.fromtimestamp(round(begun_s + 1.0 + number / 4, 3), UTC)
            await silo.grain(Account, key).set_chime(at)

    await run.simulation.call(run.simulation.host(name), set_all())
    added = cluster.add_silo()
    await asyncio.sleep(2.0)
    await cluster.remove_silo(name if run.simulation.rng.random() < 0.5 else added)
    await cluster.until_active(RECOVERY_S)
    await asyncio.sleep(CHIME_LATE_S)


async def read_ops(silo: Silo) -> dict[str, list[str]]:
    """Read the operations of all accounts."""
    return {key: await silo.grain(Account, key).ops() for key in ACCOUNTS}


async def read_from(cluster: SimCluster, name: str) -> dict[str, list[str]]:
    """Read the operations of all accounts through one silo."""
    silo = cluster.silo(name)
    assert silo is not None
    for key in CLERKS:
        await silo.grain(Clerk, key).handle(f"{name}/{key}", 0.0)
    return await read_ops(silo)
