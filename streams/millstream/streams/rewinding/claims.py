"""Claims of a reader's name: one run of a reader outside uses the name at a time.

A run claims the name and renews its claim, and each renewal raises `beat`. A run that finds the
claim of another run watches it. A claim whose beat has not changed for some time may be taken over.
Clocks of two machines are not compared: the waiting run uses its own clock. A run that has lost its
name is refused, so two runs that both believe to own it do no harm. Owns: the rows, `claim`. Not:
watching (`outside`). Source: fencing tokens, as for queues.
"""

from __future__ import annotations

import msgspec

from millstream.runtime import ConfigError, Conflict, Corrupt, Etag, StateStore
from millstream.runtime.extending import seal_content, unseal

__all__ = ["Holder", "ReaderClaims", "claim"]

NO_FENCE = 0


class Holder(msgspec.Struct, array_like=True, frozen=True):
    """The run that owns a name, and how often it has claimed it."""

    run: str
    beat: int


def claim(known: Holder | None, run: str, over: Holder | None) -> Holder | None:
    """The row after a claim, or None if another run owns the name.

    `over`: the claim to take over. A claim of another run, or a later beat, is not taken over.
    """
    if known is None:
        return Holder(run, 1)
    return Holder(run, known.beat + 1) if known.run == run or known == over else None


class ReaderClaims:
    """The claims of one provider's readers, in its state store; no other part writes them."""

    def __init__(self, store: StateStore, provider: str) -> None:
        self._store = store
        self._prefix = f"reader/{provider}/"
        self._decoder = msgspec.msgpack.Decoder(Holder)

    async def claim(self, reader: str, run: str, over: Holder | None) -> Holder:
        """Claim or renew a name; returns the owner after that. Raises StorageError."""
        while True:
            known, etag = await self._read(reader)
            new = claim(known, run, over)
            if new is None:
                assert known is not None
                return known
            try:
                key = self._prefix + reader
                data = seal_content(key, msgspec.msgpack.encode(new))
                await self._store.write(key, data, etag, NO_FENCE)
            except Conflict:
                continue
            return new

    async def release(self, reader: str, run: str | None) -> None:
        """Give a name up, if this run owns it. None stands for any run. Raises StorageError."""
        while True:
            known, etag = await self._read(reader)
            if known is None or etag is None or run not in (None, known.run):
                return
            try:
                await self._store.clear(self._prefix + reader, etag, NO_FENCE)
            except Conflict:
                continue
            return

    async def check(self, reader: str, run: str) -> None:
        """Raises ConfigError: another run owns the name; StorageError."""
        known, _ = await self._read(reader)
        if known is not None and known.run != run:
            raise ConfigError(
                f"reader {reader!r}: this run ({run}) lost the name to another run ({known.run}). "
                "Use a name in one query at a time, or give each query a name of its own"
            )

    async def _read(self, reader: str) -> tuple[Holder | None, Etag | None]:
        row = await self._store.read(self._prefix + reader)
        if row is None:
            return None, None
        try:
            content = unseal(self._prefix + reader, row.data).content
            return self._decoder.decode(content), row.etag
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"row {self._prefix + reader!r} is not a claim: {error}") from None
