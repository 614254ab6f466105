"""What programs outside may ask of a provider's adapter, and each call with a limit.

Owns: `AdapterCalls`, the form of such calls, and why a provider is not read. Not: the calls
(`target`, `retain_target`). Invariants: nothing is asked of an adapter before form, provider and
names are looked at; a call that does not heed its cancellation holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from millstream.runtime import ConfigError
from millstream.runtime.extending import Tasks, show_text
from millstream.streams.contracts.answers import AdapterFault
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.identity import QueueId

from .incarnation import Incarnation, check_incarnation

__all__ = ["FORM", "AdapterCalls", "refusal_of"]

FORM = 2
"""Of these calls: a program of another form is refused."""
QUEUES_MAX = 4096
"""Queues that one call may name."""
NAME_BYTES_MAX = 512

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterCalls:
    """The calls of one provider's adapter in one silo.

    Attributes:
        queues: those that have to be read now.
        incarnation: whose positions are known here.
        refusal: why nothing is read; "": it is.
    """

    provider: str
    adapter: object
    queues: Callable[[], Sequence[QueueId]]
    tasks: Tasks
    call_limit_s: float
    incarnation: Incarnation
    refusal: str

    def check(self, form: int, asked: Collection[str]) -> None:
        """Raise ConfigError: nothing is read here, or not in this form; ValueError: names."""
        if form != FORM:
            raise ConfigError(
                f"the reader reads in form {form}, this cluster in form {FORM}: install the same "
                "version of Millstream in both"
            )
        if self.refusal:
            raise ConfigError(self.refusal)
        if len(asked) > QUEUES_MAX:
            raise ValueError(f"{len(asked)} queues in one call; QUEUES_MAX is {QUEUES_MAX}")
        for queue in asked:
            size = len(queue.encode(errors="replace"))
            if not 0 < size <= NAME_BYTES_MAX:
                raise ValueError(
                    f"queue {show_text(queue)!r} has {size} bytes: 1 to {NAME_BYTES_MAX}"
                )

    async def check_incarnation(self, asked: str) -> None:
        """Raise ConfigError: positions are of another incarnation of the provider; StorageError."""
        if asked:
            check_incarnation(self.provider, asked, await self.incarnation.text())

    def where(self, queue: QueueId, method: str) -> str:
        """What is called, for errors."""
        return f"stream provider {self.provider!r}, queue {queue}: {method}"

    async def each(
        self, queues: Collection[QueueId], call: Callable[[QueueId], Awaitable[T]]
    ) -> dict[QueueId, T]:
        """Ask of all at once; raises what the first one raises, once all have answered."""
        answers = await asyncio.gather(*map(call, queues), return_exceptions=True)
        found: dict[QueueId, T] = {}
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            found[queue] = answer
        return found

    async def in_time(self, where: str, call: Callable[[], Awaitable[T]]) -> T:
        """What a call answers or raises. Raises AdapterFault: nothing, in time."""
        failed: list[Exception] = []

        async def ask_once() -> T | None:
            try:
                return await call()
            except Exception as error:  # as an answer: perhaps nobody waits for it any more
                failed.append(error)
                return None

        task = self.tasks.start(ask_once())
        try:
            await asyncio.wait([task], timeout=self.call_limit_s)
            if not task.done():
                limit = f"call_limit_s, {self.call_limit_s:g} s"
                raise AdapterFault(f"{where} did not answer within {limit}")
            if task.cancelled():
                raise AdapterFault(f"{where} was cancelled, and nobody cancelled it")
            answer: T = task.result()
        finally:
            task.cancel()  # one that does not heed that is left behind
        if failed:
            raise failed[0]
        return answer


def refusal_of(provider: str, capabilities: Collection[Capability]) -> str:
    """Why a provider's queues are not read from outside; empty: they are."""
    where = f"stream provider {provider!r} cannot be read again"
    if Capability.REWIND not in capabilities:
        return f"{where}: it has no REWIND. Read a provider that has, such as LedgerQueues"
    if Capability.ITEM_ACK in capabilities:
        return (
            f"{where} by a reader outside: it forgets messages one by one, once they are done "
            "(ITEM_ACK). Read a provider that keeps them for a time, such as LedgerQueues"
        )
    return ""
