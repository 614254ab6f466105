"""Dead letters as they are stored: one row for each event and subscription.

Owns: their rows and ids. Not: when they are written (`agent`), who may ask for them (`target`).
Invariants: a letter is never replaced by another; where tokens stay, storing one again is harmless;
where they do not, each has an id of its own, so that none is taken for known.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from millstream.runtime import Conflict, StateStore
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.token import Token

from .handler import DeliveryFailure

__all__ = ["LETTERS_MAX", "OUTBOX", "DeadLetter", "LetterRows", "letter_id", "unsent_letter"]

LETTERS_MAX = 1_000  # that one `list` may ask for
LIST_BYTES_MAX = 1 << 20  # of letters in one list, and half of a frame; one may be larger
ROWS_PER_SCAN = 16  # a row may be as large as a message
SAFE = " :@#"
OUTBOX = "outbox"
"""In place of a subscription: the event was never published."""
NO_FENCE = 0


class DeadLetter(msgspec.Struct, frozen=True):
    """A stored failure, with the wall time at which it was given up, and its id."""

    failure: DeliveryFailure
    stored_s: float
    id: str = ""


def letter_id(failure: DeliveryFailure, unique: str = "") -> str:
    """The id of a letter: printable text, ordered by subscription, stream and token.

    Args:
        unique: what tells it from others of that token, where a provider's tokens do not stay.
    """
    parts = (failure.subscription, *failure.stream, str(failure.token))
    return "/".join([*(quote(part, safe=SAFE) for part in parts), *filter(None, (unique,))])


def unsent_letter(provider: str, message: OutMessage, why: str, wall_s: float) -> DeadLetter:
    """A message of an outbox, of one item, that its queue refuses for good.

    Its subscription is `OUTBOX`, its number in the outbox the token's; a redrive publishes it.
    """
    assert message.mark is not None, "an outbox numbers its messages"
    (item,) = message.items
    failure = DeliveryFailure(
        provider=provider,
        subscription=OUTBOX,
        stream=message.stream,
        token=Token(0, message.mark.seq),
        body=bytes(item),
        headers=dict(message.headers),
        attempts=1,
        error=why,
        grain_key=message.mark.producer,
        decision="dead_letter",
    )
    return DeadLetter(failure, wall_s, letter_id(failure, quote(message.mark.producer, safe=SAFE)))


class LetterRows:
    """The dead letters of one provider, in its state store.

    Args:
        frame_bytes_max: of the silo; a list has half of a frame at most, or one letter.
    """

    def __init__(
        self, store: StateStore, provider: str, frame_bytes_max: int = 2 * LIST_BYTES_MAX
    ) -> None:
        self._store = store
        self._list_bytes_max = min(LIST_BYTES_MAX, frame_bytes_max // 2)
        self._prefix = f"dead/{provider}/"

    async def put(self, letter: DeadLetter) -> None:
        """Store a letter under its id; storing it again is harmless. Raises StorageUnavailable."""
        try:
            key, data = f"{self._prefix}{letter.id}", msgspec.msgpack.encode(letter)
            await self._store.write(key, data, None, NO_FENCE)
        except Conflict:
            return  # stored by an earlier try whose answer was lost

    async def list(
        self, subscription: str, stream: StreamId | None, after: str, limit: int
    ) -> Sequence[DeadLetter]:
        """Up to `limit` letters behind the id `after`, in the order of ids; [] at the end."""
        parts = [subscription] if stream is None else [subscription, *stream]
        prefix = self._prefix + "".join(f"{quote(part, safe=SAFE)}/" for part in parts if part)
        last = f"{self._prefix}{after}" if after else ""
        found: list[DeadLetter] = []
        size_bytes = 0
        while len(found) < limit:
            count = min(ROWS_PER_SCAN, limit - len(found))
            rows = await self._store.scan(prefix, last, count)
            for key, row in rows:
                size_bytes += len(row.data)
                if found and size_bytes > self._list_bytes_max:
                    return found
                found.append(self._decode(key, row.data))
                last = key
            if len(rows) < count:
                break
        return found

    def _decode(self, key: str, data: bytes) -> DeadLetter:
        letter = msgspec.msgpack.decode(data, type=DeadLetter)
        return msgspec.structs.replace(letter, id=key.removeprefix(self._prefix))

    async def get(self, letter_id: str) -> DeadLetter | None:
        """The letter of an id."""
        key = f"{self._prefix}{letter_id}"
        row = await self._store.read(key)
        return None if row is None else self._decode(key, row.data)

    async def delete(self, letter_id: str) -> bool:
        """Forget a letter; False: there is none of that id."""
        key = f"{self._prefix}{letter_id}"
        row = await self._store.read(key)
        if row is None:
            return False
        try:
            await self._store.clear(key, row.etag, NO_FENCE)
        except Conflict:
            return False  # letters do not change: somebody else has deleted it
        return True
