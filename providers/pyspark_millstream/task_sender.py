"""From a task, which blocks, to the publisher on the background loop.

This module owns `TaskSender`: opening, sending calls, giving up. `NumberedPublisher` owns retries
and order, and `background` the clients. An interrupted task leaves no call of its own unanswered. A
chunk is passed as bytes, once.
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
    """The sender of one attempt of a task; its methods block.

    The first call opens the client, so an empty partition opens no connection.
    """

    def __init__(self, background: Background, options: WriteOptions, origin: Origin) -> None:
        self._background = background
        self._options = options
        self._origin = origin
        self._publisher: NumberedPublisher | None = None
        self._open = AsyncExitStack()
        self.calls = 0

    @property
    def accepted(self) -> int:
        """The number of messages accepted so far."""
        return self._publisher.accepted if self._publisher is not None else 0

    def send(self, body: bytes, count: int) -> None:
        """Publish `count` messages; wait while the window is full. Raises as `send_rows` does."""
        self.calls += 1
        self._run(self._publish(body, count))

    def drain(self) -> None:
        """Wait until all messages are accepted. Raises as `send` does."""
        if self._publisher is not None:
            self._run(self._publisher.drain())

    def _run(self, coro: Coroutine[Any, Any, None]) -> None:
        try:
            self._background.run(coro)
        except MillstreamError:
            raise
        except ValueError as error:  # a frame is too large
            error.add_note(
                "a call is too large: lower the option 'chunk_rows' or 'message_bytes'; if a "
                "single row is too large, write smaller columns, or raise the limit of the silos"
            )
            raise

    def close(self) -> None:
        """Give up unanswered calls."""
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
    """Yield a `TaskSender`, and close it in any case."""
    link = TaskSender(background(), options, origin)
    try:
        yield link
    finally:
        link.close()
