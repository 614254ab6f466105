"""Python frames and modules of one call of each kind: `python -m benchmarks path`.

This module owns the programs and the count (`sys.setprofile`; a resumed coroutine counts again). It
runs alone in any revision's tree, so it uses only public names. Only frames of Millstream's own
code count. A module counts if most calls enter it. Each side of a remote call is counted in its own
process.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Contract, Grain, Silo, connect, grain
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

__all__ = ["figures", "main"]

COUNT = 400
ITEMS = StreamNamespace("path-items", int)
Figures = dict[str, float]


@grain(name="PathTarget")
class Target(Grain):
    """The target of calls, and the handler of events."""

    seen = 0

    async def echo(self, value: int) -> int:
        return value

    async def slow(self, value: int) -> int:
        await asyncio.sleep(0)
        return value

    @subscribe(ITEMS)
    async def on_item(self, event: Event[int]) -> None:
        Target.seen += 1


@grain(name="PathTarget")
class TargetContract(Contract):
    """The contract of a remote caller."""

    async def echo(self, value: int) -> int:
        raise NotImplementedError


class Frames:
    """`with Frames() as frames: ...` counts frames by module."""

    def __init__(self) -> None:
        self.by_module: Counter[str] = Counter()

    def __enter__(self) -> Frames:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith("<millstream"):
                self.by_module["stub"] += 1
            elif "/millstream/" in name:
                module = name.rpartition("/millstream/")[2].removesuffix(".py")
                self.by_module[module.replace("/", ".")] += 1

    def most(self, count: int) -> dict[str, float]:
        """Return the frames of one of `count` calls, by module, without unrelated ones."""
        return {name: n / count for name, n in self.by_module.items() if n * 2 > count}


def _row(path: str, *sides: dict[str, float]) -> Figures:
    modules: set[str] = set().union(*sides)
    frames = sum(sum(side.values()) for side in sides)
    return {f"{path}_frames": frames, f"{path}_modules": float(len(modules))}


async def _local() -> Figures:
    async with Silo(grains=[Target], streams=_streams()) as silo:
        target = silo.grain(Target, "a")
        found = _row("direct", await _profiled(lambda: target.echo(1)))
        found |= _row("suspending", await _profiled(lambda: target.slow(1)))
        found |= _row("contended", await _profiled(lambda: _pair(target), 2))
        stream = silo.stream(ITEMS, "a")

        async def event() -> None:
            wanted = Target.seen + 1
            await stream.publish(1)
            while Target.seen < wanted:
                await asyncio.sleep(0)  # the handler runs in another task

        return found | _row("event", await _profiled(event))


async def _pair(target: Target) -> None:
    await asyncio.gather(target.slow(1), target.slow(2))


def _streams() -> dict[str, Any]:
    balancer = DeploymentBalancer(rebalance_delay_s=0.05)
    return {"default": PersistentStreams(MemoryQueues(), balancer=balancer)}


async def _profiled(call: Callable[[], Awaitable[Any]], calls: int = 1) -> dict[str, float]:
    for _ in range(50):
        await call()
    await asyncio.sleep(0.05)
    with Frames() as frames:
        for _ in range(COUNT):
            await call()
    return frames.most(COUNT * calls)


async def _caller() -> dict[str, float]:
    """Count in the calling process; another process has the grain."""
    async with _child("silo") as child:
        assert child.stdout is not None
        gateway = (await child.stdout.readline()).decode().strip()
        async with connect(gateway) as client:
            target = client.grain(TargetContract, "a")
            return await _profiled(lambda: target.echo(1))


async def _callee() -> dict[str, float]:
    """Count in the process of the grain; another process calls."""
    async with Silo(grains=[Target], streams=_streams()) as silo:
        async with _child("client", silo.gateway) as child:
            assert child.stdout is not None and child.stdin is not None
            assert await child.stdout.readline() == b"ready\n"
            with Frames() as frames:
                child.stdin.write(b"go\n")
                assert await child.stdout.readline() == b"done\n"
    return frames.most(COUNT)


@asynccontextmanager
async def _child(*role: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.path", *role]
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert child.stdin is not None
    try:
        yield child
    finally:
        child.stdin.close()
        await child.wait()


async def _line() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def silo() -> None:
    """Run a silo with the grain until standard input closes."""
    async with Silo(grains=[Target], streams=_streams()) as here:
        print(here.gateway, flush=True)
        await _line()


async def client(gateway: str) -> None:
    """Call on command."""
    async with connect(gateway) as here:
        target = here.grain(TargetContract, "a")
        for _ in range(50):
            await target.echo(1)
        print("ready", flush=True)
        await _line()
        for _ in range(COUNT):
            await target.echo(1)
        print("done", flush=True)
        await _line()


async def figures(work: Path) -> Figures:
    """Return the figures of every path."""
    found, caller, callee = await _local(), await _caller(), await _callee()
    found |= _row("remote_caller", caller) | _row("remote_callee", callee)
    return found | _row("remote", caller, callee)


def main() -> None:
    """Run a role in a child process."""
    import uvloop

    roles: dict[str, Callable[..., Any]] = {"silo": silo, "client": client}
    role, *arguments = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(roles[role](*arguments))


if __name__ == "__main__":
    main()
