"""The calls of a provider's adapter for programs outside, each with a time limit.

Owns: `AdapterCalls`, the form of such calls, and the reasons to refuse a provider. Not: the calls
themselves (`target`, `retain_target`). Invariants: form, provider and names are checked before an
adapter is called. A call that ignores its cancellation blocks no other call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from millstream.runtime import ConfigError
from millstream.runtime.extending import Tasks, show_text
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.timed_call import ask_in_time

from .incarnation import Incarnation, check_incarnation

__all__ = ["FORM", "AdapterCalls", "refusal_of"]

FORM = 2
"""The form of these calls; a program with another form is refused."""
QUEUES_MAX = 4096
"""Queues that one call may name."""
NAME_BYTES_MAX = 512

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterCalls:
    """The calls of one provider's adapter in one silo.

    Attributes:
        queues: the queues that have to be read now.
        incarnation: the incarnation whose positions are valid here.
        refusal: why the provider is not read; "": it is read.
    """

    provider: str
    adapter: object
    queues: Callable[[], Sequence[QueueId]]
    tasks: Tasks
    call_limit_s: float
    incarnation: Incarnation
    refusal: str

    def check(self, form: int, asked: Collection[str]) -> None:
        """Raise ConfigError (the provider is not read, or not in this form) or ValueError
        (names)."""
        if form != FORM:
            raise ConfigError(
                f"the reader uses form {form} of these calls, but this cluster uses form {FORM}: "
                "install the same version of Millstream in both"
            )
        if self.refusal:
            raise ConfigError(self.refusal)
        if len(asked) > QUEUES_MAX:
            raise ValueError(
                f"the call names {len(asked)} queues; QUEUES_MAX is {QUEUES_MAX}: name fewer queues"
            )
        for queue in asked:
            size = len(queue.encode(errors="replace"))
            if not 0 < size <= NAME_BYTES_MAX:
                raise ValueError(
                    f"the name of queue {show_text(queue)!r} has {size} bytes; it must have 1 to "
                    f"{NAME_BYTES_MAX}"
                )

    async def check_incarnation(self, asked: str) -> None:
        """Raise ConfigError if positions belong to another incarnation of the provider;
        StorageError."""
        if asked:
            check_incarnation(self.provider, asked, await self.incarnation.text())

    def where(self, queue: QueueId, method: str) -> str:
        """The name of a call, for errors."""
        return f"stream provider {self.provider!r}, queue {queue}: {method}"

    async def each(
        self, queues: Collection[QueueId], call: Callable[[QueueId], Awaitable[T]]
    ) -> dict[QueueId, T]:
        """Make a call for all queues at once; raises the first error after all have answered."""
        answers = await asyncio.gather(*map(call, queues), return_exceptions=True)
        found: dict[QueueId, T] = {}
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            found[queue] = answer
        return found

    async def in_time(self, where: str, call: Callable[[], Awaitable[T]]) -> T:
        """The answer or the error of a call. Raises AdapterFault: no answer in time."""
        return await ask_in_time(where, call, self.tasks, self.call_limit_s)


def refusal_of(provider: str, capabilities: Collection[Capability]) -> str:
    """Why programs outside may not read a provider's queues, or "" if they may."""
    where = f"stream provider {provider!r} cannot be read again"
    if Capability.REWIND not in capabilities:
        return (
            f"{where}, because it has no REWIND. Use a provider with REWIND, such as LedgerQueues"
        )
    if Capability.ITEM_ACK in capabilities:
        return (
            f"{where} by a reader outside the cluster, because it deletes each message after its "
            "acknowledgement (ITEM_ACK). Use a provider that keeps messages for some time, such "
            "as LedgerQueues"
        )
    return ""
