"""One simulated run: a loop, hosts, a network, disks, chance and a history.

This module owns `run`, `Simulation`, `Outcome` and `SimulationFailed`. Equal seeds and equal
programs give equal runs, in every process and on every Python. A failing run says how to run it
again. The coroutine given to `run` is the driver. It is on no host, so no crash reaches it.
Coroutines that it starts by `spawn` or `call` are on a host; coroutines that it awaits directly are
not.
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
EARLY_MAX_S = 0.001  # as much as uvloop's rounding to milliseconds


class SimulationFailed(SimulationError):
    """A simulated run failed. `run` raises it.

    `__cause__` is the original error, and a traceback shows it first. The message says when the run
    failed, which events happened around that time, and how to run it again.

    Attributes:
        seed: The seed of the run.
        script: The script of faults that the run played; empty if it had none.
        report: The message and the original error as one text, for output without a traceback.
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
    """The outcome of a run without failure. `run` returns it.

    Attributes:
        seed: The seed of the run.
        result: The value that the driver returned.
        virtual_s: The virtual duration of the run in seconds.
        iterations: The iterations of the event loop.
        trace_hash: A hash of all deliveries on the network. It is equal for equal runs.
        history: The recorded events.
        script: The script of faults that the run played; empty if it had none.
    """

    seed: int
    result: T
    virtual_s: float
    iterations: int
    trace_hash: str
    history: History
    script: Script


class Simulation:
    """The simulated world that a driver works with: hosts, their network and disks, and faults.

    `run` makes it. Hosts are named by text. A host is a simulated process on a machine of its own,
    unless `share_disk` puts several on one machine.

    Attributes:
        seed: The seed of the run.
        loop: The event loop, with its virtual clock.
        rng: Random numbers of the driver, from the seed.
        network: The network between the hosts, with its faults.
        history: The events of the run.
        faults: The plan of the points `millstream.runtime.faults.maybe(...)`.
        script: The script of faults that is played; empty if there is none.
        errors: The errors that nobody caught.
    """

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
        """Return the host of a name, alive or crashed. The first call starts it.

        Args:
            name: The name of the host.
        """
        return self._hosts[name] if name in self._hosts else self._boot(name, 1)

    def restart(self, name: str) -> Host:
        """Start a crashed host again. It has the same name and disk, and nothing else of the old
        one.

        Args:
            name: The name of the host.

        Raises:
            ValueError: The host is alive.
        """
        old = self._hosts[name]
        if old.alive:
            raise ValueError(f"{old} is alive: crash the host before its restart")
        return self._boot(name, old.incarnation + 1)

    def _boot(self, name: str, incarnation: int) -> Host:
        host = self._hosts[name] = Host(name, incarnation)
        self.network.attach(host)
        self.history.record(HostUp(name))
        return host

    def is_up(self, name: str) -> bool:
        """Return whether the host was started and is alive.

        Args:
            name: The name of the host.
        """
        return name in self._hosts and self._hosts[name].alive

    def env(self, host: Host, skew_s: float = 0.0) -> SimEnv:
        """Return the host's wall clock, random numbers and ids.

        Args:
            host: The host.
            skew_s: The difference of its wall clock from the true time in seconds. Only the first
                call for a host sets it.
        """
        if host not in self._envs:
            seed = make_random(self.seed, "env", host.name, host.incarnation).getrandbits(64)
            self._envs[host] = SimEnv(seed, self.loop, host, skew_s)
        return self._envs[host]

    def transport(self, host: Host, connect_timeout_s: float = 5.0) -> SimTransport:
        """Return a transport for the host's programs.

        Args:
            host: The host.
            connect_timeout_s: The longest time for a connection, in seconds.
        """
        return SimTransport(self.network, host, connect_timeout_s)

    def disk(self, host: Host | str) -> SimDisk:
        """Return the disk of the host's machine. It outlives the crashes of the host.

        Args:
            host: The host or its name.
        """
        machine = self._machine(host if isinstance(host, str) else host.name)
        if machine not in self._disks:
            self._disks[machine] = SimDisk(make_random(self.seed, "disk", machine))
        return self._disks[machine]

    def _machine(self, name: str) -> str:
        return self._machines.get(name, name)

    def share_disk(self, *names: str) -> None:
        """Make several hosts processes of one machine, with one disk.

        A crash of one of these hosts is then the crash of a process: the bytes that it wrote stay
        on the disk. Only `cut_power` makes the disk lose unsynced bytes. Call it before any of the
        hosts uses its disk.

        Args:
            names: The hosts. The machine has the name of the first one.

        Raises:
            ValueError: One of the hosts used a disk already.
        """
        used = [name for name in names[1:] if self._machine(name) in self._disks]
        if used:
            raise ValueError(f"share_disk: {', '.join(used)} used a disk already: call it earlier")
        self._machines.update(dict.fromkeys(names, self._machine(names[0])))

    def machine(self, name: str) -> list[str]:
        """Return the names of the hosts on the machine of a host, this one included.

        Args:
            name: The name of the host.
        """
        shared = [other for other in self._machines if self._machine(other) == self._machine(name)]
        return [other for other in shared if other in self._hosts] or [name]

    def spawn(
        self, host: Host, coro: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine on a host.

        An exception that nobody takes from the task fails the run. If the host crashes, a caller
        that awaits the task waits forever; `call` does not.

        Args:
            host: The host.
            coro: The coroutine.
            name: The name of the task in messages.

        Returns:
            The task.

        Raises:
            HostCrashed: The host has crashed.
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
        if not task._log_traceback or not is_alive(host):  # errors on crashed hosts do not count
            self._spawned.pop(task, None)

    async def call(self, host: Host, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a host, and return its result.

        Cancelling the caller cancels the coroutine.

        Args:
            host: The host.
            coro: The coroutine.

        Raises:
            HostCrashed: The host has crashed, or crashes before the coroutine ends.
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
        """Crash a host. No `finally` runs, its disk loses unsynced bytes, and its links are reset.

        On a machine that several hosts share, the disk loses nothing.

        Args:
            host: The host or its name.
            is_silent: True: the peers notice nothing, as at a power cut, until their own time-out.

        Raises:
            ValueError: The host has crashed already.
        """
        host = self._end(host, is_silent)
        machine = self._machine(host.name)
        if machine in self._disks and self._machines.get(host.name) is None:
            self._disks[machine].crash()

    def kill(self, host: Host | str, /) -> None:
        """Kill a host, as `kill -9` does with a process. No `finally` runs, and its links are
        reset.

        The disk keeps all written bytes, synced or not.

        Args:
            host: The host or its name.

        Raises:
            ValueError: The host has crashed already.
        """
        self._end(host, is_silent=False)

    def pause(self, host: Host | str, /) -> None:
        """Stop a host, as SIGSTOP does with a process.

        Nothing runs on it, and it keeps its links and locks. Callbacks for it wait.

        Args:
            host: The host or its name.

        Raises:
            ValueError: The host has crashed, or is paused.
        """
        host = self._hosts[host] if isinstance(host, str) else host
        if not host.alive or host.waiting is not None:
            raise ValueError(f"{host} cannot be paused: it has crashed, or is paused")
        self.loop.pause(host)

    def resume(self, host: Host | str, /) -> None:
        """Let a paused host continue, as SIGCONT does.

        For a host that is not paused or has crashed it does nothing.

        Args:
            host: The host or its name.
        """
        self.loop.resume(self._hosts[host] if isinstance(host, str) else host)

    def cut_power(self, host: Host | str, /) -> None:
        """Crash every host of a machine silently. Its disk loses unsynced bytes.

        Args:
            host: A host of the machine, or its name.
        """
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
        """Cut the power of a host's machine after some more changes of its disk.

        Args:
            name: The name of the host.
            changes: The changes that still happen. The next one fails, and the machine crashes.
        """
        self.disk(name).cut_power_after(changes, lambda: self.cut_power(name))

    def keep_power(self, name: str) -> None:
        """Cancel a `cut_power_after` that has not happened yet.

        Args:
            name: The name of the host.
        """
        self.disk(name).keep_power()

    def repair(self) -> None:
        """Repair the whole network, and record it in the history.

        `check_live_after_repair` expects that all work ends in time from here.
        """
        self.network.repair()
        self.note_repaired()

    def note_repaired(self) -> None:
        """Record in the history that the network is repaired."""
        self.history.record(Repaired())

    def nemesis(
        self,
        script: Iterable[Step],
        restart: Callable[[str], object],
        verbs: Mapping[str, Callable[..., object]] | None = None,
    ) -> asyncio.Task[None]:
        """Play a script of faults while the driver runs.

        Args:
            script: The steps, such as those of `make_script`.
            restart: Called with the name of a host that is down. It must restart the host and its
                program, as `SimCluster.boot` does.
            verbs: Verbs of your own, with the function of each. The function gets the words of its
                step.

        Returns:
            A task that ends with the script. Await it.
        """
        self.script = tuple(script)
        nemesis = Nemesis(self, self.script, restart, verbs)
        task = self.loop.create_task(nemesis.run(), context=Context())
        self._spawned[task] = None
        task.add_done_callback(self._on_ended, context=Context())
        return task

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take an error that nobody caught, as the exception handler of the loop. It fails
        the run.
        """
        if not is_alive(self.loop.host_of_context(context)):
            return
        error = context.get("exception") or SimulationError(context.get("message", "unknown"))
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)

    def uncaught(self) -> list[BaseException]:
        """Return the errors that nobody caught: those of the loop, and those of spawned tasks."""
        for task in [task for task in self._spawned if task.done()]:
            del self._spawned[task]
            error = task.exception() if task._log_traceback else None
            if error is not None:
                self.errors.append(error)
        return list(self.errors)

    def check(self) -> None:
        """Assert that every part of the simulation is consistent."""
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

    ```python
    async def driver(simulation: Simulation) -> None:
        async with SimCluster(simulation, silos=3, grains=[Airport]) as cluster:
            ...

    run(driver, seed=1)
    ```

    Nothing waits in real time. A run costs about 4 µs for each timer and 7 µs for each delivery,
    in addition to the program's own work.

    Args:
        main: The driver. An exception of it fails the run.
        seed: Decides everything random. With an even seed, timers fire up to 1 ms early.
        max_virtual_s: A program that waits beyond this virtual time fails the run, in seconds.
        replay: The command that runs this seed again, for the message of a failure.

    Returns:
        The outcome, with the result of the driver.

    Raises:
        SimulationFailed: The driver, a callback or a spawned task raised an error, or nothing could
            continue (Deadlock, Livelock, VirtualTimeExceeded).
    """
    __tracebackhide__ = True  # pytest then shows the driver's lines only
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
    """Install the faults of this loop behind `maybe`, and switch off the collector, which the loop
    runs.
    """

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
    """Return the message of a failure, without the text of its error."""
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
    """Return the events around the first time that the error names, or else the last events."""
    found = TIME.search(str(error))
    if found is None:
        return ["last events:", history.text(EVENTS_SHOWN)]
    around_s = float(found[1])
    return [f"events around t={around_s:.6f} s:", history.text(EVENTS_SHOWN, around_s=around_s)]
