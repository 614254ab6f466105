"""Dead letters as they are stored: one row for each event and subscription.

Owns: their rows and ids. Not: writing them (`agent`), access to them (`target`). Invariants: no
letter replaces another one. With stable tokens, storing a letter again does no harm. Without them,
each letter has an id of its own, so no letter is mistaken for a known one. A row is sealed, and a
damaged row is listed as damaged and never returned.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from millstream.runtime import Conflict, Corrupt, StateStore
from millstream.runtime.extending import DamageLog, open_row, seal_content
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.token import Token

from .handler import DeliveryFailure

__all__ = ["LETTERS_MAX", "OUTBOX", "DeadLetter", "LetterRows", "letter_id", "unsent_letter"]

log = logging.getLogger("millstream.streams")

LETTERS_MAX = 1_000  # the largest `limit` of one list
LIST_BYTES_MAX = 1 << 20  # size of one list, and half of a frame; a single letter may be larger
ROWS_PER_SCAN = 16  # a row may be as large as a message
SAFE = " :@#"
OUTBOX = "outbox"
"""Stands in place of a subscription: the event was never published."""
NO_FENCE = 0


class DeadLetter(msgspec.Struct, frozen=True):
    """A stored event that was given up.

    Attributes:
        failure: the facts about the event.
        stored_s: wall time at which it was given up, in seconds since 1970.
        id: the id of the letter, for `DeadLetters.get`, `delete` and `redrive`.
    """

    failure: DeliveryFailure
    stored_s: float
    id: str = ""


def letter_id(failure: DeliveryFailure, unique: str = "") -> str:
    """The id of a letter: printable text, ordered by subscription, stream and token.

    `unique` distinguishes letters of one token, if the provider's tokens are not stable.
    """
    parts = (failure.subscription, *failure.stream, str(failure.token))
    return "/".join([*(quote(part, safe=SAFE) for part in parts), *filter(None, (unique,))])


def unsent_letter(provider: str, message: OutMessage, why: str, wall_s: float) -> DeadLetter:
    """The letter of an outbox message with one item that its queue refuses for good.

    Its subscription is `OUTBOX`, and its token has the message's number in the outbox. A redrive
    publishes it.
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

    `frame_bytes_max`: of the silo; a list has at most half of a frame, or one letter.
    """

    def __init__(
        self, store: StateStore, provider: str, frame_bytes_max: int = 2 * LIST_BYTES_MAX
    ) -> None:
        self._store = store
        self._list_bytes_max = min(LIST_BYTES_MAX, frame_bytes_max // 2)
        self._prefix = f"dead/{provider}/"
        self._decoder = msgspec.msgpack.Decoder(DeadLetter)
        self._damage = DamageLog(log)

    async def put(self, letter: DeadLetter) -> None:
        """Store a letter under its id; a repeated call does no harm. Raises StorageUnavailable."""
        try:
            key = f"{self._prefix}{letter.id}"
            data = seal_content(key, msgspec.msgpack.encode(letter))
            await self._store.write(key, data, None, NO_FENCE)
        except Conflict:
            return  # stored by an earlier attempt whose answer was lost

    async def list(
        self, subscription: str, stream: StreamId | None, after: str, limit: int
    ) -> Sequence[DeadLetter]:
        """Up to `limit` letters after the id `after`, in the order of ids; [] at the end.

        Damaged letters are left out (`list_damaged`), and the log names them. Raises StorageError.
        """
        prefix = self._prefix_of(subscription, stream)
        last = f"{self._prefix}{after}" if after else ""
        found: list[DeadLetter] = []
        size_bytes = 0
        while len(found) < limit:
            count = min(ROWS_PER_SCAN, limit - len(found))
            rows = await self._store.scan(prefix, last, count)
            for last, row in rows:
                letter = self._whole(last, row.data)
                if letter is None:
                    continue
                size_bytes += len(row.data)
                if found and size_bytes > self._list_bytes_max:
                    return found
                found.append(letter)
            if len(rows) < count:
                break
        return found

    async def list_damaged(
        self, subscription: str, stream: StreamId | None, after: str, limit: int
    ) -> Sequence[str]:
        """Ids of up to `limit` damaged letters after the id `after`. Raises StorageError.

        Reads all letters until it has found that many.
        """
        prefix = self._prefix_of(subscription, stream)
        last = f"{self._prefix}{after}" if after else ""
        found: list[str] = []
        while rows := await self._store.scan(prefix, last, ROWS_PER_SCAN):
            for last, row in rows:
                if self._whole(last, row.data) is None:
                    found.append(last.removeprefix(self._prefix))
                if len(found) == limit:
                    return found
        return found

    def _prefix_of(self, subscription: str, stream: StreamId | None) -> str:
        parts = [subscription] if stream is None else [subscription, *stream]
        return self._prefix + "".join(f"{quote(part, safe=SAFE)}/" for part in parts if part)

    def _whole(self, key: str, data: bytes) -> DeadLetter | None:
        """Return the dead letter of a row, or None if the row is damaged.

        The log has a line about such a row.
        """
        try:
            letter = self._decode(key, data)
        except Corrupt as error:
            self._damage.tell(key, error)
            return None
        self._damage.is_whole(key)
        return letter

    def _decode(self, key: str, data: bytes) -> DeadLetter:
        letter = open_row(key, data, self._decoder.decode)
        return msgspec.structs.replace(letter, id=key.removeprefix(self._prefix))

    async def get(self, letter_id: str) -> DeadLetter | None:
        """Return the dead letter with an id, or None if there is none.

        Raises Corrupt, StorageError.
        """
        key = f"{self._prefix}{letter_id}"
        row = await self._store.read(key)
        return None if row is None else self._decode(key, row.data)

    async def delete(self, letter_id: str) -> bool:
        """Delete a dead letter, even a damaged one.

        Return False if there is no dead letter with that id.
        """
        key = f"{self._prefix}{letter_id}"
        row = await self._store.read(key)
        if row is None:
            return False
        try:
            await self._store.clear(key, row.etag, NO_FENCE)
        except Conflict:
            return False  # letters never change, so another caller has deleted it
        return True
