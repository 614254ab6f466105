"""The client's side of staging: an attempt sends chunks, and a batch is committed.

Owns `StagedAttempt` and `StagedBatch`: their calls, and how long these are retried. `target` is the
other side.

Invariants: each call is repeated until it has an answer, which is harmless. At most `window` chunks
and `WINDOW_BYTES_MAX` bytes are in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from millstream.runtime import NotHosted, QueueFull, StorageError, StreamError
from millstream.runtime.extending import Backoff, Gateway, SystemTarget
from millstream.streams.publishing.numbered import OPENING_S, PASSING, WINDOW_BYTES_MAX

from .batch import Manifest
from .coordinator import Begun, Done, Full, Gone, Refused, Waiting
from .target import COMMIT_WAIT_S_MAX, FORM, Staged, StagingTarget

__all__ = ["StagedAttempt", "StagedBatch", "StagedWriterName"]

log = logging.getLogger("millstream.staging")

RETRY = Backoff(0.05, 2.0, 2.0)
COMMIT_WAIT_SHARE = 0.25
T = TypeVar("T")


class EncodedStaging(SystemTarget):
    """`StagingTarget` for callers with encoded messages; it is only called, never served."""

    target_name = StagingTarget.target_name

    async def stage(
        self, namespace: str, writer: str, attempt: str, index: int, messages: msgspec.Raw
    ) -> Staged | Full | Gone:
        """See `StagingTarget.stage`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class StagedWriterName:
    """The name of a writer and its target. `once`: this name has only one batch."""

    provider: str
    namespace: str
    writer: str
    once: bool = False

    @property
    def target(self) -> str:
        return f"{StagingTarget.target_name}/{self.provider}"


class Patience:
    """The time for which a call is retried while nothing succeeds."""

    def __init__(self, what: str, patience_s: float) -> None:
        self._what = what
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._failures = 0  # since the last success
        self._failed_s = 0.0  # the time of the first of them

    def on_success(self) -> None:
        """Start the time again at the next failure."""
        self._failures = 0

    async def pause(self, error: Exception) -> None:
        """Wait before the next attempt; raises the error if nothing succeeded for too long."""
        now_s = self._loop.time()
        if not self._failures:
            self._failed_s = now_s
        self._failures += 1
        is_opening = isinstance(error, NotHosted)
        patience_s = min(self._patience_s, OPENING_S) if is_opening else self._patience_s
        left_s = self._failed_s + patience_s - now_s
        if left_s <= 0:
            error.add_note(f"retried for {patience_s:g} s, and nothing was accepted")
            raise error
        log.info("%s: retrying: %s", self._what, error)
        await asyncio.sleep(min(RETRY.whole_s(self._failures), left_s))

    async def ask(self, call: Callable[[], Coroutine[Any, Any, T | Full]]) -> T:
        """Repeat a call until it has an answer. Raises permanent errors, and the last one when the
        time is over."""
        while True:
            try:
                answer = await call()
            except (*PASSING, StorageError) as error:
                await self.pause(error)
                continue
            if not isinstance(answer, Full):
                self.on_success()
                return answer
            text = f"{self._what}: {answer.what}; {answer.limit_name} is {answer.limit}"
            await self.pause(QueueFull(text))


class StagedAttempt:
    """One attempt to write one part of a batch.

    Args:
        attempt: a name that no other attempt ever has.
        window: the number of chunks that may wait for an answer.
        patience_s: seconds of retries while nothing is accepted.

    One task at a time may use it. `aclose` cancels chunks in flight.
    """

    def __init__(
        self,
        gateway: Gateway,
        name: StagedWriterName,
        batch: int,
        part: int,
        attempt: str,
        *,
        window: int = 1,
        patience_s: float = 60.0,
    ) -> None:
        self._gateway = gateway
        self._name = name
        self._batch = batch
        self._part = part
        self._attempt = attempt
        self._window = window
        self._where = f"writer {name.writer}, batch {batch}, part {part}"
        self._patience = Patience(self._where, patience_s)
        self._loop = asyncio.get_running_loop()
        self._out: deque[asyncio.Task[Staged]] = deque()
        self._sizes: deque[int] = deque()  # sizes in bytes
        self._chunks: list[Staged] = []
        self.limits = Begun()  # limits of each message, after `begin`

    async def begin(self) -> bool:
        """Open the attempt. False: the batch is decided, so there is nothing to write.

        Raises the last error if nothing succeeded for `patience_s`; NotHosted (no silo has the
        provider) sooner; permanent errors (ConfigError, ValueError) at once.
        """
        name = self._name
        answer = await self._patience.ask(
            lambda: self._gateway.call(
                self._attempt,
                name.target,
                StagingTarget.begin,
                FORM,
                name.namespace,
                name.writer,
                self._batch,
                self._part,
                self._attempt,
                name.once,
            )
        )
        if isinstance(answer, Gone):
            raise self._make_dropped_error()
        if isinstance(answer, Begun):
            self.limits = answer
        return isinstance(answer, Begun)

    async def stage(self, messages: bytes) -> None:
        """Send a chunk; returns when another one may be sent. Raises the errors of `begin`, and
        StreamError if the attempt was dropped meanwhile."""
        while self._out and sum(self._sizes) + len(messages) > WINDOW_BYTES_MAX:
            await self._settle_first()
        index = len(self._chunks) + len(self._out)
        task = self._loop.create_task(self._stage(index, msgspec.Raw(messages)))
        self._out.append(task)
        self._sizes.append(len(messages))
        while len(self._out) >= self._window:
            await self._settle_first()

    async def finish(self) -> Manifest:
        """Return the manifest when all chunks are stored. Raises the errors of `stage`."""
        while self._out:
            await self._settle_first()
        lanes = sorted({lane for chunk in self._chunks for lane in chunk.lanes})
        counts = [dict(zip(chunk.lanes, chunk.counts, strict=True)) for chunk in self._chunks]
        return Manifest(
            self._attempt,
            self._part,
            lanes,
            [[one.get(lane, 0) for lane in lanes] for one in counts],
        )

    async def aclose(self) -> None:
        """Cancel chunks in flight; a repeated call is harmless."""
        out = list(self._out)
        self._out.clear()
        self._sizes.clear()
        for task in out:
            task.cancel()
        await asyncio.gather(*out, return_exceptions=True)

    async def _settle_first(self) -> None:
        self._chunks.append(await self._out[0])
        self._out.popleft()
        self._sizes.popleft()

    async def _stage(self, index: int, messages: msgspec.Raw) -> Staged:
        name = self._name
        answer: Staged | Gone = await self._patience.ask(
            lambda: self._gateway.call(
                self._attempt,
                name.target,
                EncodedStaging.stage,
                name.namespace,
                name.writer,
                self._attempt,
                index,
                messages,
            )
        )
        if isinstance(answer, Gone):
            raise self._make_dropped_error()
        return answer

    def _make_dropped_error(self) -> StreamError:
        return StreamError(
            f"{self._where}: attempt {self._attempt} was dropped: its batch was decided or aborted "
            "meanwhile, or the attempt was silent for an hour"
        )


class StagedBatch:
    """One batch of one writer, which this client commits or aborts."""

    def __init__(
        self, gateway: Gateway, name: StagedWriterName, batch: int, *, patience_s: float = 60.0
    ) -> None:
        self._gateway = gateway
        self._name = name
        self._batch = batch
        self._where = f"writer {name.writer}, batch {batch}"
        self._patience_s = patience_s
        self._wait_s = min(COMMIT_WAIT_S_MAX, patience_s * COMMIT_WAIT_SHARE)

    async def commit(self, manifests: Sequence[Manifest]) -> int:
        """Decide the batch. Returns the number of its messages when the queues have accepted all;
        -1 if it is unknown.

        Raises:
            StreamError: attempts were dropped, so nothing is decided. Or the batch is decided and a
                queue refuses a message permanently, so an operator has to act.
            QueueFull: the batch is decided, and no more of it was accepted for `patience_s`. It
                arrives later.
            ValueError: the manifests do not fit together.

        Raises the last error if no call was answered for `patience_s`: then the decision is
        unknown, and the caller has to commit again.
        """
        name, asking = self._name, Patience(self._where, self._patience_s)
        waiting, steps = Patience(self._where, self._patience_s), -1
        while True:
            answer: Done | Gone | Waiting | Refused = await asking.ask(
                lambda: self._gateway.call(
                    name.writer,
                    name.target,
                    StagingTarget.commit,
                    name.namespace,
                    name.writer,
                    self._batch,
                    list(manifests),
                    self._wait_s,
                )
            )
            if isinstance(answer, Done):
                return answer.messages
            if isinstance(answer, Refused):
                raise StreamError(self._explain_refusal(answer))
            if isinstance(answer, Gone):
                raise StreamError(
                    f"{self._where} is not committed: attempts were dropped, because they were "
                    f"silent for an hour, or another driver writes under this name: "
                    f"{', '.join(answer.attempts)}"
                )
            if answer.steps != steps:
                steps = answer.steps
                waiting.on_success()
            await waiting.pause(
                QueueFull(
                    f"{self._where} is decided, and waits for space in the queues: the batch "
                    "arrives later; do not write it under another name"
                )
            )

    def _explain_refusal(self, answer: Refused) -> str:
        name = self._name
        command = f"millstream staged abandon {name.namespace} {name.writer} {answer.batch}"
        return (
            f"{self._where} is not fully published: batch {answer.batch} is decided, but a queue "
            f"permanently refuses one of its messages: {answer.why}. Let the queue accept the "
            "message (a higher limit), and write again, or give up the refused messages, and "
            f"publish the rest: `{command}`"
        )

    async def abort(self) -> None:
        """Drop the open attempts of the batch; a decision stays. Raises the errors of calls."""
        name = self._name
        await Patience(self._where, self._patience_s).ask(
            lambda: self._gateway.call(
                name.writer,
                name.target,
                StagingTarget.abort,
                name.namespace,
                name.writer,
                self._batch,
            )
        )
