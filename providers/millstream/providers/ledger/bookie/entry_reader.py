"""Reading entries from segments, together with those that follow.

Owns: `EntryReader`, `SegmentFiles`. Invariants: every entry from the disk was checked. An entry
that is damaged or in unreadable sectors is distinguished from one that does not exist. At most
`files_max` segments are open.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Sequence

from millstream.providers.ledger.protocol.entry import HEAD_BYTES
from millstream.providers.ledger.protocol.errors import BookieOverloaded
from millstream.runtime.extending import DiskFile, DiskThread

from .cache import Cache
from .directory import Directory
from .form.index import Index
from .form.segment import offset_of, segment_of
from .form.walk import is_entry

__all__ = ["AHEAD_MAX", "EntryReader"]

AHEAD_MAX = 128
"""The largest number of entries that are read ahead."""


class SegmentFiles:
    """Segments that are open for reading. The file that was unused for the longest time is closed
    first."""

    def __init__(self, directory: Directory, files_max: int) -> None:
        self._directory = directory
        self._files_max = files_max
        self._files: OrderedDict[int, DiskFile] = OrderedDict()

    def get(self, segment: int) -> DiskFile:
        """Return the open file of a segment. Raises DirectoryRefused, OSError."""
        file = self._files.get(segment)
        if file is None:
            file = self._files[segment] = self._directory.open_segment(segment)
        self._files.move_to_end(segment)
        if len(self._files) > self._files_max:
            self._files.popitem(last=False)[1].close()
        return file

    def drop(self, segment: int) -> None:
        """Close the file of a segment that is removed."""
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for segment in list(self._files):
            self.drop(segment)


class EntryReader:
    """Returns entries from the cache or the disk.

    Args:
        thread: reads the disk.
        read_ahead_bytes: bytes of one read.

    Attributes: `damaged`: how often an entry was found damaged; `waiting`: disk reads in flight.
    """

    def __init__(
        self,
        index: Index,
        cache: Cache,
        files: SegmentFiles,
        thread: DiskThread,
        read_ahead_bytes: int,
    ) -> None:
        self._index = index
        self._cache = cache
        self._files = files
        self._thread = thread
        self._read_ahead_bytes = read_ahead_bytes
        self.damaged = self.waiting = 0

    async def entry(self, ledger: int, entry: int) -> bytes | None:
        """Return an entry that is in the index; None if it is damaged.

        Raises BookieOverloaded; DirectoryRefused, OSError: its file has changed.
        """
        packed = self._cache.get(ledger, entry)
        while packed is None:
            place = self._index.find(ledger, entry)
            if not place:
                return None  # the ledger was deleted in the meantime
            wanted = self._list_wanted(ledger, entry, place)
            try:
                job = self._thread.run(
                    read, self._files.get(segment_of(place)), ledger, wanted, self._read_ahead_bytes
                )
            except BlockingIOError as error:
                raise BookieOverloaded(f"too many reads wait: {error}") from None
            self.waiting += 1
            try:
                found = await job
            # the file was closed in favour of others, or because its entries were moved
            except ValueError:
                continue
            finally:
                self.waiting -= 1
            for number, body in found:
                if self._index.find(ledger, number):
                    self._cache.put(ledger, number, body)
            if not found or found[0][0] != entry:
                if self._index.find(ledger, entry) != place:
                    continue  # it was repaired or moved in the meantime
                self.damaged += 1
                return None
            packed = found[0][1]
        return packed

    def _list_wanted(self, ledger: int, entry: int, place: int) -> list[tuple[int, int]]:
        """Return this entry and those close after it: numbers and offsets."""
        start, segment = offset_of(place), segment_of(place)
        wanted = [(entry, start)]
        for number in range(entry + 1, entry + AHEAD_MAX):
            place = self._index.find(ledger, number)
            is_near = start < offset_of(place) < start + self._read_ahead_bytes
            if segment_of(place) != segment or not is_near:
                break
            wanted.append((number, offset_of(place)))
        return wanted


def read(
    file: DiskFile, ledger: int, wanted: Sequence[tuple[int, int]], size_bytes: int
) -> list[tuple[int, bytes]]:
    """Read entries that are close together; leave out damaged ones."""
    start = wanted[0][1]
    try:
        data = file.read_at(start, size_bytes)
    except OSError as error:
        refuse_lost(error)
        data = b""  # perhaps a sector of the entries that follow
    found = []
    for number, offset in wanted:
        body = entry_in(data, offset - start)
        if body is None and offset == start:
            body = read_alone(file, offset)
        if body is not None and is_entry(ledger, number, body):
            found.append((number, body))
    return found


def entry_in(data: bytes, at: int) -> bytes | None:
    """Return the bytes of the entry at an offset, if all of them are in `data`."""
    size = size_of(data[at : at + HEAD_BYTES])
    return data[at : at + size] if size and at + size <= len(data) else None


def read_alone(file: DiskFile, offset: int) -> bytes | None:
    """Read one entry and no other byte; None if that fails."""
    try:
        size = size_of(file.read_at(offset, HEAD_BYTES))
        return file.read_at(offset, size) if size and offset + size <= file.size_bytes else None
    except OSError as error:
        refuse_lost(error)
        return None


def refuse_lost(error: OSError) -> None:
    """Raise the error unless it means unreadable sectors, which count as damage of an entry."""
    if error.errno != errno.EIO:
        raise error


def size_of(head: bytes) -> int:
    """Return the size of an entry from its head, or 0 if the bytes are not a head."""
    if len(head) < HEAD_BYTES:
        return 0
    return HEAD_BYTES + int.from_bytes(head[40:44], "little")
