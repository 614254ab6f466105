"""The entries of a directory as they are on the disk, while a bookie has it or none does.

Owns: `View`, `FileBookies`, for tools that read without the cluster. Not: what a running bookie
answers (`bookie`). Invariants: nothing is changed, nothing is locked; an entry is given only if it
is whole; what is not there may be newer than this look, so nothing is ever denied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.providers.ledger.bookie.directory import ADVICE, Directory, make_refused
from millstream.providers.ledger.bookie.entry_reader import read_alone
from millstream.providers.ledger.bookie.form.envelope import Newer, NotWhole
from millstream.providers.ledger.bookie.form.identity import (
    IDENTITY,
    IDENTITY_BYTES_MAX,
    Identity,
    identity_in,
)
from millstream.providers.ledger.bookie.form.segment import offset_of, segment_of
from millstream.providers.ledger.bookie.form.walk import is_entry
from millstream.providers.ledger.bookie.startup import load_segments
from millstream.providers.ledger.protocol.entry import NOTHING, head_of
from millstream.providers.ledger.protocol.errors import BookieAway, DirectoryRefused
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.runtime.extending import DirLock, Disk, DiskFile, read_file

__all__ = ["FileBookies", "View", "bookie_of", "read_view"]

TRIES_MAX = 5
"""Looks at a directory whose bookie removes segments meanwhile."""


class NoLock:
    """Looking needs none."""

    def release(self) -> None:
        """Nothing is held."""


def read_view(disk: Disk, path: str) -> View:
    """Look at a directory. Blocks. Raises DirectoryRefused, OSError."""
    for attempt in range(TRIES_MAX):
        try:
            return View(disk, path, NoLock())
        except FileNotFoundError:
            if attempt == TRIES_MAX - 1:
                raise
    raise AssertionError


def bookie_of(disk: Disk, path: str) -> str:
    """Whose directory it is. Blocks. Raises DirectoryRefused, OSError."""
    return identity_at(disk, path).directory


def identity_at(disk: Disk, path: str) -> Identity:
    """What a directory says of itself. Raises DirectoryRefused, OSError."""
    file = f"{path}/{IDENTITY}"
    try:
        return identity_in(read_file(disk, file, IDENTITY_BYTES_MAX))
    except FileNotFoundError:
        raise make_refused(file, 0, "there is no such file", "name a bookie's directory") from None
    except Newer as error:
        raise make_refused(file, 0, f"it has {error}", "take that version") from None
    except (NotWhole, ValueError) as error:
        raise make_refused(file, 0, f"it is damaged: {error}", ADVICE) from None


class View:
    """A directory at one moment. Attributes: `name`, its bookie's."""

    def __init__(self, disk: Disk, path: str, lock: DirLock) -> None:
        identity = identity_at(disk, path)
        self.name = identity.directory
        self._directory = Directory(disk, path, lock, identity)
        loaded, _ = load_segments(self._directory)
        self._index = loaded.index
        # a bookie that starts writes these anew, since nobody knows whether they are durable
        self._newest = {(one.ledger, one.entry): one.body for one in loaded.carried}
        self._files: dict[int, DiskFile] = {}

    def read(self, ledger: int, first: int, entries_max: int, bytes_max: int) -> Found:
        """Entries from `first` on, one after the other, up to the limits but one at least."""
        found: list[bytes] = []
        while len(found) < entries_max and (body := self._entry(ledger, first + len(found))):
            bytes_max -= len(body)
            if found and bytes_max < 0:
                break
            found.append(body)
        return Found(tuple(found), Missing.UNKNOWN, self.find_confirmed(ledger))

    def find_confirmed(self, ledger: int) -> int:
        """The highest entry that heads of entries call confirmed."""
        newest = [
            head_of(body).confirmed for (one, _), body in self._newest.items() if one == ledger
        ]
        return max([self._index.find_confirmed(ledger), *newest], default=NOTHING)

    def _entry(self, ledger: int, entry: int) -> bytes | None:
        body = self._newest.get((ledger, entry))
        place = self._index.find(ledger, entry)
        if body is None and place:
            body = read_alone(self._file(segment_of(place)), offset_of(place))
        return body if body is not None and is_entry(ledger, entry, body) else None

    def _file(self, segment: int) -> DiskFile:
        file = self._files.get(segment)
        if file is None:
            file = self._files[segment] = self._directory.open_segment(segment)
        return file

    def close(self) -> None:
        """Close its files."""
        for file in self._files.values():
            file.close()


class FileBookies:
    """Directories instead of bookies, which only read; what handles call `Bookies`."""

    def __init__(self, views: Mapping[str, View]) -> None:
        self._views = views

    def _view(self, bookie: str) -> View:
        view = self._views.get(bookie)
        if view is None:
            raise BookieAway(f"the directory of bookie {bookie} is not here")
        return view

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        raise BookieAway(f"the directory of bookie {bookie} is only read here")

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        raise BookieAway(f"the directory of bookie {bookie} is only read here")

    async def read(
        self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int, term: int, /
    ) -> Found:
        try:
            return self._view(bookie).read(ledger, first, entries_max, bytes_max)
        except (OSError, DirectoryRefused) as error:
            raise BookieAway(f"bookie {bookie}: {error}") from None

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        return self._view(bookie).find_confirmed(ledger)

    async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
        """It knows what its files say."""

    async def suspect(self, bookie: str, ledger: int, entry: int, /) -> None:
        """Nothing is repaired here."""

    def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
        """Those whose directories are here."""
        return sorted(bookies, key=lambda name: name not in self._views)

    async def look(self) -> None:
        """All that there are are known."""

    def unwilling(self) -> Mapping[str, str]:
        return {}

    def writable(self) -> Mapping[str, float]:
        return {}
