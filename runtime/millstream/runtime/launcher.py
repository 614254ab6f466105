"""Silos as child processes of this one.

Owns: `SiloProcess`: starting, stopping and killing one child. The child's side is `silo_main`.
Invariants: a child that cannot start says why; a child ends when its parent's end of its standard
input closes, so nothing is left behind by Ctrl-C or by the parent's death.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import ClusterError

__all__ = ["SiloProcess"]

START_S = 60.0
STOP_S = 20.0


class SiloProcess:
    """One silo in a process of its own.

    Args:
        factory: `package.module:function`; called in the child with `arguments`, returns a Silo.
        arguments: plain JSON values.
        log: the file that takes the child's standard error.
    """

    def __init__(self, factory: str, arguments: Mapping[str, Any], log: Path) -> None:
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

    async def start(self) -> None:
        """Start the child and wait until its silo is active. Raises ClusterError."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "millstream.runtime.silo_main",
                self._factory,
                json.dumps(self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the parent, which stops its children
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            await self.kill()
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ClusterError(f"a silo process did not start: {' '.join(last)} (see {self._log})")
        told = json.loads(line)
        self.gateway, self.address = told["gateway"], told["address"]

    async def stop(self) -> None:
        """Stop gracefully; after 20 s by force. Repeatable."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL: no goodbye."""
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
