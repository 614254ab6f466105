"""Dead letters: events that were given up, stored with payload and traceback.

Owns: their rows, the `FailureHandler` contract and its default. Invariant: a dead letter is stored
before the cursor moves past the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from millstream.runtime import Conflict, StateStore
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "DeliveryFailure",
    "FailureHandler",
    "GiveUpDecision",
    "KeepDeadLetters",
]

GiveUpDecision = Annotated[
    Literal["dead_letter", "skip", "pause"], "what becomes of an event that was given up"
]


class DeliveryFailure(msgspec.Struct, frozen=True):
    """What is known of an event that was given up."""

    provider: str
    subscription: str
    stream: StreamId
    token: Token
    body: bytes
    headers: dict[str, str]
    attempts: int
    error: str


class FailureHandler(Protocol):
    """Decides what becomes of an event that was given up."""

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision: ...


class KeepDeadLetters:
    """The default: store every one."""

    async def give_up(self, failure: DeliveryFailure, /) -> GiveUpDecision:
        return "dead_letter"


class DeadLetter(msgspec.Struct, frozen=True):
    """A stored failure, with the wall time at which it was given up."""

    failure: DeliveryFailure
    stored_s: float


class DeadLetters:
    """The dead letters of one provider, in its state store."""

    def __init__(self, store: StateStore, provider: str) -> None:
        self._store = store
        self._prefix = f"dead/{provider}/"

    async def put(self, letter: DeadLetter) -> None:
        """Store a letter; storing it again is harmless. Raises StorageUnavailable."""
        failure = letter.failure
        key = f"{self._prefix}{failure.subscription}\x1f{failure.stream}\x1f{failure.token}"
        try:
            await self._store.write(key, msgspec.msgpack.encode(letter), None, 0)
        except Conflict:
            return  # stored by an earlier try whose answer was lost

    async def list(self, subscription: str = "", limit: int = 100) -> Sequence[DeadLetter]:
        """Up to `limit` letters, of one subscription or of all."""
        prefix = f"{self._prefix}{subscription}\x1f" if subscription else self._prefix
        rows = await self._store.scan(prefix, "", limit)
        return [msgspec.msgpack.decode(row.data, type=DeadLetter) for _, row in rows]
