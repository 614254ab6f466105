"""The directory of a bookie: its lock, its identity and its files.

Owns: `Directory`: the lock, the identity file, making and removing segments. The functions here
block. Callers on an event loop run them in one thread, so that identities are written one after the
other. Invariants: a file that may have acknowledged entries is in the identity first, and leaves
the identity before it is removed. A directory that does not fit is not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from millstream.providers.ledger.protocol.errors import DirectoryInUse, DirectoryRefused
from millstream.runtime.extending import DirLock, Disk, DiskFile, DiskFull, read_file, replace_file

from .form.envelope import Newer, NotWhole
from .form.frame import SECTOR_BYTES
from .form.identity import (
    IDENTITY,
    IDENTITY_BYTES_MAX,
    Identity,
    identity_bytes,
    identity_in,
)
from .form.intervals import Intervals
from .form.sealed import INDEX_BYTES_MAX, Sealed, pack_sealed, unpack_sealed
from .form.segment import (
    head_bytes,
    head_in,
    index_name,
    number_in,
    seed_of,
    segment_name,
)
from .form.walk import Walk

__all__ = ["Directory"]

log = logging.getLogger("millstream.bookie")

ADVICE = (
    "restore the original directory; with an empty one the bookie gets a new name and has none of "
    "its entries, so queues wait for the entries that no other bookie has"
)
NEWER_ADVICE = "use the newer version of Millstream"


class Directory:
    """A directory that this bookie alone has, until `release`.

    Args:
        path: the path of the directory.
        lock: the lock, which is held.
    """

    def __init__(self, disk: Disk, path: str, lock: DirLock, identity: Identity) -> None:
        self.disk = disk
        self.path = path
        self.identity = identity
        self._lock = lock

    @classmethod
    def claim(cls, disk: Disk, path: str, cluster: str, fresh: str) -> Directory:
        """Lock the directory and read its identity. A new directory gets the name `fresh`.

        Raises DirectoryInUse, DirectoryRefused, OSError.
        """
        disk.make_dir(path)
        lock = disk.lock(path)
        if lock is None:
            raise DirectoryInUse(
                f"{path}: another bookie uses this directory; stop it, or wait until it has stopped"
            )
        try:
            return cls(disk, path, lock, identity_of(disk, path, cluster, fresh))
        except BaseException:
            lock.release()
            raise

    def release(self) -> None:
        self._lock.release()

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def write(self, identity: Identity) -> None:
        """Make an identity durable."""
        replace_file(self.disk, self.file(IDENTITY), identity_bytes(identity))
        self.identity = identity

    def start(self, boot: int) -> None:
        """Store the number of a start. It must be higher than all earlier ones."""
        assert boot > self.identity.boot, (boot, self.identity.boot)
        self.write(msgspec.structs.replace(self.identity, boot=boot))

    def note(self, sequence: int) -> None:
        """Store that the journal is durable up to this sequence."""
        self.write(with_sequence(self.identity, sequence))

    def free_bytes(self) -> int:
        """Return how many bytes may still be written here."""
        return self.disk.free_bytes(self.path)

    # -- segments

    def open_segment(self, number: int) -> DiskFile:
        """Open a segment for reading, and check that its name is right.

        Raises DirectoryRefused, FileNotFoundError, OSError.
        """
        file = self.disk.open(self.file(segment_name(number)), can_write=False)
        try:
            self._check_head(file, number)
        except BaseException:
            file.close()
            raise
        return file

    def _check_head(self, file: DiskFile, number: int) -> None:
        """Check the head of a segment. A damaged head is no reason to refuse, since the checks of
        frames include the directory."""
        try:
            head = head_in(file.read_at(0, SECTOR_BYTES))
        except Newer as error:
            raise make_refused(file.path, 0, f"the file has {error}", NEWER_ADVICE) from None
        except (NotWhole, OSError) as error:
            log.warning("%s: offset 0: the head of a segment is damaged: %s", file.path, error)
            return
        if (head.directory, head.segment) != (self.identity.directory, number):
            found = f"the file is segment {head.segment} of directory {head.directory}"
            raise make_refused(file.path, 0, found, ADVICE)

    def begin_segment(self, number: int, allocate_bytes: int, sequence: int) -> DiskFile:
        """Make the next segment, durably and listed in the identity; `sequence` is durable
        already."""
        path = self.file(segment_name(number))
        with suppress(FileNotFoundError):
            self.disk.unlink(path)  # left by a start or an attempt that never used it
        file = self.disk.create(path)
        try:
            file.write_at(0, head_bytes(self.identity.directory, number))
            file.preallocate(max(SECTOR_BYTES, allocate_bytes))
        except DiskFull:
            file.close()
            self.disk.unlink(path)
            raise
        self.disk.sync_dir(self.path)
        self.write(with_sequence(self.identity.with_segment(number), sequence))
        return file

    def seal(self, sealed: Sealed) -> None:
        """Write an index file."""
        path = self.file(index_name(sealed.segment))
        replace_file(self.disk, path, pack_sealed(sealed))

    def read_sealed(self, number: int) -> Sealed | None:
        """Return the content of a segment's index file; None if it is missing or damaged."""
        path = self.file(index_name(number))
        try:
            data = read_file(self.disk, path, INDEX_BYTES_MAX)
            return unpack_sealed(data, self.identity.directory, number)
        except FileNotFoundError:
            return None
        except Newer as error:
            raise make_refused(path, 0, f"the file has {error}", NEWER_ADVICE) from None
        except (NotWhole, OSError, ValueError) as error:
            log.warning(
                "%s: the index file is damaged, reading its segment instead: %s", path, error
            )
            return None

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove segments that nobody needs."""
        identity = self.identity
        for number in numbers:
            identity = identity.without_segment(number)
        self.write(identity)
        self._unlink(numbers)

    def _unlink(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            for name in (segment_name(number), index_name(number)):
                with suppress(FileNotFoundError):
                    self.disk.unlink(self.file(name))
        self.disk.sync_dir(self.path)

    def missing(self) -> list[str]:
        """Return the files that must exist and do not."""
        numbers = Intervals(self.identity.segments).numbers()
        wanted = [IDENTITY, *(segment_name(number) for number in numbers)]
        names = set[str]()
        with suppress(FileNotFoundError):  # the directory is gone with all of its files
            names.update(self.disk.list(self.path))
        return [self.file(name) for name in wanted if name not in names]

    def tidy(self) -> None:
        """Remove unused segments that a crash left behind.

        Raises DirectoryRefused: files are missing, or there are files that the identity should
        list.
        """
        if missing := self.missing():
            fact = f"the file is missing; missing files in total: {len(missing)}"
            raise make_refused(missing[0], 0, fact, ADVICE)
        extra = self._list_unlisted()
        last = self.identity.last_segment
        for number in extra:
            if number > last + 1 or (number == last + 1 and self._has_frames(number)):
                path = self.file(segment_name(number))
                fact = f"{IDENTITY!r} is older than this file: it lists segments up to {last}"
                raise make_refused(path, 0, fact, ADVICE)
        if extra:
            self._unlink(extra)

    def _list_unlisted(self) -> list[int]:
        """Return the segments that the identity does not list."""
        listed = Intervals(self.identity.segments)
        names = self.disk.list(self.path)
        found = {number_in(name, suffix) for name in names for suffix in (".seg", ".idx")}
        return sorted(number for number in found if number is not None and number not in listed)

    def _has_frames(self, number: int) -> bool:
        try:
            file = self.disk.open(self.file(segment_name(number)), can_write=False)
        except FileNotFoundError:
            return False
        try:
            walk = Walk(file, seed_of(self.identity.directory, number))
            return next(iter(walk), None) is not None
        finally:
            file.close()


def identity_of(disk: Disk, path: str, cluster: str, fresh: str) -> Identity:
    """Read the identity of a directory, or make a new one. Raises DirectoryRefused."""
    file = f"{path}/{IDENTITY}"
    try:
        identity = identity_in(read_file(disk, file, IDENTITY_BYTES_MAX))
    except FileNotFoundError:
        return new_identity(disk, path, cluster, fresh)
    except Newer as error:
        raise make_refused(file, 0, f"the file has {error}", NEWER_ADVICE) from None
    except (NotWhole, ValueError) as error:
        raise make_refused(file, 0, f"the file is damaged: {error}", ADVICE) from None
    if identity.cluster != cluster:
        text = f"the directory belongs to cluster {identity.cluster!r}, not {cluster!r}"
        advice = (
            "use the state store that the directory was created with, or give each cluster and "
            "each state store its own directory. If that store was in memory, its rows are gone; "
            "give the silo an empty directory"
        )
        raise make_refused(file, 0, text, advice)
    return identity


def new_identity(disk: Disk, path: str, cluster: str, fresh: str) -> Identity:
    names = [name for name in disk.list(path) if not name.startswith(f"{IDENTITY}.")]
    if names:
        text = f"the directory has no file {IDENTITY!r}, but other files"
        advice = f"if this was the directory of a bookie, restore its file {IDENTITY!r}; if not, "
        advice += "give the bookie an empty directory"
        raise make_refused(f"{path}/{names[0]}", 0, text, advice)
    identity = Identity(fresh, cluster)
    replace_file(disk, f"{path}/{IDENTITY}", identity_bytes(identity))
    return identity


def with_sequence(identity: Identity, sequence: int) -> Identity:
    return msgspec.structs.replace(identity, sequence=max(sequence, identity.sequence))


def make_refused(path: str, offset: int, fact: str, advice: str) -> DirectoryRefused:
    return DirectoryRefused(f"{path}: offset {offset}: {fact}. What can be done: {advice}")
