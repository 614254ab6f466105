"""One simulated run: a loop, hosts, a network, disks, chance and a history.

Owns: `run`, `Simulation`, `Outcome`, `SimulationFailed`. Invariants: equal seeds and equal programs
give equal runs, in every process and on every Python; a failing run says how to run it again.
The coroutine given to `run` is the driver: it is on no host and no crash reaches it. What it starts
with `spawn` or `call` is on a host; what it awaits directly is not.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millstream.runtime import faults

from .history import History, HostDown, HostUp, Repaired
from .nemesis import Nemesis
from .script import Script, Step
from .world.disk.simulated import SimDisk
from .world.env import Random, SimEnv, make_random
from .world.errors import HostCrashed, SimulationError
from .world.faults import FaultPlan
from .world.host import Host, is_alive
from .world.loop import SimLoop
from .world.network import SimNetwork
from .world.transport import SimTransport

__all__ = ["Outcome", "Simulation", "SimulationFailed", "run"]

T = TypeVar("T")
EVENTS_SHOWN = 20
TIME = re.compile(r"\bt=(\d+\.\d{6})\b")
ERRORS_MAX = 100
EARLY_MAX_S = 0.001  # what uvloop's rounding to milliseconds amounts to


class SimulationFailed(SimulationError):
    """A run failed: `__cause__` says why, and a traceback shows it above this; the message says
    when, what happened around it, and how to run it again.

    Attributes: `seed`; `script`; `report`, message and cause as one text, for who shows no
    traceback.
    """

    seed: int
    script: Script

    def __init__(self, lines: Sequence[str], error: BaseException, seed: int, script: Script):
        self.seed = seed
        self.script = script
        failed, *others = lines
        self.report = "\n".join([f"{failed}: {error}", *others])
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """A run that went well: what the driver returned, and what can be compared between runs."""

    seed: int
    result: T
    virtual_s: float
    iterations: int
    trace_hash: str
    history: History
    script: Script


class Simulation:
    """What a driver works with."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.rng: Random = make_random(seed, "driver")
        self.network = SimNetwork(loop, make_random(seed, "network"))
        self.history = History(loop.time)
        self.faults = FaultPlan(seed)
        self.script: Script = ()
        self.errors: list[BaseException] = []
        self._hosts: dict[str, Host] = {}
        self._envs: dict[Host, SimEnv] = {}
        self._disks: dict[str, SimDisk] = {}
        self._machines: dict[str, str] = {}
        self._spawned: dict[asyncio.Task[Any], None] = {}
        self._callers: dict[Host, dict[asyncio.Future[Any], None]] = {}

    def host(self, name: str) -> Host:
        """The host of this name, alive or crashed; started when it is asked for first."""
        return self._hosts[name] if name in self._hosts else self._boot(name, 1)

    def restart(self, name: str) -> Host:
        """Start a crashed host again: the same name and disk, nothing else."""
        old = self._hosts[name]
        if old.alive:
            raise ValueError(f"{old} is alive: crash it before it restarts")
        return self._boot(name, old.incarnation + 1)

    def _boot(self, name: str, incarnation: int) -> Host:
        host = self._hosts[name] = Host(name, incarnation)
        self.network.attach(host)
        self.history.record(HostUp(name))
        return host

    def is_up(self, name: str) -> bool:
        """Whether the host was started and is alive."""
        return name in self._hosts and self._hosts[name].alive

    def env(self, host: Host, skew_s: float = 0.0) -> SimEnv:
        """The host's wall clock, chance and ids; `skew_s` counts when it is asked for first."""
        if host not in self._envs:
            seed = make_random(self.seed, "env", host.name, host.incarnation).getrandbits(64)
            self._envs[host] = SimEnv(seed, self.loop, host, skew_s)
        return self._envs[host]

    def transport(self, host: Host, connect_timeout_s: float = 5.0) -> SimTransport:
        """A transport for the host's programs."""
        return SimTransport(self.network, host, connect_timeout_s)

    def disk(self, host: Host | str) -> SimDisk:
        """The disk of the host's machine; outlives its crashes."""
        machine = self._machine(host if isinstance(host, str) else host.name)
        if machine not in self._disks:
            self._disks[machine] = SimDisk(make_random(self.seed, "disk", machine))
        return self._disks[machine]

    def _machine(self, name: str) -> str:
        return self._machines.get(name, name)

    def share_disk(self, *names: str) -> None:
        """Let these hosts be processes of one machine, which is called as the first of them.

        A crash of one of them is then that of a process: what it wrote is still there, and only
        `cut_power` makes the disk forget. Say so before any of them uses its disk.
        """
        used = [name for name in names[1:] if self._machine(name) in self._disks]
        if used:
            raise ValueError(f"share_disk: {', '.join(used)} used a disk already: say it before")
        self._machines.update(dict.fromkeys(names, self._machine(names[0])))

    def machine(self, name: str) -> list[str]:
        """The hosts that go down with this one when its machine does; itself among them."""
        shared = [other for other in self._machines if self._machine(other) == self._machine(name)]
        return [other for other in shared if other in self._hosts] or [name]

    def spawn(
        self, host: Host, coro: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine on a host. An exception that nobody takes from the task fails the run.

        Who awaits the task waits for ever if the host crashes; `call` does not.
        """
        if not host.alive:
            coro.close()
            raise HostCrashed(f"{host}: nothing can be spawned on it")
        task = self.loop.create_task(coro, name=name, context=host.context())
        self._spawned[task] = None
        task.add_done_callback(self._on_ended, context=Context())
        return task

    def _on_ended(self, task: asyncio.Task[Any]) -> None:
        host = self.loop.host_of_task(task)
        if not task._log_traceback or not is_alive(host):  # the dead tell no tales
            self._spawned.pop(task, None)

    async def call(self, host: Host, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a host and wait for its result. Raises HostCrashed if it crashes.

        Cancelling the caller cancels the coroutine.
        """
        task = self.spawn(host, coro)
        callers = self._callers.setdefault(host, {})
        ended: asyncio.Future[None] = self.loop.create_future()
        callers[ended] = None
        task.add_done_callback(lambda _: _wake(ended), context=Context())
        try:
            await ended
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            callers.pop(ended, None)
        return await task

    def crash(self, host: Host | str, /, *, is_silent: bool = False) -> None:
        """Kill a host: no `finally` runs, open files forget, links are reset.

        Args:
            is_silent: peers hear nothing, as at a power cut, until a time-out of their own.
        """
        host = self._end(host, is_silent)
        machine = self._machine(host.name)
        if machine in self._disks and self._machines.get(host.name) is None:
            self._disks[machine].crash()

    def kill(self, host: Host | str, /) -> None:
        """Kill a host as `kill -9` does a process: no `finally` runs, links are reset, and the
        machine has what was written, synced or not."""
        self._end(host, is_silent=False)

    def pause(self, host: Host | str, /) -> None:
        """Stop a host as SIGSTOP does a process: nothing of it runs, and it keeps links and locks;
        what comes for it waits."""
        host = self._hosts[host] if isinstance(host, str) else host
        if not host.alive or host.waiting is not None:
            raise ValueError(f"{host} cannot be paused: it has crashed, or is paused")
        self.loop.pause(host)

    def resume(self, host: Host | str, /) -> None:
        """Let a paused host go on, as SIGCONT does; again, and after a crash, is harmless."""
        self.loop.resume(self._hosts[host] if isinstance(host, str) else host)

    def cut_power(self, host: Host | str, /) -> None:
        """Crash every host of a machine silently, and let its disk forget."""
        machine = self._machine(host if isinstance(host, str) else host.name)
        for name, other in list(self._hosts.items()):
            if other.alive and self._machine(name) == machine:
                self._end(other, is_silent=True)
        self.disk(machine).crash()

    def _end(self, host: Host | str, is_silent: bool) -> Host:
        host = self._hosts[host] if isinstance(host, str) else host
        if not host.alive:
            raise ValueError(f"{host} has crashed already")
        self.history.record(HostDown(host.name))
        self.network.crash(host, is_silent)
        self.loop.crash(host)
        for caller in self._callers.pop(host, {}):
            if not caller.done():
                caller.set_exception(HostCrashed(f"{host}: the call on it never ends"))
        return host

    def cut_power_after(self, name: str, changes: int) -> None:
        """Cut the power at the next change but `changes` of a host's disk; see `SimDisk`."""
        self.disk(name).cut_power_after(changes, lambda: self.cut_power(name))

    def keep_power(self, name: str) -> None:
        """Take back a `cut_power_after` that has not happened."""
        self.disk(name).keep_power()

    def repair(self) -> None:
        """Repair the whole network, and note it: from here work must end in time."""
        self.network.repair()
        self.note_repaired()

    def note_repaired(self) -> None:
        """Note in the history that the network is whole."""
        self.history.record(Repaired())

    def nemesis(
        self,
        script: Iterable[Step],
        restart: Callable[[str], object],
        verbs: Mapping[str, Callable[..., object]] | None = None,
    ) -> asyncio.Task[None]:
        """Play a script beside the driver; await the task to wait for its end.

        Args:
            restart: gets the name of a host that is down; calls `restart(name)` of this
                simulation and spawns the host's program.
            verbs: further verbs that the script may have, such as those of a store; each function
                gets the words of its step.
        """
        self.script = tuple(script)
        nemesis = Nemesis(self, self.script, restart, verbs)
        task = self.loop.create_task(nemesis.run(), context=Context())
        self._spawned[task] = None
        task.add_done_callback(self._on_ended, context=Context())
        return task

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Exception handler of the loop: what nobody catches fails the run."""
        if not is_alive(self.loop.host_of_context(context)):
            return
        error = context.get("exception") or SimulationError(context.get("message", "unknown"))
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)

    def uncaught(self) -> list[BaseException]:
        """Errors that were reported to the loop, or that ended a spawned task and nobody took."""
        for task in [task for task in self._spawned if task.done()]:
            del self._spawned[task]
            error = task.exception() if task._log_traceback else None
            if error is not None:
                self.errors.append(error)
        return list(self.errors)

    def check(self) -> None:
        """Every part of the simulation is consistent."""
        self.loop.check()
        self.network.check()
        self.history.check()
        for disk in self._disks.values():
            disk.check()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def run(
    main: Callable[[Simulation], Coroutine[Any, Any, T]],
    seed: int,
    *,
    max_virtual_s: float = 3600.0,
    replay: str = "",
) -> Outcome[T]:
    """Run a driver to its end in virtual time.

    Args:
        main: the driver; what it raises fails the run.
        seed: decides everything that is chance. Timers of even seeds fire up to 1 ms early.
        max_virtual_s: waiting beyond it fails the run.
        replay: the command that runs this seed again, for the failure's message.
    Raises: SimulationFailed: the driver, a callback or a spawned task raised, or nothing could go
        on (Deadlock, Livelock, VirtualTimeExceeded).
    Cost: no real waiting; about 4 µs per timer and 7 µs per delivery, and the program's own work.
    """
    __tracebackhide__ = True  # pytest shows the driver's lines, not these
    early_max_s = 0.0 if seed % 2 else EARLY_MAX_S
    loop = SimLoop(seed, max_virtual_s=max_virtual_s, early_max_s=early_max_s)
    simulation = Simulation(seed, loop)
    loop.set_exception_handler(simulation.report)
    with _surroundings(loop, simulation.faults):
        try:
            result = _drive(simulation, main)
            return Outcome(
                seed=seed,
                result=result,
                virtual_s=loop.time(),
                iterations=loop.iterations,
                trace_hash=simulation.network.trace_hash,
                history=simulation.history,
                script=simulation.script,
            )
        except (Exception, asyncio.CancelledError) as error:
            lines = _lines(simulation, error, replay)
            raise SimulationFailed(lines, error, seed, simulation.script) from error
        finally:
            simulation.history.close()
            loop.shut_down()


def _drive(simulation: Simulation, main: Callable[[Simulation], Coroutine[Any, Any, T]]) -> T:
    __tracebackhide__ = True
    task = simulation.loop.create_task(main(simulation), name="driver", context=Context())
    result: T = simulation.loop.run_until_complete(task)
    simulation.check()
    uncaught = simulation.uncaught()
    if uncaught:
        raise uncaught[0]
    return result


@contextmanager
def _surroundings(loop: SimLoop, plan: FaultPlan) -> Iterator[None]:
    """Faults of this loop behind `maybe`; the collector off, as it runs when the loop says so."""

    def hook(name: str) -> bool:
        return asyncio._get_running_loop() is loop and plan(name)

    was_collecting = gc.isenabled()
    previous = faults.install(hook)
    gc.disable()
    try:
        yield
    finally:
        faults.install(previous)
        if was_collecting:
            gc.enable()


def _lines(simulation: Simulation, error: BaseException, replay: str) -> list[str]:
    """What to say of a failure, but for the text of its error."""
    seed, script = simulation.seed, simulation.script
    parts = [
        f"seed {seed} failed at t={simulation.loop.time():.6f} s: {type(error).__name__}",
        "nemesis script:" + "".join(f"\n  {step}" for step in script) if script else "no nemesis",
    ]
    uncaught = [other for other in simulation.uncaught() if other is not error]
    if uncaught:
        lines = (f"\n  {type(other).__name__}: {other}" for other in uncaught)
        parts.append("also uncaught:" + "".join(lines))
    if simulation.history.events:
        parts += _events(simulation.history, error)
    parts.append(f"replay: {replay or f'run(main, seed={seed})'}")
    return parts


def _events(history: History, error: BaseException) -> list[str]:
    """Those around the first time that the error names, as violations do; else the last ones."""
    found = TIME.search(str(error))
    if found is None:
        return ["last events:", history.text(EVENTS_SHOWN)]
    around_s = float(found[1])
    return [f"events around t={around_s:.6f} s:", history.text(EVENTS_SHOWN, around_s=around_s)]
