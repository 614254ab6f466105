"""What silos and clients ask a silo about the dead letters of one provider.

Owns: the target `$dead_letters/<provider>`. Not: the rows (`letters`), how an event reaches its
subscription (`Redriver`). Invariant: a letter is deleted only after its subscription has done it.
"""

from __future__ import annotations

from typing import Protocol

from millstream.runtime.extending import Role, SystemTarget, open_to, show_text
from millstream.streams.contracts.identity import StreamId

from .letters import LETTERS_MAX, DeadLetter, LetterRows

__all__ = ["DeadLettersTarget", "Redriver"]


class Redriver(Protocol):
    """What gives an event to the subscription that failed."""

    async def redrive(self, letter: DeadLetter, /) -> None:
        """Returns when it is done. Raises what the handler raises, and what calls raise."""
        ...


class DeadLettersTarget(SystemTarget):
    """The dead letters of one provider, as any of its silos gives them."""

    target_name = "$dead_letters"

    def __init__(self, rows: LetterRows, redriver: Redriver) -> None:
        self._rows = rows
        self._redriver = redriver

    @open_to(Role.OPERATOR)
    async def page(
        self, subscription: str, stream: StreamId | None, after: str, limit: int
    ) -> list[DeadLetter]:
        """Letters behind an id, in the order of ids. Raises ValueError (the limit)."""
        check_list(subscription, stream, limit)
        return [*await self._rows.list(subscription, stream, after, limit)]

    @open_to(Role.OPERATOR)
    async def list_damaged(
        self, subscription: str, stream: StreamId | None, after: str, limit: int
    ) -> list[str]:
        """Ids of letters behind an id that cannot be read. Raises ValueError (the limit)."""
        check_list(subscription, stream, limit)
        return [*await self._rows.list_damaged(subscription, stream, after, limit)]

    @open_to(Role.OPERATOR)
    async def get(self, letter_id: str) -> DeadLetter:
        """One letter. Raises LookupError, Corrupt."""
        letter = await self._rows.get(letter_id)
        if letter is None:
            raise LookupError(f"there is no dead letter {show_text(letter_id)}")
        return letter

    @open_to(Role.OPERATOR)
    async def delete(self, letter_id: str) -> bool:
        """Forget a letter; False: there was none."""
        return await self._rows.delete(letter_id)

    @open_to(Role.OPERATOR)
    async def redrive(self, letter_id: str) -> None:
        """Give the event to its subscription again, and forget the letter once that is done."""
        letter = await self.get(letter_id)
        await self._redriver.redrive(letter)
        await self._rows.delete(letter_id)


def check_list(subscription: str, stream: StreamId | None, limit: int) -> None:
    """Raise ValueError unless so many letters of these may be asked for."""
    if not 1 <= limit <= LETTERS_MAX:
        raise ValueError(f"limit is {limit}; it must be 1 to {LETTERS_MAX}")
    if stream is not None and not subscription:
        raise ValueError(f"stream {stream}: name its subscription, too")
