"""Staged writes for an operator, through a gateway: list writers, show them, give up refused
messages.

`target` answers these calls.
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
    """The staged writes of one provider, as an operator sees them.

    Every method also raises `StorageError`, and the errors of calls.

    Args:
        gateway: the gateway of an operator's client.
        provider: name of the stream provider.
        patience_s: how long `abandon` waits while no more of a batch is accepted, in seconds.
    """

    def __init__(self, gateway: Gateway, provider: str, *, patience_s: float = 60.0) -> None:
        self._gateway = gateway
        self._target = f"{StagingTarget.target_name}/{provider}"
        self._patience_s = patience_s

    async def _call(self, method: Any, *args: Any) -> Any:
        return await self._gateway.call("", self._target, method, *args)

    async def writers(self) -> AsyncIterator[WriterStatus]:
        """Iterate over every writer, in the order of their identities.

        Yields:
            The status of each writer.
        """
        after = ""
        while found := await self._call(StagingTarget.writers, after, WRITERS_MAX):
            for status in found:
                yield status
            after = found[-1].writer

    async def status(self, namespace: str, writer: str) -> WriterStatus:
        """Return the status of one writer.

        Args:
            namespace: name of the namespace.
            writer: name of the writer.

        Raises:
            LookupError: there is no such writer.
        """
        found: WriterStatus = await self._call(StagingTarget.status, namespace, writer)
        return found

    async def iter_refused(
        self, namespace: str, writer: str, batch: int
    ) -> AsyncIterator[RefusedMessage]:
        """Iterate over the given-up messages of a batch, in order. Only the last such batch is
        kept.

        Args:
            namespace: name of the namespace.
            writer: name of the writer.
            batch: number of the batch.

        Yields:
            The messages.
        """
        part, chunk = 0, -1
        where = namespace, writer, batch
        while page := await self._call(StagingTarget.list_refused, *where, part, chunk):
            for message in page:
                yield message
            part, chunk = page[-1].part, page[-1].chunk

    async def abandon(self, namespace: str, writer: str, batch: int) -> Abandoned:
        """Give up the messages of a decided batch that queues refuse for good.

        Returns when the rest of the batch is published. A repeated call does no harm.

        Args:
            namespace: name of the namespace.
            writer: name of the writer.
            batch: number of the batch.

        Raises:
            LookupError: no such batch waits.
            QueueFull: no more of the batch was accepted for `patience_s`; its delivery continues.
            StreamError: a queue refused a message while the delivery was retried for `patience_s`.
        """
        waiting, steps = Patience(f"batch {batch} of {writer}", self._patience_s), -1
        where = namespace, writer, batch
        while True:
            answer = await self._call(StagingTarget.abandon, *where, COMMIT_WAIT_S_MAX)
            if isinstance(answer, Abandoned):
                return answer
            if isinstance(answer, Refused):  # the answer of the last delivery attempt
                await waiting.pause(StreamError(answer.why))
                continue
            if answer.steps != steps:
                steps = answer.steps
                waiting.on_success()
            await waiting.pause(
                QueueFull(
                    f"batch {batch} of {writer} waits for space in the queues; its delivery "
                    "continues"
                )
            )
