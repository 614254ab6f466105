"""Requests of an operator to a running cluster: to close a ledger, or to give up lost entries.

Owns: `RepairTarget`, the system target `$ledgers/<provider>`, and its answers. Not: recovery,
giving up (`handle`), the commands (`millstream.console`). Invariants: an operator may have a ledger
closed as any take-over would close it, and may have lost entries given up. While bookies that are
not known to be lost may have these entries, the operator must name those bookies, too. Entries and
bookies are not open to clients. A refusal is an answer, not an error of the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.loss import Gap, Left, give_up, what_is_left
from millstream.providers.ledger.handle.recovery import recover
from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.record import ENDLESS, LedgerRecord, LedgerState
from millstream.runtime import StorageError
from millstream.runtime.extending import Role, SystemTarget, open_to

__all__ = ["WAIT_S_MAX", "EndAnswer", "LossAnswer", "LostPart", "MessageNumbers", "RepairTarget"]

log = logging.getLogger("millstream.ledger")

WAIT_S_MAX = 20.0
"""The longest time that a requested recovery looks for bookies."""


class MessageNumbers(Protocol):
    """Knows which messages were in entries. Raises StorageError."""

    async def of(
        self, record: LedgerRecord, gaps: Sequence[Gap], /
    ) -> Sequence[tuple[int, int]]: ...


class EndAnswer(msgspec.Struct, frozen=True):
    """The end of a ledger, or why it has none."""

    last: int = NOTHING
    length: int = 0
    refusal: str = ""


class LostPart(msgspec.Struct, frozen=True):
    """Entries from `first` to `last` that no bookie gives, and their messages from `number` to
    before `end`. 0 means that a message number is unknown. `is_endless`: there may have been more
    entries. If `last` is before `first`, it is unknown whether there were any."""

    first: int
    last: int
    number: int
    end: int
    is_endless: bool = False


class LossAnswer(msgspec.Struct, frozen=True):
    """The missing and the remaining part of a ledger, or why they are unknown.

    `last`, `length`: the end that the ledger has or would get. `lost`: bookies without an answer
    that may have missing entries, and that are lost or were named as lost. `away`: the others
    without an answer that may have missing entries.
    """

    topic: str = ""
    last: int = NOTHING
    length: int = 0
    parts: list[LostPart] = []
    lost: list[str] = []
    away: list[str] = []
    refusal: str = ""

    @property
    def entries(self) -> int:
        """The number of missing entries, as far as it is known."""
        return sum(part.last - part.first + 1 for part in self.parts)

    @property
    def messages(self) -> int:
        """The number of missing messages, as far as it is known."""
        return sum(part.end - part.number for part in self.parts if part.number and part.end)


class RepairTarget(SystemTarget):
    """Closes ledgers, and gives up lost entries.

    Args:
        context: the options, the metadata and the bookies of this process.
        numbers: reads the numbers of messages in an entry.
        is_lost: whether no silo has run a bookie for so long that it is lost.
    """

    target_name = "$ledgers"

    def __init__(
        self, context: HandleContext, numbers: MessageNumbers, is_lost: Callable[[str], bool]
    ) -> None:
        self._context = context
        self._numbers = numbers
        self._is_lost = is_lost

    @open_to(Role.OPERATOR)
    async def recover(self, ledger: int, wait_s: float) -> EndAnswer:
        """Fence a ledger, and close it with all entries that were acknowledged."""
        options = replace(self._context.options, recover_max_s=min(wait_s, WAIT_S_MAX))
        try:
            record = await recover(self._context._replace(options=options), ledger)
        except (LedgerError, StorageError) as error:
            return EndAnswer(refusal=show_error(error))
        return EndAnswer(record.last, record.length)

    @open_to(Role.OPERATOR)
    async def left(self, ledger: int, gone: list[str]) -> LossAnswer:
        """Read all of a ledger, and return its missing entries. An open ledger is fenced.

        Args:
            gone: the bookies that the operator knows to be lost, or the beginnings of their names.
        """
        try:
            left = await what_is_left(self._context, ledger)
            return await self._tell(left, gone)
        except (LedgerError, StorageError) as error:
            return LossAnswer(refusal=show_error(error))

    @open_to(Role.OPERATOR)
    async def give_up(self, ledger: int, gone: list[str]) -> LossAnswer:
        """Give up the entries that are missing now; return them."""
        try:
            left = await what_is_left(self._context, ledger)
            told = await self._tell(left, gone)
            if told.away:
                return replace_refusal(told, explain_refusal(ledger, told.away))
            if left.gaps:
                await give_up(self._context, left)
                tell(left, told)
            return told
        except (LedgerError, StorageError) as error:
            return LossAnswer(refusal=show_error(error))

    async def _tell(self, left: Left, gone: Collection[str]) -> LossAnswer:
        lost = [one for one in left.away if self._is_lost(one) or is_named(one, gone)]
        numbers = await self._numbers.of(left.record, left.gaps)
        return LossAnswer(
            left.record.topic,
            left.last,
            left.length,
            [
                LostPart(
                    gap.first,
                    min(gap.last, left.last),
                    number,
                    end,
                    is_endless=gap.last == ENDLESS,
                )
                for gap, (number, end) in zip(left.gaps, numbers, strict=True)
            ],
            lost,
            [one for one in left.away if one not in lost],
        )


def is_named(bookie: str, names: Collection[str]) -> bool:
    return any(name and bookie.startswith(name) for name in names)


def explain_refusal(ledger: int, away: Sequence[str]) -> str:
    """Return why nothing is given up."""
    text = f"ledger {ledger}: bookie {', '.join(away)} may have the missing entries, and may return"
    return (
        f"{text}: wait until it is lost, or give --gone UUID for each bookie that will not return"
    )


def replace_refusal(answer: LossAnswer, refusal: str) -> LossAnswer:
    return msgspec.structs.replace(answer, refusal=refusal)


def tell(left: Left, told: LossAnswer) -> None:
    """Log the entries that were given up."""
    record = left.record
    end = "" if record.state is LedgerState.CLOSED else f"; the ledger ends with entry {left.last}"
    log.error(
        "ledger %d of %s: an operator accepted the loss of %d entries with %d messages%s",
        record.ledger,
        record.topic or "no topic",
        told.entries,
        told.messages,
        end,
    )


def show_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
