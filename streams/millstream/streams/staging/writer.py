"""The grain that coordinates one writer; its key is the writer's name.

Owns `StagedWriter`: the desk of a writer, and the time for which the activation is kept.
`coordinator` makes the decisions.

Invariants: the activation lasts while the writer has open or dropped attempts, or an undelivered
batch, because times count from the opening of the desk. Two activations may exist for a moment;
compare-and-set protects their row.
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
"""The longest time between two looks at open work."""
LOOK_AGAIN_S = 1.0
RETRY = Backoff(0.5, 2.0, 30.0)


class Desks(Protocol):
    """The staged writes of a provider in this silo."""

    def desk(self, writer: str, start: Callable[[Any], asyncio.Task[None]], /) -> WriterDesk: ...


class StagingProvider(Protocol):
    """The provider, as a part of this silo."""

    @property
    def staging(self) -> Desks: ...


class StagedWriter(Grain):
    """One writer. Each provider has its own class."""

    provider: ClassVar[str]

    async def on_activate(self) -> None:
        """Make the desk, which reads its row at the first question."""
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
        """Let a silo store this many more bytes. Raises StorageError."""
        return await self._desk.lease(attempt, size_bytes)

    @isolated
    async def commit(
        self, batch: int, manifests: list[Manifest], wait_s: float
    ) -> Done | Gone | Waiting | Refused:
        """Decide a batch, and wait at most `wait_s` for its delivery. Raises ValueError,
        StorageError."""
        try:
            return await self._desk.commit(batch, manifests, wait_s)
        except NotInCluster:  # this activation ends, and starts no delivery
            return Waiting(-1)
        finally:
            self._look_after()
            self._news.set()  # dropped attempts may be swept

    @isolated
    async def abandon(self, batch: int, wait_s: float) -> Abandoned | Waiting | Refused | None:
        """Give up the refused messages of a decided batch.

        Return None if the batch does not wait. Raises StorageError.
        """
        try:
            return await self._desk.abandon(batch, wait_s)
        except NotInCluster:  # this activation ends, and starts no delivery
            return Waiting(-1)
        finally:
            self._look_after()

    @isolated
    async def status(self) -> WriterStatus:
        """Return the status of the writer. Raises StorageError."""
        try:
            return status_of(self.key, *await self._desk.state())
        finally:
            self._look_after()  # retry the delivery, so that the next answer knows the reason

    @isolated
    async def list_refused(self, batch: int, part: int, chunk: int) -> list[RefusedMessage]:
        """Return the given-up messages of the next chunk. Raises StorageError."""
        return await self._desk.list_refused(batch, part, chunk)

    @isolated
    async def abort(self, batch: int) -> None:
        """Drop the open attempts of a batch. Raises StorageError."""
        try:
            await self._desk.abort(batch)
        finally:
            self._look_after()

    async def wake(self) -> None:
        """Continue open work; the finder calls this when no writer does."""
        self._look_after()

    def _look_after(self) -> None:
        if self._house is None or self._house.done():
            with suppress(NotInCluster):  # this activation ends: the next one continues
                self._house = self.context.create_task(self._keep_house())

    async def _keep_house(self) -> None:
        """Do the open work until nothing is left."""
        failures = 0
        while True:
            self.context.keep_alive(2 * LOOK_S)
            try:
                due_s = await self._desk.keep_house()
                failures = 0
            except StorageError as error:
                failures += 1
                log.info("%s: the staged data could not be processed yet: %s", self.key, error)
                due_s = RETRY.whole_s(failures)
            if due_s is None:
                return
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(LOOK_AGAIN_S, min(due_s, LOOK_S))):
                    await self._news.wait()


def writer_name(provider: str) -> str:
    """Return the name of the grain type of a provider's writers."""
    return f"millstream.StagedWriter.{provider}"


@cache  # one class for each provider, in every silo of the process
def writer_grain_of(provider: str) -> type[StagedWriter]:
    """Return the grain class of a provider's writers."""
    named = {"__module__": __name__, "__doc__": StagedWriter.__doc__, "provider": provider}
    options = grain(name=writer_name(provider), reentrant=True)
    return options(type("StagedWriter", (StagedWriter,), named))
