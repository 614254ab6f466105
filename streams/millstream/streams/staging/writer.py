"""The grain that coordinates what one writer stages: one for each, its key is the writer's name.

Owns: `StagedWriter`: one writer's desk, and how long it is kept. Not: what is decided
(`coordinator`), the desk itself. Invariants: while something of the writer is open, dropped or not
delivered, the activation lasts and looks after it: times count from when the desk was opened. Two
activations may be there for a moment: their rows are written by compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Protocol

from millstream.runtime import Grain, NotInCluster, StorageError, grain
from millstream.runtime.extending import Backoff, isolated, services_of

from .batch import Manifest
from .coordinator import (
    Abandoned,
    Begun,
    Done,
    Full,
    Gone,
    Leased,
    Refused,
    Waiting,
)
from .desk import WriterDesk
from .rows import RefusedMessage
from .status import WriterStatus, status_of

__all__ = ["StagedWriter", "writer_grain_of", "writer_name"]

log = logging.getLogger("millstream.staging")

LOOK_S = 30.0
"""How often something open is looked after, at least."""
LOOK_AGAIN_S = 1.0
RETRY = Backoff(0.5, 2.0, 30.0)


class Desks(Protocol):
    """Staged writes of a provider in this silo."""

    def desk(self, writer: str, start: Callable[[Any], asyncio.Task[None]], /) -> WriterDesk: ...


class StagingProvider(Protocol):
    """The provider, as a part of this silo."""

    @property
    def staging(self) -> Desks: ...


class StagedWriter(Grain):
    """One writer; each provider has a class of its own."""

    provider: ClassVar[str]

    async def on_activate(self) -> None:
        """The desk reads its row when somebody asks."""
        carrier: StagingProvider = services_of(self).part(self.provider)
        self._desk = carrier.staging.desk(self.key, self.context.create_task)
        self._house: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @isolated
    async def begin(
        self, attempt: str, batch: int, part: int, once: bool
    ) -> Begun | Done | Full | Gone:
        """Open an attempt. Raises StorageError."""
        try:
            return await self._desk.begin(attempt, batch, part, once=once)
        finally:
            self._look_after()

    @isolated
    async def lease(self, attempt: str, size_bytes: int) -> Leased | Full | Gone:
        """Let a silo store so many bytes more. Raises StorageError."""
        return await self._desk.lease(attempt, size_bytes)

    @isolated
    async def commit(
        self, batch: int, manifests: list[Manifest], wait_s: float
    ) -> Done | Gone | Waiting | Refused:
        """Decide a batch, and wait so long until it is delivered. Raises ValueError,
        StorageError."""
        try:
            return await self._desk.commit(batch, manifests, wait_s)
        except NotInCluster:  # this activation ends, and starts no delivery
            return Waiting(-1)
        finally:
            self._look_after()
            self._news.set()  # perhaps there is room to be made

    @isolated
    async def abandon(self, batch: int, wait_s: float) -> Abandoned | Waiting | Refused | None:
        """Give up what queues refuse of a decided batch; None: it does not wait. Raises
        StorageError."""
        try:
            return await self._desk.abandon(batch, wait_s)
        except NotInCluster:  # this activation ends, and starts no delivery
            return Waiting(-1)
        finally:
            self._look_after()

    @isolated
    async def status(self) -> WriterStatus:
        """What is staged and decided of the writer. Raises StorageError."""
        try:
            return status_of(self.key, *await self._desk.state())
        finally:
            self._look_after()  # what waits is tried, so that the next answer knows why

    @isolated
    async def list_refused(self, batch: int, part: int, chunk: int) -> list[RefusedMessage]:
        """What was given up in the next chunk behind this one. Raises StorageError."""
        return await self._desk.list_refused(batch, part, chunk)

    @isolated
    async def abort(self, batch: int) -> None:
        """Drop what is open of a batch. Raises StorageError."""
        try:
            await self._desk.abort(batch)
        finally:
            self._look_after()

    async def wake(self) -> None:
        """Look after what is open; asked where nobody may do so."""
        self._look_after()

    def _look_after(self) -> None:
        if self._house is None or self._house.done():
            with suppress(NotInCluster):  # this activation ends: the next one does it
                self._house = self.context.create_task(self._keep_house())

    async def _keep_house(self) -> None:
        """Until nothing is left to be done."""
        failures = 0
        while True:
            self.context.keep_alive(2 * LOOK_S)
            try:
                due_s = await self._desk.keep_house()
                failures = 0
            except StorageError as error:
                failures += 1
                log.info("%s: what it has staged is not looked after yet: %s", self.key, error)
                due_s = RETRY.whole_s(failures)
            if due_s is None:
                return
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(LOOK_AGAIN_S, min(due_s, LOOK_S))):
                    await self._news.wait()


def writer_name(provider: str) -> str:
    """The name of the grain type of a provider's writers."""
    return f"millstream.StagedWriter.{provider}"


@cache  # one class for each provider, in every silo of the process
def writer_grain_of(provider: str) -> type[StagedWriter]:
    """The writers of a provider, to be hosted."""
    named = {"__module__": __name__, "__doc__": StagedWriter.__doc__, "provider": provider}
    options = grain(name=writer_name(provider), reentrant=True)
    return options(type("StagedWriter", (StagedWriter,), named))
