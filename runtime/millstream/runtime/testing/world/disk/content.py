"""The bytes of one file: as programs see them, and as they would survive a crash.

This module owns `Content` and `some_of`. Synced bytes survive every crash. Of the rest, each sector
becomes any of its versions since then, by chance, and the size becomes any between the old and the
new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from millstream.runtime.testing.world.env import Random

__all__ = ["Content", "some_of"]

T = TypeVar("T")


class Content:
    """The content of a file."""

    __slots__ = ("_sizes", "_unsynced", "data", "durable", "sector_bytes", "unreadable")

    def __init__(self, sector_bytes: int, data: bytes = b"") -> None:
        self.sector_bytes = sector_bytes
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.unreadable: set[int] = set()
        self._unsynced: dict[int, list[bytes]] = {}  # versions of each sector, oldest first
        self._sizes: list[int] = []

    def write(self, offset: int, data: bytes) -> None:
        """Change the bytes that programs see."""
        self.extend(offset + len(data))
        self.data[offset : offset + len(data)] = data
        size = self.sector_bytes
        for sector in range(offset // size, -(-(offset + len(data)) // size)):
            self._unsynced.setdefault(sector, []).append(self._sector(sector))
            if offset <= sector * size and (sector + 1) * size <= offset + len(data):
                self.unreadable.discard(sector)  # a disk puts a whole new sector elsewhere

    def extend(self, size_bytes: int) -> None:
        """Make the file at least this long, with zeros."""
        if size_bytes > len(self.data):
            self.data += bytes(size_bytes - len(self.data))
            self._sizes.append(size_bytes)

    def _sector(self, number: int) -> bytes:
        at = number * self.sector_bytes
        return bytes(self.data[at : at + self.sector_bytes])

    def sync(self) -> None:
        """Make all bytes durable."""
        grow(self.durable, len(self.data))
        for sector, versions in self._unsynced.items():
            self._keep(sector, versions[-1])
        self._forget()

    def fail_sync(self, rng: Random) -> None:
        """Behave like the system when a sync fails: it counts the bytes as written.

        For a while it may still have them in its cache.
        """
        is_cached = rng.random() < 0.5
        for sector in some_of(list(self._unsynced), rng):
            grow(self.durable, min(len(self.data), (sector + 1) * self.sector_bytes))
            self._keep(sector, self._unsynced[sector][-1])
        if not is_cached:
            self.data[:] = self.durable + bytes(len(self.data) - len(self.durable))
        self._forget()

    def crash(self, rng: Random) -> None:
        """Lose some of the bytes that are not durable, by chance."""
        old, new = len(self.durable), max([len(self.durable), *self._sizes])
        size = rng.choice((old, new, rng.randint(old, new)))
        grow(self.durable, new)
        for sector in some_of(sorted(self._unsynced), rng):
            self._keep(sector, rng.choice((self._unsynced[sector][-1], *self._unsynced[sector])))
        del self.durable[size:]
        self.data = bytearray(self.durable)
        self._forget()

    def flip_bit(self, offset: int, bit: int) -> None:
        """Damage a byte, synced or not."""
        sector, inside = divmod(offset, self.sector_bytes)
        versions = [bytearray(version) for version in self._unsynced.get(sector, ())]
        images = [(self.data, offset), (self.durable, offset), *((one, inside) for one in versions)]
        for image, at in images:
            if at < len(image):
                image[at] ^= 1 << bit
        if versions:
            self._unsynced[sector] = [bytes(version) for version in versions]

    def _keep(self, sector: int, version: bytes) -> None:
        at = sector * self.sector_bytes
        self.durable[at : at + len(version)] = version

    def _forget(self) -> None:
        self._unsynced = {}
        self._sizes = []

    def check(self) -> None:
        """Assert that no sector is outside of the file, and that no durable byte is beyond
        its end.
        """
        assert all(sector * self.sector_bytes < len(self.data) for sector in self._unsynced)
        assert len(self.durable) <= len(self.data)


def grow(image: bytearray, size_bytes: int) -> None:
    """Extend the bytes with zeros to at least this size."""
    image += bytes(max(0, size_bytes - len(image)))


def some_of(things: Sequence[T], rng: Random) -> list[T]:
    """Choose which of the things under way happened: none, all, a first part, or any, in order.

    The extremes are as likely as the mixtures, however many things there are.
    """
    match rng.choice(("none", "all", "first", "any")):
        case "none":
            return []
        case "all":
            return list(things)
        case "first":
            return list(things[: rng.randint(0, len(things))])
    return [thing for thing in things if rng.random() < 0.5]
