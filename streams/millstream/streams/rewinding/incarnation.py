"""The incarnation of a provider that positions belong to: an id that is made once, with its store.

A position is a number that a provider has assigned. A rebuilt cluster, or a provider with another
state store, assigns the same numbers to other messages, under the same names. A program that stores
positions therefore stores the incarnation as well, and sends it with them. Owns: the row, and the
comparison. Not: the callers (`target`, `retain_target`). Invariant: a state store and a provider's
name have one incarnation for ever, even if several silos ask first at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from millstream.runtime import ConfigError, Conflict, StateStore
from millstream.runtime.extending import seal_content, unseal

__all__ = ["Incarnation", "check_incarnation"]

NO_FENCE = 0


class Incarnation:
    """The incarnation of one provider, in one silo.

    Args:
        store: the store of the provider's rows.
        new_id: makes a random number of up to 63 bits.
    """

    def __init__(self, store: StateStore, provider: str, new_id: Callable[[], int]) -> None:
        self._store = store
        self._key = f"incarnation/{provider}"
        self._new_id = new_id
        self._known = ""

    async def text(self) -> str:
        """16 hex digits; made if there is none yet. Raises Corrupt, StorageError."""
        while not self._known:
            row = await self._store.read(self._key)
            if row is None:
                await self._make()
            else:
                self._known = unseal(self._key, row.data).content.decode()
        return self._known

    async def _make(self) -> None:
        data = seal_content(self._key, f"{self._new_id():016x}".encode())
        with contextlib.suppress(Conflict):  # another silo was first
            await self._store.write(self._key, data, None, NO_FENCE)


def check_incarnation(provider: str, asked: str, own: str) -> None:
    """Refuse positions of another incarnation; an empty `asked` comes without positions.

    Raises ConfigError with both.
    """
    if asked not in ("", own):
        raise ConfigError(
            f"stream provider {provider!r} has incarnation {own} here, but the positions are of "
            f"incarnation {asked}: the cluster or its state store was created again, so the "
            "positions now name other messages. Start without the positions: give a Spark query "
            "a new checkpoint"
        )
