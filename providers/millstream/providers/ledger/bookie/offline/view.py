"""The entries of a directory as they are on disk, whether a bookie has the directory or not.

Owns: `View`, `FileBookies`, for tools that read without the cluster. Not: the answers of a running
bookie (`bookie`). Invariants: nothing is changed, nothing is locked. An entry is returned only if
it is whole. A missing entry may be newer than this view, so none is ever denied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.providers.ledger.bookie.directory import (
    ADVICE,
    NEWER_ADVICE,
    Directory,
    make_refused,
)
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
"""Attempts to read a directory whose bookie removes segments in the meantime."""


class NoLock:
    """No lock: a view needs none."""

    def release(self) -> None:
        """Nothing to release."""


def read_view(disk: Disk, path: str) -> View:
    """Read a directory. Blocks. Raises DirectoryRefused, OSError."""
    for attempt in range(TRIES_MAX):
        try:
            return View(disk, path, NoLock())
        except FileNotFoundError:
            if attempt == TRIES_MAX - 1:
                raise
    raise AssertionError


def bookie_of(disk: Disk, path: str) -> str:
    """Return the name of the directory's bookie. Blocks. Raises DirectoryRefused, OSError."""
    return identity_at(disk, path).directory


def identity_at(disk: Disk, path: str) -> Identity:
    """Return the identity of a directory. Raises DirectoryRefused, OSError."""
    file = f"{path}/{IDENTITY}"
    try:
        return identity_in(read_file(disk, file, IDENTITY_BYTES_MAX))
    except FileNotFoundError:
        raise make_refused(
            file, 0, "the file does not exist", "give the directory of a bookie"
        ) from None
    except Newer as error:
        raise make_refused(file, 0, f"the file has {error}", NEWER_ADVICE) from None
    except (NotWhole, ValueError) as error:
        raise make_refused(file, 0, f"the file is damaged: {error}", ADVICE) from None


class View:
    """A directory at one moment. Attributes: `name`, that of its bookie."""

    def __init__(self, disk: Disk, path: str, lock: DirLock) -> None:
        identity = identity_at(disk, path)
        self.name = identity.directory
        self._directory = Directory(disk, path, lock, identity)
        loaded, _ = load_segments(self._directory)
        self._index = loaded.index
        # at its start, a bookie writes these again, since it is unknown whether they are durable
        self._newest = {(one.ledger, one.entry): one.body for one in loaded.carried}
        self._files: dict[int, DiskFile] = {}

    def read(self, ledger: int, first: int, entries_max: int, bytes_max: int) -> Found:
        """Return consecutive entries from `first` on, up to the limits but at least one."""
        found: list[bytes] = []
        while len(found) < entries_max and (body := self._entry(ledger, first + len(found))):
            bytes_max -= len(body)
            if found and bytes_max < 0:
                break
            found.append(body)
        return Found(tuple(found), Missing.UNKNOWN, self.find_confirmed(ledger))

    def find_confirmed(self, ledger: int) -> int:
        """Return the highest entry that heads of entries name as confirmed."""
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
        """Close the files."""
        for file in self._files.values():
            file.close()


class FileBookies:
    """Directories in place of bookies, for reading only. Implements the contract `Bookies` of
    handles."""

    def __init__(self, views: Mapping[str, View]) -> None:
        self._views = views

    def _view(self, bookie: str) -> View:
        view = self._views.get(bookie)
        if view is None:
            raise BookieAway(f"the directory of bookie {bookie} was not given")
        return view

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        raise BookieAway(f"the directory of bookie {bookie} is open for reading only")

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        raise BookieAway(f"the directory of bookie {bookie} is open for reading only")

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
        """Ignored: the files are only read."""

    async def suspect(self, bookie: str, ledger: int, entry: int, /) -> None:
        """Ignored: nothing is repaired here."""

    def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
        """Return those first whose directories are here."""
        return sorted(bookies, key=lambda name: name not in self._views)

    async def look(self) -> None:
        """Nothing to find: all bookies are known."""

    def unwilling(self) -> Mapping[str, str]:
        return {}

    def writable(self) -> Mapping[str, float]:
        return {}
