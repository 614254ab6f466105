"""Staging from a client: an attempt's chunks go out, its manifest comes back; a batch is committed.

Owns: `StagedAttempt`, `StagedBatch`: calls, how long they are tried again. Not: the target
(`target`), what a chunk has (whoever writes). Invariants: everything is asked for again until it is
answered, which is harmless; at most `window` chunks of `WINDOW_BYTES_MAX` bytes are out.
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
    """`StagingTarget` for whoever has encoded the messages; it is called, and never served."""

    target_name = StagingTarget.target_name

    async def stage(
        self, namespace: str, writer: str, attempt: str, index: int, messages: msgspec.Raw
    ) -> Staged | Full | Gone:
        """`StagingTarget.stage`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class StagedWriterName:
    """Who writes, and where to: `once`: this name has one batch."""

    provider: str
    namespace: str
    writer: str
    once: bool = False

    @property
    def target(self) -> str:
        return f"{StagingTarget.target_name}/{self.provider}"


class Patience:
    """How long one goes on trying while nothing succeeds."""

    def __init__(self, what: str, patience_s: float) -> None:
        self._what = what
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._failures = 0  # since something succeeded
        self._failed_s = 0.0  # the first of them

    def on_success(self) -> None:
        """What fails from here on is waited for anew."""
        self._failures = 0

    async def pause(self, error: Exception) -> None:
        """Wait a little; raises the error if nothing succeeded for too long."""
        now_s = self._loop.time()
        if not self._failures:
            self._failed_s = now_s
        self._failures += 1
        is_opening = isinstance(error, NotHosted)
        patience_s = min(self._patience_s, OPENING_S) if is_opening else self._patience_s
        left_s = self._failed_s + patience_s - now_s
        if left_s <= 0:
            error.add_note(f"tried again for {patience_s:g} s, and nothing was accepted")
            raise error
        log.info("%s tries again: %s", self._what, error)
        await asyncio.sleep(min(RETRY.whole_s(self._failures), left_s))

    async def ask(self, call: Callable[[], Coroutine[Any, Any, T | Full]]) -> T:
        """An answer, as soon as there is one. Raises what cannot pass, and what did not."""
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
        attempt: a name that no other one has, ever.
        window: chunks without an answer.
        patience_s: how long it goes on trying while nothing is accepted.

    Used by one task at a time; `aclose` gives up what is out.
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
        self._sizes: deque[int] = deque()  # their bytes
        self._chunks: list[Staged] = []
        self.limits = Begun()  # of each message, once it is open

    async def begin(self) -> bool:
        """Open it; False: the batch is decided, there is nothing to write.

        Raises the last error when nothing succeeded for `patience_s`, NotHosted (no silo has the
        provider) sooner; at once what cannot pass: ConfigError, ValueError.
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
        """Send a chunk; return when another one may be sent. Raises as `begin`, and StreamError:
        the attempt was dropped meanwhile."""
        while self._out and sum(self._sizes) + len(messages) > WINDOW_BYTES_MAX:
            await self._settle_first()
        index = len(self._chunks) + len(self._out)
        task = self._loop.create_task(self._stage(index, msgspec.Raw(messages)))
        self._out.append(task)
        self._sizes.append(len(messages))
        while len(self._out) >= self._window:
            await self._settle_first()

    async def finish(self) -> Manifest:
        """What is staged, once all of it is. Raises as `stage`."""
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
        """Give up what is out; again is harmless."""
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
            "meanwhile, or nothing was heard of it for an hour"
        )


class StagedBatch:
    """One batch of one writer, which is decided from here."""

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
        """Decide it; return when all of it is accepted: how many messages, -1 if not known.

        Raises StreamError (nothing is decided: attempts were dropped; or a queue refuses a message
        of a decided batch for good, which an operator has to see to), QueueFull (it is decided,
        and nothing more of it was accepted for `patience_s`; it arrives later), the last error when
        nothing was answered for so long (what was decided is not known: commit again), ValueError.
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
                    f"{self._where} is not committed: attempts were dropped, since nothing was "
                    f"heard of them for an hour, or another driver writes under this name: "
                    f"{', '.join(answer.attempts)}"
                )
            if answer.steps != steps:
                steps = answer.steps
                waiting.on_success()
            await waiting.pause(
                QueueFull(
                    f"{self._where} is decided, and waits for room in the queues: it arrives "
                    "later; do not write it under another name"
                )
            )

    def _explain_refusal(self, answer: Refused) -> str:
        name = self._name
        command = f"millstream staged abandon {name.namespace} {name.writer} {answer.batch}"
        return (
            f"{self._where} is not published wholly: batch {answer.batch} is decided, and a queue "
            f"refuses a message of it for good: {answer.why}. Let the queue accept it (a higher "
            "limit), and write again, or give up what is refused, and publish the rest: "
            f"`{command}`"
        )

    async def abort(self) -> None:
        """Drop what is open of it; what is decided stays so. Raises as calls do."""
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
