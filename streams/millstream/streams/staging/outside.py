"""Staged writes as an operator sees them through a gateway: listed, shown, given up.

Owns: `StagedWrites`. Not: what answers (`target`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from millstream.runtime import QueueFull, StreamError
from millstream.runtime.extending import Gateway

from .coordinator import Abandoned, Refused
from .rows import RefusedMessage
from .stager import Patience
from .status import WriterStatus
from .target import COMMIT_WAIT_S_MAX, WRITERS_MAX, StagingTarget

__all__ = ["StagedWrites"]


class StagedWrites:
    """The writers of one provider.

    Args:
        patience_s: how long a batch is waited for while nothing more of it is accepted.

    Every method raises StorageError, and what calls raise.
    """

    def __init__(self, gateway: Gateway, provider: str, *, patience_s: float = 60.0) -> None:
        self._gateway = gateway
        self._target = f"{StagingTarget.target_name}/{provider}"
        self._patience_s = patience_s

    async def _call(self, method: Any, *args: Any) -> Any:
        return await self._gateway.call("", self._target, method, *args)

    async def writers(self) -> AsyncIterator[WriterStatus]:
        """Every writer, in the order of their identities."""
        after = ""
        while found := await self._call(StagingTarget.writers, after, WRITERS_MAX):
            for status in found:
                yield status
            after = found[-1].writer

    async def status(self, namespace: str, writer: str) -> WriterStatus:
        """One writer. Raises LookupError."""
        found: WriterStatus = await self._call(StagingTarget.status, namespace, writer)
        return found

    async def iter_refused(
        self, namespace: str, writer: str, batch: int
    ) -> AsyncIterator[RefusedMessage]:
        """The messages of a batch that were given up, in their order; of the last such batch."""
        part, chunk = 0, -1
        where = namespace, writer, batch
        while page := await self._call(StagingTarget.list_refused, *where, part, chunk):
            for message in page:
                yield message
            part, chunk = page[-1].part, page[-1].chunk

    async def abandon(self, namespace: str, writer: str, batch: int) -> Abandoned:
        """Give up what queues refuse for good of a decided batch; return when the rest of it is
        published. Again is harmless.

        Raises LookupError (the batch does not wait), QueueFull: nothing more of it was accepted
        for `patience_s`, and it goes on by itself.
        """
        waiting, steps = Patience(f"batch {batch} of {writer}", self._patience_s), -1
        where = namespace, writer, batch
        while True:
            answer = await self._call(StagingTarget.abandon, *where, COMMIT_WAIT_S_MAX)
            if isinstance(answer, Abandoned):
                return answer
            if isinstance(answer, Refused):  # it was so when the delivery was tried last
                await waiting.pause(StreamError(answer.why))
                continue
            if answer.steps != steps:
                steps = answer.steps
                waiting.on_success()
            await waiting.pause(
                QueueFull(f"batch {batch} of {writer} waits for room in the queues, and goes on")
            )
