"""Reading entries from segments, with those that follow them.

Owns: `EntryReader`, `SegmentFiles`. Invariants: every entry that comes from the disk was checked;
an entry that is damaged, or whose sectors cannot be read, is told from one that is not there; at
most `files_max` segments are open.
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
"""So many entries are read ahead at most."""


class SegmentFiles:
    """Segments that are open for reading; those used longest ago are closed."""

    def __init__(self, directory: Directory, files_max: int) -> None:
        self._directory = directory
        self._files_max = files_max
        self._files: OrderedDict[int, DiskFile] = OrderedDict()

    def get(self, segment: int) -> DiskFile:
        """Raises DirectoryRefused, OSError."""
        file = self._files.get(segment)
        if file is None:
            file = self._files[segment] = self._directory.open_segment(segment)
        self._files.move_to_end(segment)
        if len(self._files) > self._files_max:
            self._files.popitem(last=False)[1].close()
        return file

    def drop(self, segment: int) -> None:
        """A segment is removed."""
        file = self._files.pop(segment, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for segment in list(self._files):
            self.drop(segment)


class EntryReader:
    """Gets entries from the cache or the disk.

    Args:
        thread: does the reading.
        read_ahead_bytes: read at once.

    Attributes: `damaged`, how often an entry was found damaged; `waiting`, reads of the disk that
    are under way.
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
        """An entry that the index has; None if it is damaged.

        Raises BookieOverloaded; DirectoryRefused, OSError: its file is not what it was.
        """
        packed = self._cache.get(ledger, entry)
        while packed is None:
            place = self._index.find(ledger, entry)
            if not place:
                return None  # the ledger was deleted meanwhile
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
            except ValueError:  # the file was closed: for others, or since its entries moved
                continue
            finally:
                self.waiting -= 1
            for number, body in found:
                if self._index.find(ledger, number):
                    self._cache.put(ledger, number, body)
            if not found or found[0][0] != entry:
                if self._index.find(ledger, entry) != place:
                    continue  # it was repaired or moved meanwhile
                self.damaged += 1
                return None
            packed = found[0][1]
        return packed

    def _list_wanted(self, ledger: int, entry: int, place: int) -> list[tuple[int, int]]:
        """This entry, and those that stand behind it within reach: number and offset."""
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
    """Read entries that stand close together; what is damaged is left out."""
    start = wanted[0][1]
    try:
        data = file.read_at(start, size_bytes)
    except OSError as error:
        refuse_lost(error)
        data = b""  # a sector of what follows, perhaps
    found = []
    for number, offset in wanted:
        body = entry_in(data, offset - start)
        if body is None and offset == start:
            body = read_alone(file, offset)
        if body is not None and is_entry(ledger, number, body):
            found.append((number, body))
    return found


def entry_in(data: bytes, at: int) -> bytes | None:
    """The bytes that an entry there should have, if they are all there."""
    size = size_of(data[at : at + HEAD_BYTES])
    return data[at : at + size] if size and at + size <= len(data) else None


def read_alone(file: DiskFile, offset: int) -> bytes | None:
    """Read one entry, and no byte more; None if that fails."""
    try:
        size = size_of(file.read_at(offset, HEAD_BYTES))
        return file.read_at(offset, size) if size and offset + size <= file.size_bytes else None
    except OSError as error:
        refuse_lost(error)
        return None


def refuse_lost(error: OSError) -> None:
    """Only sectors that cannot be read are damage of an entry."""
    if error.errno != errno.EIO:
        raise error


def size_of(head: bytes) -> int:
    """How many bytes an entry has with its head; 0: this is none."""
    if len(head) < HEAD_BYTES:
        return 0
    return HEAD_BYTES + int.from_bytes(head[40:44], "little")
