"""Checking the directory of a bookie that does not run: every check of every frame and entry.

Owns: `verify`, `Verified`, `Fault`. Not: the order of frames (`form.loader`). Invariants: nothing
is changed. No bookie has the directory during the check. Traces of a crash, such as a torn end, are
distinguished from damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from millstream.providers.ledger.bookie.directory import ADVICE, NEWER_ADVICE, make_refused
from millstream.providers.ledger.bookie.form.envelope import Newer, NotWhole
from millstream.providers.ledger.bookie.form.frame import SECTOR_BYTES, RecordKind
from millstream.providers.ledger.bookie.form.identity import (
    IDENTITY,
    IDENTITY_BYTES_MAX,
    Identity,
    identity_in,
)
from millstream.providers.ledger.bookie.form.intervals import Intervals
from millstream.providers.ledger.bookie.form.loader import Loader, is_same
from millstream.providers.ledger.bookie.form.sealed import INDEX_BYTES_MAX, Sealed, unpack_sealed
from millstream.providers.ledger.bookie.form.segment import (
    FRAMES_START,
    SegmentHead,
    head_in,
    index_name,
    number_in,
    place_of,
    seed_of,
    segment_name,
)
from millstream.providers.ledger.bookie.form.walk import Walk, Walked, bytes_at
from millstream.providers.ledger.protocol.errors import DirectoryInUse
from millstream.runtime.extending import Disk, DiskFile, read_file

__all__ = ["Fault", "Verified", "verify"]

PIECE_BYTES = 1 << 20
COPIES = "start the bookie: it repairs each entry of which another bookie has a good replica, and "
COPIES += "`millstream ledger bookies` lists the other entries; for these, restore the file from a "
COPIES += "backup"
MAKE_ANEW = "remove this file: the bookie reads the segment, and writes the file again"


class Fault(NamedTuple):
    """One damage: its place, and a remedy."""

    file: str
    offset: int
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.file}: offset {self.offset}: {self.what}. What can be done: {self.advice}"


@dataclass(slots=True)
class Verified:
    """The findings about a directory. `notes`: oddities that do no harm."""

    path: str
    identity: Identity
    segments: int
    frames: int
    entries: int
    ledgers: int
    size_bytes: int
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]


def verify(disk: Disk, path: str) -> Verified:
    """Read a whole directory, and check all that can be checked. Blocks; changes nothing.

    Raises DirectoryInUse (a bookie has it), DirectoryRefused (it belongs to no bookie, or to a
    newer version), OSError.
    """
    try:
        lock = disk.lock(path)
    except FileNotFoundError:
        raise make_refused(path, 0, "the directory does not exist", "check the path") from None
    except NotADirectoryError:
        raise make_refused(path, 0, "the path is not a directory", "give a directory") from None
    if lock is None:
        text = f"{path}: a running bookie uses this directory"
        raise DirectoryInUse(f"{text}; stop its silo or program first")
    try:
        return Verification(disk, path).run()
    finally:
        lock.release()


class Verification:
    """One check of a locked directory."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._names = disk.list(path)
        self._faults: list[Fault] = []
        self._notes: list[str] = []
        self._identity = self._identify()
        self._loader = Loader(self._identity.directory, self._identity.sequence)
        self._frames = self._entries = self._bytes = 0
        self._ledgers: set[int] = set()
        self._last: tuple[int, Walked] | None = None  # the newest frame, and its segment
        self._lost: set[tuple[int, int]] = set()  # reported already
        self._places: dict[int, tuple[int, int]] = {}
        self._ends: dict[int, int] = {}  # of frames in this segment, by sequence
        self._sealed: dict[int, int] = {}  # the last frame in an index file, by segment

    def run(self) -> Verified:
        self._look_at_names()
        listed = Intervals(self._identity.segments)
        numbers = [number for name in self._names if (number := number_in(name)) is not None]
        present = [number for number in numbers if number in listed]
        for number in present:
            self._segment(number)
        self._finish()
        return Verified(
            self._path,
            self._identity,
            len(present),
            self._frames,
            self._entries,
            len(self._ledgers),
            self._bytes,
            tuple(self._faults),
            tuple(self._notes),
        )

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _fault(self, name: str, offset: int, what: str, advice: str) -> None:
        self._faults.append(Fault(self._file(name), offset, what, advice))

    # -- the identity

    def _identify(self) -> Identity:
        """Return the identity. If it is lost, take it from the segments. Raises
        DirectoryRefused."""
        try:
            return identity_in(read_file(self._disk, self._file(IDENTITY), IDENTITY_BYTES_MAX))
        except Newer as error:
            raise make_refused(
                self._file(IDENTITY), 0, f"the file has {error}", NEWER_ADVICE
            ) from None
        except FileNotFoundError:
            what = "the file is missing"
        except (NotWhole, ValueError, OSError) as error:
            what = f"the file is damaged: {error}"
        numbers = [number for name in self._names if (number := number_in(name)) is not None]
        heads = filter(None, (self._head(number) for number in numbers))
        head = next(heads, None)
        if head is None:
            text = "the directory is empty" if not self._names else "there are no files of a bookie"
            advice = "give the directory of a bookie; if this was one, restore its files"
            raise make_refused(self._path, 0, f"{text}: {IDENTITY!r}: {what}", advice)
        self._fault(IDENTITY, 0, what, ADVICE)
        return Identity(head.directory, "?", segments=tuple((one, one) for one in numbers))

    def _head(self, number: int) -> SegmentHead | None:
        try:
            file = self._disk.open(self._file(segment_name(number)), can_write=False)
        except OSError:
            return None
        try:
            return head_in(file.read_at(0, SECTOR_BYTES))
        except (Newer, NotWhole, OSError, ValueError):
            return None
        finally:
            file.close()

    def _look_at_names(self) -> None:
        """Check that the listed files exist, and no others."""
        listed = Intervals(self._identity.segments)
        for wanted in listed.numbers():
            if segment_name(wanted) not in self._names:
                self._fault(segment_name(wanted), 0, "the file is missing", ADVICE)
        for name in self._names:
            segment, index = number_in(name), number_in(name, ".idx")
            number = segment if segment is not None else index
            if number is None and name != IDENTITY:
                self._notes.append(f"{self._file(name)}: the file does not belong to the bookie")
            elif number is not None and number not in listed:
                self._look_at_unlisted(name, number)

    def _look_at_unlisted(self, name: str, number: int) -> None:
        last = self._identity.last_segment
        if number <= last or (number == last + 1 and not self._has_frames(number)):
            self._notes.append(
                f"{self._file(name)}: the file is unused; a start or a deletion left it"
            )
        else:
            what = f"{IDENTITY!r} is older than this file: it lists segments up to {last}"
            self._fault(name, 0, what, ADVICE)

    def _has_frames(self, number: int) -> bool:
        try:
            file = self._disk.open(self._file(segment_name(number)), can_write=False)
        except OSError:
            return False
        try:
            walk = Walk(file, seed_of(self._identity.directory, number))
            return next(iter(walk), None) is not None
        finally:
            file.close()

    # -- segments

    def _segment(self, number: int) -> None:
        name = segment_name(number)
        try:
            file = self._disk.open(self._file(name), can_write=False)
        except OSError as error:
            self._fault(name, 0, f"the file cannot be opened: {error}", COPIES)
            return
        try:
            if file.size_bytes < FRAMES_START:
                what = "the file ends here, but had a head and frames: it was emptied or truncated"
                self._fault(name, file.size_bytes, what, ADVICE)
                return
            self._check_head(number, file)
            faults = len(self._faults)
            self._places.clear()
            self._ends.clear()
            walk = Told(file, seed_of(self._identity.directory, number), self._tell(number))
            self._loader.take_walk(number, walk)
            self._check_index(number, walk.end, faults)
            self._look_behind(number, file, walk)
            self._bytes += file.size_bytes
        finally:
            file.close()

    def _check_head(self, number: int, file: DiskFile) -> None:
        name, data = segment_name(number), bytes_at(file, 0, SECTOR_BYTES)[0]
        try:
            head = head_in(data)
        except Newer as error:
            raise make_refused(self._file(name), 0, f"the file has {error}", NEWER_ADVICE) from None
        except (NotWhole, ValueError) as error:
            self._fault(name, 0, f"the head is damaged: {error}", "nothing: the head is not needed")
            return
        if (head.directory, head.segment) != (self._identity.directory, number):
            what = f"the file is segment {head.segment} of directory {head.directory}"
            self._fault(name, 0, what, ADVICE)

    def _tell(self, number: int) -> Callable[[Walked, int], None]:
        def tell(walked: Walked, end: int) -> None:
            self._judge_last(walked, number)
            if walked.offset != end:
                what = f"there is no intact frame up to offset {walked.offset}, but there was one"
                self._fault(segment_name(number), end, what, COPIES)
                self._lost.add((number, walked.offset))
            self._last = (number, walked)
            self._frames += 1
            self._ends[walked.front.sequence] = walked.offset + walked.front.length
            self._count(number, walked)

        return tell

    def _count(self, number: int, walked: Walked) -> None:
        for row in walked.front.rows:
            if row.kind == RecordKind.ENTRY:
                self._entries += 1
                self._ledgers.add(row.ledger)
                place = place_of(number, walked.offset + row.start)
                self._places[place] = (row.ledger, row.entry)

    def _judge_last(self, following: Walked | None, number: int = 0) -> None:
        """Decide whether damage in the newest frame is a torn end. It is one if the segment's index
        does not have the frame, if the journal continues in its place, or if the journal ends there
        beyond all durable frames."""
        if self._last is None or not self._last[1].bad:
            return
        segment, last = self._last
        if following is not None:
            front = following.front
            is_torn = segment != number and is_same(last, front.sequence, front.previous)
        else:
            is_torn = last.front.sequence > self._identity.sequence
        if is_torn or self._sealed.get(segment, last.front.sequence) < last.front.sequence:
            self._note_torn(segment, last.offset)
            return
        self._lost.add((segment, last.offset))
        for at in last.bad:
            row = last.front.rows[at]
            what = f"entry {row.entry} of ledger {row.ledger} fails its checksum"
            if row.kind != RecordKind.ENTRY:
                what = f"the state in frame {last.front.sequence} fails its checksum"
            self._fault(segment_name(segment), last.offset + row.start, what, COPIES)

    def _note_torn(self, segment: int, offset: int) -> None:
        text = "the process ended during a write, and acknowledged nothing of the write"
        self._notes.append(f"{self._file(segment_name(segment))}: offset {offset}: {text}")

    def _look_behind(self, number: int, file: DiskFile, walk: Walk) -> None:
        """Check the bytes after the last frame: zeros, the torn end of a crash, or damage."""
        for at in range(walk.end, file.size_bytes, PIECE_BYTES):
            data, is_whole = bytes_at(file, at, min(PIECE_BYTES, file.size_bytes - at))
            if not is_whole:
                what = "a sector after the last frame cannot be read; it may have held a frame"
                self._fault(segment_name(number), at, what, COPIES)
                self._lost.add((number, walk.end))
                return
            if data.strip(b"\0"):
                self._note_torn(number, walk.end)
                return

    # -- index files

    def _check_index(self, number: int, end: int, faults: int) -> None:
        name = index_name(number)
        if name not in self._names:
            return  # the last one after a crash
        try:
            data = read_file(self._disk, self._file(name), INDEX_BYTES_MAX)
            sealed = unpack_sealed(data, self._identity.directory, number)
        except Newer as error:
            raise make_refused(self._file(name), 0, f"the file has {error}", NEWER_ADVICE) from None
        except (NotWhole, ValueError, OSError) as error:
            self._fault(name, 0, f"the file is damaged: {error}", MAKE_ANEW)
            return
        self._sealed[number] = sealed.last
        if sealed.last >= 0 and self._ends.get(sealed.last) != sealed.end:
            what = f"the frames were intact up to offset {sealed.end}, frame {sealed.last} included"
            self._fault(segment_name(number), min(end, sealed.end), what, COPIES)
        elif len(self._faults) == faults and (wrong := self._find_misplaced(sealed)):
            ledger, entry = wrong
            what = f"entry {entry} of ledger {ledger} is not where the index says"
            self._fault(name, 0, what, MAKE_ANEW)

    def _find_misplaced(self, sealed: Sealed) -> tuple[int, int] | None:
        for found in sealed.ledgers:
            for base, places in found.places():
                for at, place in enumerate(places):
                    if place and self._places.get(place) != (found.ledger, base + at):
                        return found.ledger, base + at
        return None

    def _finish(self) -> None:
        self._judge_last(None)
        said = {fault.file for fault in self._faults}
        for segment, offset, why in self._loader.finish().doubts:
            if not segment:  # the end is missing
                name, offset = self._newest()
                if self._file(name) not in said:
                    self._fault(name, offset, why, COPIES)
            elif (segment, offset) not in self._lost:
                self._fault(segment_name(segment), offset, why, COPIES)

    def _newest(self) -> tuple[str, int]:
        """Return where the journal ends."""
        if self._last is None:
            return IDENTITY, 0
        segment, walked = self._last
        return segment_name(segment), walked.offset + walked.front.length


class Told(Walk):
    """A walk that calls `tell` with each frame, and with the offset at which the previous frame
    ended. If the frame begins at a higher offset, there is a gap."""

    __slots__ = ("_tell",)

    def __init__(self, file: DiskFile, seed: int, tell: Callable[[Walked, int], None]) -> None:
        super().__init__(file, seed)
        self._tell = tell

    def __iter__(self) -> Iterator[Walked]:
        end = self.end
        for walked in super().__iter__():
            self._tell(walked, end)
            end = self.end
            yield walked
