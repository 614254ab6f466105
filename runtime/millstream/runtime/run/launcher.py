"""Silos as child processes of this one.

Owns: `SiloProcess`, one child, and `SiloProcesses`, several. The child's side is `silo_main`.
Invariants: a child that cannot start says why; a start that is given up leaves no child behind; a
child ends when its parent's end of a pipe of their own closes, so nothing is left by Ctrl-C or by
the parent's death; what standard input is to either does not matter.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millstream.runtime.errors import ClusterError

from .import_check import refuse_while_importing

if TYPE_CHECKING:
    from pathlib import Path  # 3 ms

__all__ = ["SiloProcess", "SiloProcesses"]

START_S = 60.0
STOP_S = 20.0

log = logging.getLogger("millstream.launcher")


class SiloProcess:
    """One silo in a process of its own.

    Args:
        factory: `package.module:function`; called in the child with `arguments`, returns a Silo.
        arguments: plain JSON values.
        log: the file that takes what the child writes.
    """

    def __init__(self, factory: str, arguments: Mapping[str, Any], log: Path) -> None:
        self._pipe: int | None = None  # its end tells the child to stop
        self._factory = factory
        self._arguments = dict(arguments)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.gateway = ""
        self.address = ""

    @property
    def pid(self) -> int:
        """Process id; 0 before start."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """It was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the child and wait until its silo is active: 60 s at most. Raises ClusterError."""
        try:
            self._process = await self._spawn()
            told = json.loads(await self._first_line())
        except BaseException:
            await self.kill()
            raise
        self.gateway, self.address = told["gateway"], told["address"]

    async def _spawn(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            raise ClusterError(f"silo process {self.pid} was started already; make another one")
        refuse_while_importing("a silo process")
        childs_end, self._pipe = os.pipe()
        try:
            with self._log.open("ab") as file:
                return await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "millstream.runtime.run.silo_main",
                    self._factory,
                    json.dumps(self._arguments),
                    str(childs_end),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=file,
                    pass_fds=[childs_end],
                    start_new_session=True,  # Ctrl-C reaches the parent, which stops its children
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
        finally:
            os.close(childs_end)

    def _let_go(self) -> None:
        """Close the pipe: the child stops."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe)

    async def _first_line(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ClusterError(
                f"a silo process is not active after {START_S:g} s (see {self._log})"
            ) from None
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ClusterError(f"a silo process did not start: {' '.join(last)} (see {self._log})")
        return line

    async def wait(self) -> int:
        """Until the child has ended; returns its exit code (negative: the signal)."""
        assert self._process is not None, "wait() before start()"
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop gracefully; after 20 s by force. Repeatable."""
        self._let_go()
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("silo process %d did not stop in %g s: killed", self.pid, STOP_S)
        finally:
            await self.kill()  # also when the one who waits is cancelled

    async def kill(self) -> None:
        """SIGKILL: no goodbye."""
        process = self._process
        try:
            if process is not None and process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        finally:
            self._let_go()  # not before: a child that sees the pipe close says goodbye

    def __del__(self) -> None:
        self._let_go()


class SiloProcesses:
    """Several children: `async with SiloProcesses([...]) as processes`; they stop together."""

    def __init__(self, processes: list[SiloProcess]) -> None:
        self._processes = list(processes)

    def __iter__(self) -> Iterator[SiloProcess]:
        return iter(self._processes)

    def __getitem__(self, index: int) -> SiloProcess:
        return self._processes[index]

    async def start(self) -> None:
        """Start all at once; if one fails, none is left. Raises ClusterError."""
        starts = [asyncio.ensure_future(process.start()) for process in self._processes]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.kill()
            raise

    async def replace(self, index: int, process: SiloProcess) -> None:
        """Start another one in the place of one, which is killed if it still runs.

        Raises ClusterError: it did not start; its place is empty until the next one.
        """
        await self._processes[index].kill()
        self._processes[index] = process
        await process.start()

    async def stop(self) -> None:
        """Stop all gracefully, at once; after 20 s by force."""
        await self._each(SiloProcess.stop)

    async def kill(self) -> None:
        """SIGKILL to all."""
        await self._each(SiloProcess.kill)

    async def _each(self, step: Any) -> None:
        outcomes = await asyncio.gather(*map(step, self._processes), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def __aenter__(self) -> SiloProcesses:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
