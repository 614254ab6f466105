"""From a task, which blocks, to the publisher on the background loop.

Owns: `TaskSender`: opening, handing calls over, giving up. Not: retries and order
(`NumberedPublisher`), the clients (`background`). Invariants: a task that is interrupted has
nothing of its own out; a chunk is handed over as bytes, once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from millstream.runtime import Env, MillstreamError
from millstream.streams.publishing.numbered import NumberedPublisher

from .background import Background, background
from .options import WriteOptions
from .tokens import Origin

__all__ = ["TaskSender", "sending"]


class TaskSender:
    """What one attempt of a task sends; its methods block. The client is there with the first
    call, so that an empty partition connects to nobody."""

    def __init__(self, background: Background, options: WriteOptions, origin: Origin) -> None:
        self._background = background
        self._options = options
        self._origin = origin
        self._publisher: NumberedPublisher | None = None
        self._open = AsyncExitStack()
        self.calls = 0

    @property
    def accepted(self) -> int:
        """Messages accepted so far."""
        return self._publisher.accepted if self._publisher is not None else 0

    def send(self, body: bytes, count: int) -> None:
        """Publish so many messages; wait while the window is full. Raises as `send_rows`."""
        self.calls += 1
        self._run(self._publish(body, count))

    def drain(self) -> None:
        """Wait until all is accepted. Raises as `send`."""
        if self._publisher is not None:
            self._run(self._publisher.drain())

    def _run(self, coro: Coroutine[Any, Any, None]) -> None:
        try:
            self._background.run(coro)
        except MillstreamError:
            raise
        except ValueError as error:  # a frame is too large
            error.add_note(
                "a call is too large: write a smaller option 'chunk_rows' or 'message_bytes'; a "
                "single row that is too large needs smaller columns, or a higher limit in the silos"
            )
            raise

    def close(self) -> None:
        """Give up what is out."""
        if self._publisher is not None:
            self._background.run(self._open.aclose())

    async def _publish(self, body: bytes, count: int) -> None:
        if self._publisher is None:
            self._publisher = await self._open_publisher()
        await self._publisher.publish(body, count)

    async def _open_publisher(self) -> NumberedPublisher:
        options, origin = self._options, self._origin
        client = await self._open.enter_async_context(self._background.client(options))
        publisher = NumberedPublisher(
            client.gateway,
            options.namespace,
            origin.producer,
            f"{Env().new_id():016x}",
            provider=options.provider,
            window=options.window,
            patience_s=options.patience_s,
        )
        self._open.push_async_callback(publisher.aclose)
        return publisher


@contextmanager
def sending(options: WriteOptions, origin: Origin) -> Iterator[TaskSender]:
    """A `TaskSender`; whatever happens, nothing of it is out afterwards."""
    link = TaskSender(background(), options, origin)
    try:
        yield link
    finally:
        link.close()
