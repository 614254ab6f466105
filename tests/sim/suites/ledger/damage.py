"""Damage to the replicas of one bookie in a simulated run, and the wait for their repair.

Owns: `Damage`, and a view of the replicas on simulated disks. Invariants: only one directory of a
run is damaged, so each entry with two acknowledgements has a good replica elsewhere. The newest
bytes of a journal are never damaged, because such damage cannot be told from a torn end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
from tests.sim.suites.run.record import Run

from millstream.providers.ledger import LedgerOptions, ScrubOptions
from millstream.providers.ledger.bookie.form.segment import offset_of, segment_name, segment_of
from millstream.providers.ledger.bookie.offline.view import read_view
from millstream.providers.ledger.inspection import BookieRecord, LedgerRecord, LedgerState
from millstream.providers.ledger.metadata.witness import Witness, witness_key
from millstream.providers.ledger.protocol.entry import HEAD_BYTES
from millstream.providers.ledger.protocol.errors import DirectoryRefused
from millstream.providers.ledger.recovery.needs import spans_of
from millstream.runtime import MemoryStateStore
from millstream.runtime.extending import unseal
from millstream.runtime.testing import Random, SimCluster, SimDisk

__all__ = ["Damage", "bad_copies", "copies_at", "flip"]

T = TypeVar("T")

FIRST_S = (5.0, 25.0)
LOOK_S = 1.0
SCRUB_EVERY_S = 10.0
REPAIRED_S = 120.0
"""The time after the last fault within which all replicas are repaired."""
NEWEST_BYTES = 16_384
"""The end of a journal that is never damaged."""
RANGE_MAX = 100_000
SCOPE = "ledger/sim/"


def copies_at(disk: SimDisk, path: str) -> Iterator[tuple[int, int, str, int]]:
    """Yield ledger, entry, file and offset of each replica that a start would find in a
    directory."""
    with closing(read_view(disk, path)) as view:
        for ledger, placed in view._index.ledgers.items():
            for base, places in placed.runs:
                for at, place in enumerate(places):
                    if place:
                        file = f"{path}/{segment_name(segment_of(place))}"
                        yield ledger, base + at, file, offset_of(place)


def flip(disk: SimDisk, path: str, ledger: int | None = None, entry: int | None = None) -> int:
    """Flip a bit in the payload of one or all replicas in a directory; return their number."""
    found = [
        (file, offset)
        for of, number, file, offset in copies_at(disk, path)
        if ledger in {None, of} and entry in {None, number}
    ]
    for file, offset in found:
        disk.flip_bit(file, offset + HEAD_BYTES, 3)
    return len(found)


def bad_copies(
    disks: Mapping[str, tuple[SimDisk, str]], records: Sequence[LedgerRecord]
) -> list[tuple[str, int, int]]:
    """Find damaged or missing replicas of sealed entries: bookie, ledger, entry.

    `disks`: the disk and the path of each bookie.
    """
    bad = []
    for bookie, (disk, path) in disks.items():
        with closing(read_view(disk, path)) as view:
            for record in records:
                ends = (range(span.first, span.last + 1) for span in spans_of(record))
                for entry in (entry for span in ends for entry in span):
                    if bookie in record.holders(entry) and not view._entry(record.ledger, entry):
                        bad.append((bookie, record.ledger, entry))
    return bad


class Damage:
    """Damages replicas of one bookie of a run; `rng` chooses the time and the replicas."""

    def __init__(self, run: Run, rng: Random, store: MemoryStateStore) -> None:
        self._run = run
        self._rng = rng
        self._store = store

    def options(self, options: LedgerOptions) -> LedgerOptions:
        """Return options with frequent passes of the scrubber and quick retries of repairs."""
        scrub = ScrubOptions(
            scrub_every_s=SCRUB_EVERY_S,
            scrub_bytes_per_s=self._rng.choice((2**16, 2**23)),
            retry_after_s=10.0,
        )
        return replace(options, scrub=scrub)

    async def play(self, cluster: SimCluster) -> None:
        """Once in the run, flip bits in some or all old replicas of one bookie."""
        await asyncio.sleep(self._rng.uniform(*FIRST_S))
        name, share = self._rng.choice(cluster.names), self._rng.choice((0.1, 0.5, 1.0))
        while not self._run.is_over:
            try:
                disk, path = self._directories(name)[0]
                found = list(copies_at(disk, path))
            # no replica yet, or a segment begins now
            except (DirectoryRefused, LookupError, OSError):
                await asyncio.sleep(LOOK_S)
                continue
            last = max(((file, offset) for _, _, file, offset in found), default=("", 0))
            for _, _, file, offset in found:
                is_old = file < last[0] or offset + NEWEST_BYTES < last[1]
                if is_old and self._rng.random() < share:
                    disk.flip_bit(file, offset + self._rng.randrange(HEAD_BYTES), 3)
                    self._run.figures["copies damaged"] += 1
            return

    async def copies_repaired(self, cluster: SimCluster) -> None:
        """After the last fault, wait until all replicas are good; note a violation if they are
        not."""
        loop = self._run.simulation.loop
        until_s, bad = loop.time() + REPAIRED_S, [""]
        while bad and loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            try:
                bad = [f"{copy}" for copy in self._bad(cluster)]
            # a segment begins or is deleted at this moment
            except (DirectoryRefused, OSError) as error:
                bad = [f"of which no look succeeded ({error})"]
        for text in bad:
            self._run.on_violated(f"copy {text} is not good within {REPAIRED_S:g} s")

    def _bad(self, cluster: SimCluster) -> list[tuple[str, int, int]]:
        disks = {
            one.bookie: self._directories(one.owner)[0]
            for one in self._rows("bookies/", BookieRecord)
            if one.owner in cluster.names and one.silo
        }
        ledgers = self._rows("ledgers/", LedgerRecord)
        closed = [one for one in ledgers if one.state is LedgerState.CLOSED]
        return bad_copies(disks, [one for one in closed if not self._is_deleted(one.ledger)])

    def _is_deleted(self, ledger: int) -> bool:
        """Has the deletion of a ledger begun? Then readers no longer get its row."""
        key = witness_key(SCOPE, f"{SCOPE}ledgers/{ledger:019d}")
        row = MemoryStateStore.get(self._store, key)
        if row is None:
            return False
        return msgspec.msgpack.decode(unseal(key, row.data).content, type=Witness).is_going

    def _directories(self, owner: str) -> list[tuple[SimDisk, str]]:
        """Return the disk and the path of the directory of a silo, by its name."""
        return [
            (
                self._run.simulation.disk(owner),
                str(Path(one.place.replace("{silo}", owner)).resolve()),
            )
            for one in self._rows("bookies/", BookieRecord)
            if one.owner == owner
        ]

    def _rows(self, folder: str, kind: type[T]) -> list[T]:
        """Read stored rows, even while the store fails."""
        rows = MemoryStateStore.range(self._store, f"{SCOPE}{folder}", "", RANGE_MAX)
        datas = [unseal(key, row.data).content for key, row in rows]
        return [msgspec.msgpack.decode(data, type=kind) for data in datas]
