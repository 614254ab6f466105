"""Batches pushed to a handler, by as many tasks as the group has consumers.

This module owns `PushGroup` and `Retries`. A batch is committed after its handler, never before. A
failed batch is retried after a back-off. After `attempts_max` attempts it is skipped, or the group
stops. `stop` lets running handlers finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

from millstream.runtime import ConfigError, GrainError
from millstream.runtime.extending import Backoff, check_kind

from .consumer import MemoryConsumer

__all__ = ["Commit", "Handler", "ManualHandler", "PushGroup", "Retries"]

log = logging.getLogger("millstream.buffer")

T = TypeVar("T")
Commit = Callable[[int | None], Awaitable[None]]
Handler = Callable[[list[T]], Awaitable[None]]
ManualHandler = Callable[[list[T], Commit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Retries:
    """The treatment of a batch whose handler raises an error, for `MemoryTopic.subscribe`.

    Attributes:
        attempts_max: Handler calls for one batch. 0: no limit.
        backoff: The waits between attempts. Default: 10 ms, doubled each time, up to 5 s.
        on_exhausted: After the last attempt, `"skip"` passes the batch to `exhausted` and continues
            with the next one. `"stop"` stops the group, and the batch stays uncommitted.
        exhausted: An async function of the batch and the last error, called before the batch is
            skipped. For example, it puts the batch into a dead-letter topic. If it raises, the
            group stops.

    Raises:
        ConfigError: A value has the wrong type or is outside its limits.
    """

    attempts_max: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.01, 2, 5.0))
    on_exhausted: Literal["skip", "stop"] = "skip"
    exhausted: Callable[[list[Any], Exception], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attempts_max, bool) or not isinstance(self.attempts_max, int):
            raise ConfigError(f"attempts_max is {self.attempts_max!r}: write a whole number")
        if self.attempts_max < 0:
            raise ConfigError(f"attempts_max is {self.attempts_max}: write 0 (no limit) or more")
        check_kind("Retries.backoff", self.backoff, Backoff)
        if self.exhausted is not None and not callable(self.exhausted):
            raise ConfigError(f"Retries.exhausted is {self.exhausted!r}: give an async function")
        if self.on_exhausted not in ("skip", "stop"):
            raise ConfigError(f"on_exhausted is {self.on_exhausted!r}: write 'skip' or 'stop'")


class PushGroup(Generic[T]):
    """A group whose batches go to a handler, until `stop`.

    `MemoryTopic.subscribe` creates it. `failed` has the error that stopped the group, or None.
    """

    def __init__(
        self,
        name: str,
        consumers: Sequence[MemoryConsumer[T]],
        handler: Handler[T] | ManualHandler[T],
        is_manual: bool,
        retries: Retries,
    ) -> None:
        self._name = name
        self._consumers = consumers
        self._handler = handler
        self._is_manual = is_manual
        self._retries = retries
        self._is_stopping = False
        self.failed: Exception | None = None  # the error that stopped the group
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(consumer)) for consumer in consumers]

    async def _run(self, consumer: MemoryConsumer[T]) -> None:
        failures: dict[int, tuple[int, int]] = {}  # by partition: a batch's start, failures
        async for batch in consumer:
            assert consumer.given is not None
            partition, start = consumer.given
            cancelled = cancellations()  # earlier handlers may have left some
            try:
                await self._handle(consumer, batch)
                failures.pop(partition, None)
            except (Exception, asyncio.CancelledError) as raised:
                error = own_failure(raised, cancelled)
                before = failures.get(partition, (start, 0))
                nth = before[1] + 1 if before[0] == start else 1
                failures[partition] = start, nth
                if not await self._on_failure(consumer, batch, nth, error):
                    return
            if self._is_stopping:
                return

    async def _handle(self, consumer: MemoryConsumer[T], batch: list[T]) -> None:
        if self._is_manual:
            await cast("ManualHandler[T]", self._handler)(batch, consumer.commit)
        else:
            await cast("Handler[T]", self._handler)(batch)
            await consumer.commit()

    async def _on_failure(
        self, consumer: MemoryConsumer[T], batch: list[T], failures: int, error: Exception
    ) -> bool:
        """Wait, skip the batch or stop the group; returns whether to continue."""
        retries = self._retries
        log.warning(
            "%s: group %r: a handler failed at attempt %d of %s: %r",
            self._name,
            consumer.group,
            failures,
            retries.attempts_max or "any number",
            error,
        )
        if not retries.attempts_max or failures < retries.attempts_max:
            await asyncio.sleep(retries.backoff.whole_s(failures))
            return True
        if retries.on_exhausted == "stop":
            self._end(error)
            return False
        if retries.exhausted is not None:
            cancelled = cancellations()
            try:
                await retries.exhausted(batch, error)
            except (Exception, asyncio.CancelledError) as raised:
                self._end(own_failure(raised, cancelled))
                return False
        if consumer.given is not None:  # a handler with `commit` may have committed it
            await consumer.commit()
        return True

    def _end(self, error: Exception) -> None:
        """Stop the whole group; the batch stays uncommitted."""
        self._is_stopping, self.failed = True, error
        group = self._consumers[0].group
        log.error("%s: group %r stops: %r", self._name, group, error, exc_info=error)
        for consumer in self._consumers:
            consumer.end()

    async def wait_drained(self) -> None:
        """Wait until the topic is closed and the group has processed all its items.

        Cancelling this wait does not stop the group.

        Raises:
            Exception: The error that stopped the group, if one did.
        """
        await asyncio.wait(self._tasks)  # cancelling this wait cancels no task
        if self.failed is not None:
            raise self.failed

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Take no more batches, and wait for running handlers.

        Args:
            timeout_s: After this time, running handlers are cancelled; their batches stay
                uncommitted. None: no limit.
        """
        self._is_stopping = True
        for consumer in self._consumers:
            consumer.end()
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                self.failed = self.failed or ended


def cancellations() -> int:
    """Return the number of cancellation requests of the running task."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def own_failure(raised: BaseException, cancelled: int) -> Exception:
    """Return a handler's failure as an error. Re-raise a cancellation from outside.

    `cancelled`: the result of `cancellations` before the handler was called.
    """
    if isinstance(raised, Exception):
        return raised
    if cancellations() > cancelled:
        raise raised
    return GrainError("asyncio.CancelledError", "the handler awaited a task that was cancelled")
