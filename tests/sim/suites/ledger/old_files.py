"""A file of the state store that is restored from an old backup, and the operator's reaction.

Owns: `OldFiles`: the verbs `store_copy` and `store_rollback` of a script, the check that only
queues with rows in the old file suffer, and the repair. Invariants: one file of a run is old at a
time, since a row and its witness are never in one file. The rows of ledgers have a store of their
own in such a run, so that no other data becomes old. The operator acts only on messages of
Millstream, not on facts that only the simulation knows.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product
from types import TracebackType
from urllib.parse import unquote

import msgspec
from tests.sim.suites.run.plan import Plan
from tests.sim.suites.run.programs import Programs
from tests.sim.suites.streams.traffic import KEYS, ORDERS, TALK, Publisher, Traffic

from millstream.providers.ledger.inspection import LedgerRecord
from millstream.providers.sqlite.storage import FILES, file_index
from millstream.runtime import MemoryStateStore, MillstreamError, StreamError
from millstream.runtime.extending import unseal
from millstream.runtime.testing import Host, Random, SimCluster, Step
from millstream.streams import StreamNamespace

from .book import Book
from .queues import NotedAdapter, read_log
from .troubles import with_steps

__all__ = ["OldFiles", "file_of", "put_back"]

COPIED_S = (1.0, 25.0)
AGE_S = (0.2, 20.0)
WAYS = ("up", "down")
SCOPE = "ledger/sim/"
RANGE_MAX = 100_000
NAMED_ROUNDS = 2
"""The operator restores the named rows at most this often, then all rows."""
SETTLE_S = 5.0
STARTED_S = 30.0
HEARD_S = 10.0
"""After this time without faults, the log has named all damaged queues."""
TRIES = 5
TRY_S = 0.5
ROW = re.compile(r"row (ledger/sim/[^\s:,;]+)")
WITNESSES = f"{SCOPE}witness/"
FOR_ALL = ("counter", "instance", "bookies/")

File = Mapping[str, bytes]


def file_of(store: MemoryStateStore, file: int) -> File:
    """Return the rows of one file, even while the store fails."""
    rows = MemoryStateStore.range(store, "", "", RANGE_MAX)
    return {key: row.data for key, row in rows if file_index(key) == file}


def put_back(store: MemoryStateStore, rows: Mapping[str, bytes | None]) -> None:
    """Set the content of rows; None deletes a row. Earlier etags become invalid."""
    for key, data in rows.items():
        row = MemoryStateStore.get(store, key)
        if row is not None:
            MemoryStateStore.remove(store, key, row.etag, row.fence)
        if data is not None:
            MemoryStateStore.put(store, key, data, None, 0)


def find_changed(before: File, after: File) -> dict[str, bytes | None]:
    """Return the rows that restore the former state when they are put back; None: no such row."""
    keys = sorted(before.keys() | after.keys())
    return {key: before.get(key) for key in keys if before.get(key) != after.get(key)}


class Heard(logging.Handler):
    """Collects rows of ledgers that the log names while this handler is entered."""

    LOGS = ("millstream", "millstream.agent")  # log lines of agents do not propagate in a run

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.rows: dict[str, str] = {}

    def __enter__(self) -> Heard:
        self._levels = [logging.getLogger(name).level for name in self.LOGS]
        self._propagates = logging.getLogger(self.LOGS[0]).propagate
        for name in self.LOGS:
            logging.getLogger(name).addHandler(self)
        logging.getLogger(self.LOGS[0]).setLevel(logging.INFO)
        logging.getLogger(self.LOGS[0]).propagate = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name, level in zip(self.LOGS, self._levels, strict=True):
            logging.getLogger(name).removeHandler(self)
            logging.getLogger(name).setLevel(level)
        logging.getLogger(self.LOGS[0]).propagate = self._propagates

    def emit(self, record: logging.LogRecord) -> None:
        """Note the rows in a log line."""
        self.hear(record.getMessage())

    def hear(self, text: str) -> None:
        """Note the rows in a text."""
        for row in ROW.findall(text):
            self.rows.setdefault(row, text)


class Probe(Publisher):
    """Publishes one item to each stream until the item is accepted, or refused several times."""

    def __init__(self, run: Traffic, host: Host, name: str) -> None:
        super().__init__(run, host, name)
        self._error: MillstreamError | None = None

    async def ask(self, silo: object, namespace: StreamNamespace[str], key: str) -> str:
        """Publish an item; return "" if it is accepted, or the reason for the refusal."""
        for _ in range(TRIES):
            self._error = None
            await self.publish(silo, namespace, key)
            if self._error is None:
                return ""
            await asyncio.sleep(TRY_S)
        return f"{type(self._error).__name__}: {self._error}"

    def _on_failed(self, items: list[str], error: MillstreamError) -> None:
        super()._on_failed(items, error)
        self._error = error


class OldFiles:
    """Restores an old version of one file of a run's store, and the newer rows when they are named.

    Args:
        rng: chooses the file, the time and the way.
        store: the store of the rows of ledgers, without other rows.
    """

    def __init__(self, run: Traffic, rng: Random, store: MemoryStateStore) -> None:
        self._run = run
        self._rng = rng
        self._store = store
        self._file = rng.randrange(FILES)
        self._copy: File = {}
        self._newest: File = {}
        self._lost: dict[str, bytes | None] = {}  # rows that are as they were in the backup
        self._heard = Heard()

    def plan(self, plan: Plan) -> Plan:
        """Add two steps: a backup of one file, and its later restoration."""
        copied_s = self._rng.uniform(*COPIED_S)
        back_s = copied_s + self._rng.uniform(*AGE_S)
        last_s = max(step.at_s for step in plan.script)
        way, file = self._rng.choice(WAYS), f"{self._file}"
        copied = Step(copied_s, "store_copy", (file,))
        return with_steps(
            plan, [copied, Step(min(back_s, last_s - 0.5), "store_rollback", (file, way))]
        )

    def verbs(self, cluster: SimCluster, programs: Programs) -> dict[str, Callable[..., object]]:
        """Return the verbs of the store."""

        def copy(file: str) -> None:
            self._copy = file_of(self._store, int(file))

        def rollback(file: str, way: str) -> None:
            if way == "down":
                self._stop_all(cluster)
            self._roll_back(int(file))
            self._run.figures[f"files put back while silos are {way}"] += 1
            if way == "down":
                self._start_all(cluster, programs)

        return {"store_copy": copy, "store_rollback": rollback}

    def _roll_back(self, file: int) -> None:
        self._newest = file_of(self._store, file)
        self._lost = find_changed(self._copy, self._newest)
        put_back(self._store, self._lost)
        self._run.figures["rows put back"] += len(self._lost)

    def _stop_all(self, cluster: SimCluster) -> None:
        for name in cluster.names:
            if self._run.simulation.is_up(name):
                self._run.simulation.kill(name)

    def _start_all(self, cluster: SimCluster, programs: Programs) -> None:
        for name in cluster.names:
            programs.boot(name)

    # -- the operator

    async def take_back(
        self,
        cluster: SimCluster,
        programs: Programs,
        book: Book,
        adapters: Mapping[str, NotedAdapter],
    ) -> None:
        """Restore the newer version of each row that is named, while only the old file causes
        faults. If rows are still named after some rounds, restore all rows that nobody has written
        since."""
        touched = self._find_touched(book)
        for number in range(NAMED_ROUNDS + 2):
            with self._heard:
                self._heard.rows.clear()
                refused = await self._ask(cluster, book, adapters)
            if number == 0:
                self._judge(refused, touched)
            if not self._heard.rows:
                return
            self._run.figures["rounds of rows taken back"] += 1
            self._stop_all(cluster)
            self._take_back(all_rows=number >= NAMED_ROUNDS)
            self._start_all(cluster, programs)
            self._run.simulation.note_repaired()
        self._run.on_violated(f"all rows are as they were, and some are named: {self._heard.rows}")

    def _take_back(self, all_rows: bool) -> None:
        """Restore the newer version of each row that was named, or of each row that is as it was in
        the backup. A witness that the backup lacks is not written again: its row may have been
        deleted since."""
        now = file_of(self._store, self._file)
        older = find_changed(self._newest, now)
        newer = {key: older[key] for key in older if key in self._lost and key in self._heard.rows}
        if all_rows:
            newer |= {
                key: data
                for key, data in older.items()
                if key in self._lost and self._lost[key] == now.get(key)
                if data is None or not key.startswith(WITNESSES)
            }
        if not newer:
            self._run.on_violated(f"rows are named that nobody has put back: {self._heard.rows}")
        put_back(self._store, newer)
        self._run.figures["rows taken back"] += len(newer)

    async def _ask(
        self, cluster: SimCluster, book: Book, adapters: Mapping[str, NotedAdapter]
    ) -> dict[str, str]:
        """Read and write all queues; return the queues that fail, with the reason."""
        refused: dict[str, str] = {}
        try:
            await cluster.until_settled(SETTLE_S, STARTED_S)
        except TimeoutError:
            refused[""] = "not every silo starts"
        for name in cluster.names:
            if cluster.silo(name) is not None:
                refused |= await self._read(name, book, adapters[name], refused)
                refused |= await self._write(name, cluster.silo(name), book, refused)
        await asyncio.sleep(HEARD_S)
        for text in refused.values():
            self._heard.hear(text)
        return refused

    async def _read(
        self, name: str, book: Book, adapter: NotedAdapter, refused: Collection[str]
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        for queue in (queue for queue in book.queues if queue not in refused):
            reading = read_log(book, adapter, queue, name, tries=TRIES)
            try:
                await self._run.simulation.call(self._run.simulation.host(name), reading)
            except StreamError as error:
                found[queue] = f"{name} cannot read it: {error}"
        return found

    async def _write(
        self, name: str, silo: object, book: Book, refused: Collection[str]
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        host = self._run.simulation.host(name)
        probe = Probe(self._run, host, f"probe {self._run.simulation.loop.time():g} {name}")
        for namespace, key in product((ORDERS, TALK), KEYS):
            queue = book.queue_of(f"{namespace.name}/{key}") or ""
            if queue in refused or queue in found:
                continue
            why = await self._run.simulation.call(host, probe.ask(silo, namespace, key))
            if why:
                found[queue] = f"{name} cannot write it: {why}"
        return found

    def _judge(self, refused: Mapping[str, str], touched: frozenset[str] | None) -> None:
        """Check that each failing queue had rows in the file, and that errors name rows."""
        self._run.figures["queues that an old file stops"] += len(refused)
        if not self._heard.rows:
            self._run.figures["old files that do no harm"] += 1
        for queue, why in refused.items():
            if not self._heard.rows:
                self._run.on_violated(f"{queue} is refused, and no row is named: {why}")
            if touched is not None and queue not in touched:
                self._run.on_violated(f"{queue} has no row in the old file: {why}")

    def _find_touched(self, book: Book) -> frozenset[str] | None:
        """Find queues with rows in the old file; None: all queues, because each needs such a
        row."""
        found: set[str] = set()
        for key in self._lost:
            name = key.removeprefix(SCOPE)
            if name.startswith("witness/"):
                name = name.split("/", 2)[2]
            if name.startswith(FOR_ALL):
                return None
            folder, _, rest = name.partition("/")
            if folder in {"topics", "cursors"}:
                found.add(unquote(rest.partition("/")[0]))
            elif folder == "ledgers":
                found |= set(self._topics_of(f"{SCOPE}{name}"))
        return frozenset(topic.rpartition("/")[2] for topic in found)

    def _topics_of(self, key: str) -> Iterator[str]:
        """Yield the topics of a ledger in all versions of its row."""
        row = MemoryStateStore.get(self._store, key)
        for data in (self._copy.get(key), self._newest.get(key), None if row is None else row.data):
            if data is not None:
                yield msgspec.msgpack.decode(unseal(key, data).content, type=LedgerRecord).topic
