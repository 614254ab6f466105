"""Calls of silos and clients about the dead letters of one provider.

Owns: the target `$dead_letters/<provider>`. Not: the rows (`letters`), delivery to the subscription
(`Redriver`). Invariant: a redrive deletes a letter only after the subscription has
processed its event.
"""

from __future__ import annotations

from typing import Protocol

from millstream.runtime.extending import Role, SystemTarget, open_to, show_text
from millstream.streams.contracts.identity import StreamId

from .letters import LETTERS_MAX, DeadLetter, LetterRows

__all__ = ["DeadLettersTarget", "Redriver"]


class Redriver(Protocol):
    """Delivers an event to the subscription that failed."""

    async def redrive(self, letter: DeadLetter, /) -> None:
        """Return when the event is processed. Raises the errors of the handler and of calls."""
        ...


class DeadLettersTarget(SystemTarget):
    """The dead letters of one provider. Any silo with the provider answers."""

    target_name = "$dead_letters"

    def __init__(self, rows: LetterRows, redriver: Redriver) -> None:
        self._rows = rows
        self._redriver = redriver

    @open_to(Role.OPERATOR)
    async def page(
        self, subscription: str, stream: StreamId | None, after: str, limit: int
    ) -> list[DeadLetter]:
        """Return at most `limit` dead letters whose ids follow the id `after`, in the order of ids.

        Raises ValueError for arguments that are not valid.
        """
        check_list(subscription, stream, limit)
        return [*await self._rows.list(subscription, stream, after, limit)]

    @open_to(Role.OPERATOR)
    async def list_damaged(
        self, subscription: str, stream: StreamId | None, after: str, limit: int
    ) -> list[str]:
        """Return at most `limit` ids of damaged dead letters, in order, after the id `after`.

        Raises ValueError for arguments that are not valid.
        """
        check_list(subscription, stream, limit)
        return [*await self._rows.list_damaged(subscription, stream, after, limit)]

    @open_to(Role.OPERATOR)
    async def get(self, letter_id: str) -> DeadLetter:
        """Return one dead letter.

        Raises LookupError if there is none with this id, and Corrupt if its row is damaged.
        """
        letter = await self._rows.get(letter_id)
        if letter is None:
            raise LookupError(f"there is no dead letter {show_text(letter_id)}")
        return letter

    @open_to(Role.OPERATOR)
    async def delete(self, letter_id: str) -> bool:
        """Delete a dead letter. Return False if there was none."""
        return await self._rows.delete(letter_id)

    @open_to(Role.OPERATOR)
    async def redrive(self, letter_id: str) -> None:
        """Deliver the event to its subscription again.

        The dead letter is deleted when the subscription has processed the event.
        """
        letter = await self.get(letter_id)
        await self._redriver.redrive(letter)
        await self._rows.delete(letter_id)


def check_list(subscription: str, stream: StreamId | None, limit: int) -> None:
    """Check the arguments that select dead letters.

    Raises ValueError if the limit is out of range, or a stream is given without its subscription.
    """
    if not 1 <= limit <= LETTERS_MAX:
        raise ValueError(f"limit is {limit}; it must be 1 to {LETTERS_MAX}")
    if stream is not None and not subscription:
        raise ValueError(f"stream {stream} is given without a subscription: give both, or neither")
