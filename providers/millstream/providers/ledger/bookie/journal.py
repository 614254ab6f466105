"""Group commit: records that are appended during a sync are written by the next one.

Owns: `Journal`: the queue of appends, and the one task that writes them. Not: the meaning of
records (`store`), files and their order (`directory`).

Invariants:

- A future ends only after the sync of its records. Futures end in the order of appends.
- At most one write is running. If it fails for another reason than lack of room, the journal stops
  for good, and no waiting or later record is acknowledged.
- The waiting bytes have a limit.
- An append is one synchronous step, so earlier checks still hold.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    BookieOverloaded,
    BookieReadOnly,
)
from millstream.runtime.extending import DiskFile, DiskFull, DiskThread

from .directory import Directory
from .form.frame import Frame, JournalRecord, RecordKind, frame_of, length_of
from .form.sealed import Sealed
from .form.segment import FRAMES_START, seed_of
from .options import BookieOptions

log = logging.getLogger("millstream.bookie")

__all__ = ["CONTROL_BYTES_MAX", "Journal", "Landing", "Watcher"]

CONTROL_BYTES_MAX = 1 << 20
"""Bytes beyond `unsynced_bytes_max` for fences and tombstones, which entries never displace."""
RECORD_BYTES = 24
RECORDS_MAX = 16_384
"""The largest number of records in one frame."""


class WaitingRecords(NamedTuple):
    """Records that are to be in one frame."""

    records: Sequence[JournalRecord]
    size_bytes: int
    future: asyncio.Future[None]


class Landing(Protocol):
    """The receiver of durable frames, which knows the meaning of records."""

    def begin_segment(self, segment: int) -> bytes:
        """Handle the beginning of a segment, and return the state to write first."""
        ...

    def land(
        self,
        offset: int,
        frame: Frame,
        records: Sequence[JournalRecord],
        sequence: int,
        previous: int,
    ) -> None:
        """Handle that a frame of the segment that was begun last is durable."""
        ...

    def end_segment(self) -> Sealed | None:
        """Handle the end of a segment, and return its index file, or None if it has no frames."""
        ...


class Watcher(Protocol):
    """Decides whether entries are accepted."""

    def free(self, free_bytes: int) -> None:
        """Handle the present number of free bytes of the disk."""
        ...

    def on_refused(self, error: DiskFull) -> None:
        """Handle a write that found no room."""
        ...

    def on_failed(self, error: Exception) -> None:
        """Handle that the journal has stopped."""
        ...


class Journal:
    """Writes frames after the one with `sequence` and `check`.

    Args:
        threads: one for the work that the next acknowledgement waits for, and one that allocates
            ahead.
        segment: the first segment to be begun.
    """

    def __init__(
        self,
        directory: Directory,
        options: BookieOptions,
        threads: tuple[DiskThread, DiskThread],
        landing: Landing,
        watcher: Watcher,
        *,
        segment: int,
        sequence: int,
        check: int,
    ) -> None:
        self.sequence = sequence
        self.segment = segment - 1
        self.unsynced_bytes = 0
        self._directory = directory
        self._options = options
        self._commit, self._ahead = threads
        self._landing = landing
        self._watcher = watcher
        self._check = check
        self._file: DiskFile | None = None
        self._seed = 0
        self._offset = FRAMES_START
        self._allocated = 0
        self._allocating: asyncio.Future[int] | None = None
        self._next: DiskFile | None = None
        self._queue: deque[WaitingRecords] = deque()
        self._wake = asyncio.Event()
        self._is_closing = self._must_roll = False
        self._in_flight: list[WaitingRecords] = []
        self.failure: Exception | None = None

    @property
    def has_frames(self) -> bool:
        """Whether the present segment has its state."""
        return self._offset > FRAMES_START

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._in_flight

    # -- appending

    def append(
        self, records: Sequence[JournalRecord], is_control: bool = False
    ) -> asyncio.Future[None]:
        """Queue records for one frame. The future ends when they are durable.

        Cancelling the future does not take them back. Raises BookieAway, BookieOverloaded. The
        future raises BookieAway, BookieReadOnly.
        """
        self.refuse()
        size = sum([len(record.body) for record in records]) + RECORD_BYTES * len(records)
        limit = self._options.unsynced_bytes_max + (CONTROL_BYTES_MAX if is_control else 0)
        if self.unsynced_bytes + size > limit and not self.is_idle:
            text = f"{self.unsynced_bytes} bytes wait for the disk"
            raise BookieOverloaded(f"{text}, unsynced_bytes_max is {limit}; retry later")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(WaitingRecords(records, size, future))
        self.unsynced_bytes += size
        self._wake.set()
        return future

    def wait_settled(self) -> asyncio.Future[None]:
        """Return a future that ends when all earlier appends are durable. Raises BookieAway."""
        return self.append((), is_control=True)

    def roll(self) -> asyncio.Future[None]:
        """End the present segment, and begin the next one; the future ends when that is durable.
        Raises the errors of `append`."""
        self._must_roll = True
        return self.append((), is_control=True)

    def refuse(self) -> None:
        """Raise BookieAway if nothing more can be appended."""
        if self.failure is not None:
            raise BookieAway(f"this bookie has stopped: {self.failure}")
        if self._is_closing:
            raise BookieAway("this bookie is closing")

    # -- writing

    async def work(self) -> None:
        """Write appended records until the journal fails or is closed."""
        try:
            while self.failure is None and not (self._is_closing and not self._queue):
                await self._wake.wait()
                self._wake.clear()
                while self._queue and self.failure is None:
                    await self._write(self._take())
        except asyncio.CancelledError:
            self.stop(RuntimeError("the journal was cancelled"))
            raise
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("%s: the journal failed", self._directory.path)
            self.stop(error)

    def _take(self) -> list[WaitingRecords]:
        """Take the records of the next frame."""
        self._in_flight = []
        size = count = 0
        while self._queue:
            size, count = size + self._queue[0].size_bytes, count + len(self._queue[0].records)
            is_over = size > self._options.frame_bytes_max or count > RECORDS_MAX
            if self._in_flight and is_over:
                break
            self._in_flight.append(self._queue.popleft())
        return self._in_flight

    async def _write(self, batch: list[WaitingRecords]) -> None:
        """Write one frame. Raises OSError when the journal cannot continue."""
        records = [record for waiting in batch for record in waiting.records]
        try:
            if records or self._must_roll:
                await self.write(records)
        except DiskFull as error:
            self._watcher.on_refused(error)
            text = f"{self._directory.path}: the disk is full: {error}; free space there"
            self._end(batch, BookieReadOnly(text))
            return
        if self.failure is None:  # else `stop` has told them
            self._end(batch, None)

    def _end(self, batch: list[WaitingRecords], error: Exception | None) -> None:
        self._in_flight = []
        for _, size, future in batch:
            self.unsynced_bytes -= size
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    async def write(self, records: Sequence[JournalRecord]) -> None:
        """Write one frame, in the next segment if this one is full. Raises OSError."""
        size = sum([len(record.body) for record in records])
        length = length_of(len(records), size)
        if self._must_roll or not self._fits(length) or not await self._has_room(length):
            await self._roll()
        if not self.has_frames:
            state = self._landing.begin_segment(self.segment)
            records = [JournalRecord(RecordKind.STATE, 0, 0, state), *records]
            await self._allocate(self._offset + length_of(len(records), size + len(state)))
        assert self._file is not None
        frame = frame_of(self._seed, self.sequence + 1, self._check, records)
        await self._commit.flush(self._file, self._offset, frame.parts)
        if not self._file.has_name:
            raise FileNotFoundError(errno.ENOENT, "removed while it was in use", self._file.path)
        offset, self._offset = self._offset, self._offset + frame.length
        previous, self._check = self._check, frame.check
        self.sequence += 1
        self._landing.land(offset, frame, records, self.sequence, previous)
        self._allocate_ahead()

    def _fits(self, length: int) -> bool:
        if self._file is None:
            return False
        return not self.has_frames or self._offset + length <= self._options.segment_bytes

    # -- segments

    async def _roll(self) -> None:
        """Begin the next segment, then seal the full one.

        In this order a sealed segment gets no more frames, even if there is no room for the next
        one.
        """
        await self._wait_allocated()
        file = self._next
        if file is None:
            directory, step = self._directory, self._options.allocate_bytes
            begin = directory.begin_segment
            file = await self._commit.run(begin, self.segment + 1, step, self.sequence)
        self._next = file
        await self._seal()
        self.release()
        self._file, self._next, self._allocated = file, None, file.size_bytes
        self.segment, self._offset = self.segment + 1, FRAMES_START
        self._must_roll = False
        self._seed = seed_of(self._directory.identity.directory, self.segment)

    async def _seal(self) -> None:
        sealed = self._landing.end_segment() if self.has_frames else None
        if sealed is not None:
            await self._commit.run(self._directory.seal, sealed)

    async def _has_room(self, length: int) -> bool:
        """Whether this file has, or can get, room for a frame. If not, another file may, since
        files have limits of their own."""
        try:
            await self._allocate(self._offset + length)
        except DiskFull:
            return not self.has_frames
        return True

    async def _allocate(self, size_bytes: int) -> None:
        """Allocate this many bytes of the file. Nothing is written beyond the allocation, since
        allocating writes zeros. Raises OSError."""
        self._collect()
        if size_bytes > self._allocated:
            await self._wait_allocated()
        if size_bytes > self._allocated:
            self._begin_allocation(size_bytes)
            assert self._allocating is not None
            await asyncio.wait((self._allocating,))
            self._collect(is_needed=True)

    async def _wait_allocated(self) -> None:
        """Wait for a running allocation."""
        if self._allocating is not None:
            await asyncio.wait((self._allocating,))
            self._collect()

    def _collect(self, is_needed: bool = False) -> None:
        """Take the result of a finished allocation. If an allocation that was made ahead found no
        room, that is not a failure. Raises OSError."""
        done = self._allocating
        if done is None or not done.done():
            return
        self._allocating = None
        assert self._file is not None
        self._allocated = self._file.size_bytes
        error = done.exception()
        if error is None:
            self._watcher.free(done.result())
        elif isinstance(error, DiskFull) and not is_needed:
            self._watcher.on_refused(error)
        else:
            raise error

    def _begin_allocation(self, size_bytes: int) -> None:
        step = self._options.allocate_bytes
        size = -(-size_bytes // step) * step
        assert self._file is not None
        self._allocating = self._ahead.run(allocate, self._file, size, self._directory)
        self._allocating.add_done_callback(look_at)  # `stop` may come before `_collect`

    def _allocate_ahead(self) -> None:
        """Begin to allocate when less than half a step is left."""
        self._collect()
        is_low = self._allocated - self._offset < self._options.allocate_bytes // 2
        if is_low and self._allocating is None and self._allocated < self._options.segment_bytes:
            self._begin_allocation(self._allocated + 1)

    # -- the end

    def stop(self, error: Exception) -> None:
        """Acknowledge nothing more."""
        if self.failure is None:
            self.failure = error
            self._watcher.on_failed(error)
        self._wake.set()
        waiting = [*self._in_flight, *self._queue]
        self._queue.clear()
        self._end(waiting, BookieAway(f"this bookie has stopped: {error}"))

    def close(self) -> None:
        """Take no more records; `work` ends when all are written."""
        self._is_closing = True
        self._wake.set()

    async def seal(self) -> None:
        """After `close`: write the index file, so that the next start reads no frames."""
        await self._wait_allocated()
        if self.failure is None:
            await self._seal()
            await self._commit.run(self._directory.note, self.sequence)

    def release(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close_files(self) -> None:
        """Close all files."""
        self.release()
        if self._next is not None:
            self._next.close()


def allocate(file: DiskFile, size_bytes: int, directory: Directory) -> int:
    """Allocate; return the free bytes of the disk then."""
    file.preallocate(size_bytes)
    return directory.free_bytes()


def look_at(done: asyncio.Future[int]) -> None:
    """Retrieve an error, so that the event loop does not report it."""
    if not done.cancelled():
        done.exception()
