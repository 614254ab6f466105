"""Segments of a journal, made frame by frame, as files in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tests.providers.ledger.bookie.kit import entry

from millstream.providers.ledger.bookie.form.frame import Frame, JournalRecord, RecordKind, frame_of
from millstream.providers.ledger.bookie.form.segment import FRAMES_START
from millstream.providers.ledger.bookie.form.walk import Walk
from millstream.runtime.extending import DiskFile

SEED = 77


class Content:
    """A file that consists of these frames. Reads of the sectors in `bad` fail."""

    def __init__(self, *frames: bytes, bad: Sequence[int] = ()) -> None:
        self.data = bytearray(bytes(FRAMES_START) + b"".join(frames))
        self.size_bytes = len(self.data)
        self._bad = bad

    def read_at(self, offset: int, size: int) -> bytes:
        if any(offset <= at < offset + size for at in self._bad):
            raise OSError(5, "cannot be read")
        return bytes(self.data[offset : offset + size])

    def file(self) -> DiskFile:
        return cast(DiskFile, self)

    def walk(self) -> Walk:
        return Walk(self.file(), SEED)


class Journal:
    """Makes consecutive frames, which may go to different segments."""

    def __init__(self, sequence: int = 0, check: int = 0) -> None:
        self.sequence, self.check = sequence, check

    def frame(self, *records: JournalRecord) -> bytes:
        return b"".join(self.made(*records).parts)

    def made(self, *records: JournalRecord) -> Frame:
        """Make the next frame, with the offsets of its bodies."""
        self.sequence += 1
        frame = frame_of(SEED, self.sequence, self.check, records)
        self.check = frame.check
        return frame

    def frames(self, count: int) -> list[bytes]:
        """Make frames with one entry each of ledger 1, numbered from 0."""
        return [self.frame(put(1, number)) for number in range(count)]


def put(ledger: int, number: int) -> JournalRecord:
    """Make the record of an entry that says that all earlier entries are confirmed."""
    return JournalRecord(RecordKind.ENTRY, ledger, number, entry(ledger, number))
