"""Silos as child processes of this process.

This module owns `SiloProcess`, one child, and `SiloProcesses`, several. The module `silo_main` is
the program of the child. A child that cannot start gives the reason. A start that is cancelled
leaves no child. A child ends when the pipe from its parent closes, so no child outlives its parent,
even after Ctrl-C or a crash of the parent. Standard input of parent and child has no effect.
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
    """One silo in a child process.

    The child calls a function that returns a silo, and runs the silo by `serve`. It ends when its
    parent ends, because a pipe to the parent closes then. Standard input has no effect on it. The
    child imports the module of the function. A module that starts silos when it is imported is
    refused with ConfigError, so put the program's own actions under `if __name__ == "__main__":`.

    Args:
        factory: `package.module:function`. The child calls it with `arguments`, and it returns a
            Silo.
        arguments: The keyword arguments of the function, as plain JSON values.
        log: The file that gets the output of the child.

    Attributes:
        gateway: The address `host:port` of the silo, for `connect`. Empty before the start.
        address: The address of the silo, `host:port@generation`. Empty before the start.
    """

    def __init__(self, factory: str, arguments: Mapping[str, Any], log: Path) -> None:
        self._pipe: int | None = None  # closing it stops the child
        self._factory = factory
        self._arguments = dict(arguments)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.gateway = ""
        self.address = ""

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the child, and wait until its silo is active.

        Raises:
            ClusterError: The child did not start, or was not active after 60 s. No child is left.
                Also if the object was started before.
        """
        try:
            self._process = await self._spawn()
            told = json.loads(await self._first_line())
        except BaseException:
            await self.kill()
            raise
        self.gateway, self.address = told["gateway"], told["address"]

    async def _spawn(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            raise ClusterError(
                f"silo process {self.pid} was already started: make another SiloProcess"
            )
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
        """Close the pipe, which stops the child."""
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
                f"a silo process was not active within {START_S:g} s (see {self._log})"
            ) from None
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ClusterError(f"a silo process did not start: {' '.join(last)} (see {self._log})")
        return line

    async def wait(self) -> int:
        """Wait until the child has ended.

        Returns:
            Its exit code. A negative number is the signal that ended it.
        """
        assert self._process is not None, "wait() before start()"
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the child gracefully, and kill it if it runs after 20 s. Repeated calls do
        nothing.
        """
        self._let_go()
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("silo process %d did not stop within %g s: killed", self.pid, STOP_S)
        finally:
            await self.kill()  # also if this call is cancelled

    async def kill(self) -> None:
        """Kill the child by SIGKILL, without a goodbye to the cluster."""
        process = self._process
        try:
            if process is not None and process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        finally:
            self._let_go()  # last, since a child says goodbye when the pipe closes

    def __del__(self) -> None:
        self._let_go()


class SiloProcesses:
    """Several silo processes that start and stop together.

    ```python
    silos = [SiloProcess("shop.silos:make_silo", {"port": port}, log) for port, log in given]
    async with SiloProcesses(silos) as processes:
        client = connect(*[process.gateway for process in processes])
    ```

    Iterating gives the processes, and `processes[index]` gives one.

    Args:
        processes: The processes, not started.
    """

    def __init__(self, processes: list[SiloProcess]) -> None:
        self._processes = list(processes)

    def __iter__(self) -> Iterator[SiloProcess]:
        return iter(self._processes)

    def __getitem__(self, index: int) -> SiloProcess:
        return self._processes[index]

    async def start(self) -> None:
        """Start all processes at the same time.

        Raises:
            ClusterError: One of them did not start. No child is left.
        """
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
        """Start another process in place of one, which is killed if it still runs.

        Args:
            index: The index of the process to replace.
            process: The new process, not started.

        Raises:
            ClusterError: It did not start. No process runs in its place.
        """
        await self._processes[index].kill()
        self._processes[index] = process
        await process.start()

    async def stop(self) -> None:
        """Stop all processes gracefully, at the same time, and kill those that run after 20 s."""
        await self._each(SiloProcess.stop)

    async def kill(self) -> None:
        """Kill all processes by SIGKILL."""
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
