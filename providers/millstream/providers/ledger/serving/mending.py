"""What a person asks a running cluster to do for a ledger that has no end.

Owns: `MendingTarget`, the system target `$ledgers/<provider>`, its answers. Not: recovery
(`handle`), who asks (`millstream.console`). Invariants: clients may have a ledger given the end
that any takeover would give it, or one with a loss, asked for by that name; entries and bookies are
not open to them; what a ledger refuses is an answer, not an error of the call.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.loss import Left, end_behind, what_is_left
from millstream.providers.ledger.handle.recovery import recover
from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.runtime import StorageError
from millstream.runtime.extending import SystemTarget

__all__ = ["WAIT_S_MAX", "EndAnswer", "LossAnswer", "MendingTarget"]

WAIT_S_MAX = 20.0
"""So long a recovery that was asked for looks for bookies, at most."""


class EndAnswer(msgspec.Struct, frozen=True):
    """The end of a ledger, or why it has none; `lost`: entries that were acknowledged and are not
    before it."""

    last: int = NOTHING
    length: int = 0
    lost: int = 0
    refusal: str = ""


class LossAnswer(msgspec.Struct, frozen=True):
    """As `Left`, or why it is not known."""

    last: int = NOTHING
    length: int = 0
    confirmed: int = NOTHING
    behind: int = 0
    away: list[str] = []
    refusal: str = ""


class MendingTarget(SystemTarget):
    """Gives ledgers their ends."""

    target_name = "$ledgers"
    open_to_clients = frozenset({"recover", "left", "give_up"})

    def __init__(self, context: HandleContext) -> None:
        self._context = context

    async def recover(self, ledger: int, wait_s: float) -> EndAnswer:
        """Fence a ledger, and give it an end with all that was acknowledged."""
        options = replace(self._context.options, recover_max_s=min(wait_s, WAIT_S_MAX))
        try:
            return ended(await recover(self._context._replace(options=options), ledger))
        except (LedgerError, StorageError) as error:
            return EndAnswer(refusal=said(error))

    async def left(self, ledger: int) -> LossAnswer:
        """Fence a ledger, and say what is left of it."""
        try:
            left = await what_is_left(self._context, ledger)
        except (LedgerError, StorageError) as error:
            return LossAnswer(refusal=said(error))
        return LossAnswer(left.last, left.length, left.confirmed, left.behind, list(left.away))

    async def give_up(self, ledger: int) -> EndAnswer:
        """End a ledger behind what is left of it now."""
        try:
            left: Left = await what_is_left(self._context, ledger)
            return ended(await end_behind(self._context, left), left.lost)
        except (LedgerError, StorageError) as error:
            return EndAnswer(refusal=said(error))


def ended(record: LedgerRecord, lost: int = 0) -> EndAnswer:
    return EndAnswer(record.last, record.length, lost)


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
