"""The start of a bookie: from a directory to its content, in a fixed order.

Owns: `open_directory`, `OpenedDirectory`. Invariants: nothing is read, and the metadata are not
asked, before the directory is locked. The number of a start is higher than all known ones. A
segment with a whole index file is not read. A directory that is damaged or older than before denies
no entries.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import NamedTuple

from millstream.runtime.extending import Disk, DiskFile, DiskThread

from .directory import ADVICE, Directory, make_refused
from .form.intervals import Intervals
from .form.loader import ANEW, LoadedDirectory, Loader
from .form.segment import FRAMES_START, seed_of
from .form.walk import Walk
from .options import AskKnown, HighWater, Known

__all__ = ["OpenedDirectory", "Scanned", "Threads", "load_segments", "open_directory"]

log = logging.getLogger("millstream.bookie")


class Scanned(NamedTuple):
    """How much was read at the start."""

    segments: int = 0
    size_bytes: int = 0


class Threads(NamedTuple):
    """The threads of a bookie: for work that an acknowledgement waits for, for work ahead of it,
    and for reads."""

    commit: DiskThread
    ahead: DiskThread
    read: DiskThread

    def close(self) -> None:
        for thread in self:
            thread.close()


@dataclass(frozen=True, slots=True)
class OpenedDirectory:
    """A directory that was read."""

    directory: Directory
    threads: Threads
    loaded: LoadedDirectory
    scanned: Scanned

    def release(self) -> None:
        self.directory.release()
        self.threads.close()


async def open_directory(
    disk: Disk, path: str, cluster: str, fresh: str, ask_known: AskKnown
) -> OpenedDirectory:
    """Lock a directory and read it. Raises DirectoryInUse, DirectoryRefused, OSError."""
    threads = Threads(*(disk.start_thread(f"bookie-{name}") for name in Threads._fields))
    directory = None
    try:
        directory = await threads.commit.run(Directory.claim, disk, path, cluster, fresh)
        known = await ask_known(directory.identity.directory)
        old_boot = directory.identity.boot
        boot = max(old_boot, known.high_water.boot) + 1
        await threads.commit.run(directory.start, boot)
        loaded, scanned = await threads.commit.run(load, directory)
    except BaseException:
        if directory is not None:
            directory.release()
        threads.close()
        raise
    loaded = judge(loaded, HighWater(old_boot, loaded.seen), known, path)
    return OpenedDirectory(directory, threads, loaded, scanned)


def load(directory: Directory) -> tuple[LoadedDirectory, Scanned]:
    """Remove the traces of a crash, and read all segments. Blocks. Raises DirectoryRefused,
    OSError."""
    directory.tidy()
    return load_segments(directory)


def load_segments(directory: Directory) -> tuple[LoadedDirectory, Scanned]:
    """Read all segments; change nothing. Blocks. Raises DirectoryRefused, OSError."""
    identity = directory.identity
    loader = Loader(identity.directory, identity.sequence)
    segments = size_bytes = 0
    for number in Intervals(identity.segments).numbers():
        sealed = directory.read_sealed(number)
        file = directory.open_segment(number)
        try:
            refuse_short(file, FRAMES_START if sealed is None else sealed.end)
            if sealed is not None:
                loader.take_sealed(sealed)
                continue
            walk = Walk(file, seed_of(identity.directory, number))
            loader.take_walk(number, walk)
            segments, size_bytes = segments + 1, size_bytes + walk.end - FRAMES_START
        finally:
            file.close()
    return loader.finish(), Scanned(segments, size_bytes)


def refuse_short(file: DiskFile, end: int) -> None:
    """Refuse a file that was cut: its size was durable before anything in it was acknowledged."""
    if file.size_bytes < end:
        fact = f"the file ends here, but had at least {end} bytes: it was emptied or truncated"
        raise make_refused(file.path, file.size_bytes, fact, ADVICE)


def judge(loaded: LoadedDirectory, found: HighWater, known: Known, path: str) -> LoadedDirectory:
    """Compare a directory with the facts that the metadata have, and note doubts."""
    doubts, water = [str(one) for one in loaded.doubts], known.high_water
    if water.boot > found.boot or water.sequence > found.sequence:
        text = f"the directory is an older copy: it has boot number {found.boot} and frame "
        doubts.append(f"{text}{found.sequence}, but had {water.boot} and {water.sequence}")
    if not doubts:
        return loaded
    for doubt in doubts:
        text = "%s: records may be lost, so no entry of ledgers below %d is denied: %s"
        log.error(text, path, known.next_ledger, doubt)
    loaded.state.doubt(known.next_ledger)
    sequence = max(loaded.seen, loaded.sequence, water.sequence)
    return replace(loaded, sequence=sequence, check=ANEW)
