"""Suite `ledger` detects messages that are lost, doubled, renumbered or moved."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from tests.sim.suites.ledger.book import Book, Content, Log
from tests.sim.suites.run import record
from tests.sim.suites.run.record import Run
from tests.sim.suites.runner import SeedOutcome, find_outcome, is_noticed

from millstream.providers.ledger.bookie.journal import Journal
from millstream.providers.ledger.bookie.store import Store
from millstream.providers.ledger.metadata import rows
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.metadata.witness import Witness
from millstream.providers.ledger.recovery.copier import Copier
from millstream.providers.ledger.topic.cursors import trimmer
from millstream.providers.ledger.topic.cursors.retention import ledgers_to_trim
from millstream.providers.ledger.topic.record import LedgerSpan
from millstream.runtime import Corrupt
from millstream.runtime.extending import DiskFile, DiskThread, Sealed
from millstream.runtime.testing import Delivered, Simulation, run
from millstream.streams import OutMessage, ProducerMark, StreamId, Token

pytestmark = pytest.mark.rotates

T = TypeVar("T")
LOSING = (3, 20, 4, 15)
"""Seeds in which silos are lost for good."""
OLD_FILES = {9: "up", 14: "down"}
"""Seeds in which a file of rows is restored from a backup, while silos run or are down."""


@pytest.fixture(autouse=True)
def all_violations_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "VIOLATIONS_SHOWN", record.VIOLATIONS_KEPT_MAX)


class Hasty:
    """A disk thread that writes without a sync."""

    def __init__(self, thread: DiskThread) -> None:
        self._thread = thread
        self.run, self.close = thread.run, thread.close

    def flush(self, file: DiskFile, offset: int, parts: Sequence[bytes]) -> Future[None]:
        return self._thread.run(file.write_at, offset, *parts)


def planted(test: Callable[..., None]) -> Any:
    """Mark a test with a planted fault. A failing run is not cleaned up: its open work ends when
    nobody waits for it."""
    quiet = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    return pytest.mark.slow(quiet(test))


@planted
def test_a_bookie_that_acknowledges_before_its_sync_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Journal.__init__

    def hastily(self: Journal, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._commit = Hasty(self._commit)  # type: ignore[assignment]

    monkeypatch.setattr(Journal, "__init__", hastily)
    assert is_noticed("ledger", "cannot be read by", first=(5,))


@planted
def test_a_bookie_that_takes_what_is_fenced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "term_of", lambda self, ledger: 0)
    assert is_noticed("ledger", "for its publisher, and")


@planted
def test_ledgers_that_are_deleted_before_they_are_done_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def greedy(spans: Sequence[LedgerSpan], floor: int, *others: Any) -> int:
        return ledgers_to_trim(spans, floor + 20, *others)

    monkeypatch.setattr(trimmer, "ledgers_to_trim", greedy)
    assert is_noticed("ledger", "never got it")


@planted
def test_copies_that_are_counted_and_not_made_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Copier, *arguments: Any, **named: Any) -> None: ...

    monkeypatch.setattr(Copier, "fill", nothing)
    assert is_noticed("ledger", "cannot be read by", first=LOSING)


@planted
@pytest.mark.parametrize("what", ["nothing is compared", "no row is named"])
def test_old_rows_that_nobody_notices_or_names_are_noticed(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(witness: Witness, at: str, row: Sealed | None) -> None:
        raise Corrupt("something is older than it was")

    if what == "nothing is compared":
        monkeypatch.setattr(Witness, "is_met_by", lambda self, row: True)
    else:
        monkeypatch.setattr(rows, "refuse_older", refuse)
    assert is_noticed("ledger", "is refused, and no row is named", first=OLD_FILES)


@planted
def test_an_old_row_that_stops_the_queues_of_other_rows_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, found = RecordRows._look, list[Corrupt]()

    async def look_once(self: RecordRows[Any, Any], name: str) -> Any:
        if found and "/topics/" in name:
            raise found[0]
        try:
            return await look(self, name)
        except Corrupt as error:
            found.append(error)
            raise

    monkeypatch.setattr(RecordRows, "_look", look_once)
    assert is_noticed("ledger", "has no row in the old file", first=OLD_FILES)


@pytest.mark.spare
@pytest.mark.parametrize("way", ["up", "down"])
def test_in_some_runs_a_file_of_rows_is_old_and_its_rows_are_named_and_taken_back(
    way: str,
) -> None:
    def is_taken_back(outcome: SeedOutcome) -> bool:
        ways = outcome.figures.get(f"files put back while silos are {way}", 0)
        return ways == 1 and outcome.figures.get("rows taken back", 0) > 0

    find_outcome("ledger", is_taken_back, first=[one for one in OLD_FILES if OLD_FILES[one] == way])


@pytest.mark.spare
def test_in_some_runs_silos_are_lost_for_good_and_what_they_had_is_copied() -> None:
    def has_lost(outcome: SeedOutcome) -> bool:
        names = "runs that lose silos", "silos lost for good, first"
        return all(outcome.figures.get(name) == 1 for name in names)

    find_outcome("ledger", has_lost, first=LOSING)


QUEUE, STREAM = "q", "orders/k"


def message(text: str, seq: int | None = None) -> OutMessage:
    mark = None if seq is None else ProducerMark("p", seq)
    return OutMessage(StreamId("orders", "k"), [msgspec.msgpack.encode(text)], mark=mark)


def with_book(act: Callable[[Run, Book], T]) -> T:
    """Run `act` inside of a simulation."""

    async def driver(simulation: Simulation) -> T:
        notes = Run(simulation)
        return act(notes, Book(notes))

    return run(driver, 1).result


@pytest.mark.parametrize(
    ("log", "count"),
    [
        (Log("a", 1, 3), 0),
        (Log("a", 3, 3), 0),  # deleted, but stored before
        (Log("a", 1, 2), 2),  # neither acknowledged nor seen messages
    ],
    ids=["whole", "deleted", "lost"],
)
def test_what_was_acknowledged_or_seen_must_be_there_in_the_end(log: Log, count: int) -> None:
    def act(notes: Run, book: Book) -> list[str]:
        book.saw(QUEUE, 1, Content(STREAM, ("a",)), "a reader")
        book.on_accepted(QUEUE, 2, message("b"), 0.0)
        return [*book.check_log(QUEUE, log), *notes.violations]

    assert len(with_book(act)) == count


def test_what_was_deleted_does_not_come_back() -> None:
    def act(notes: Run, book: Book) -> list[str]:
        book.on_trimmed(QUEUE, 3)
        return list(book.check_log(QUEUE, Log("a", 2, 3)))

    assert with_book(act) == ["q: a begins at 2, after 3"]


def test_a_number_reads_the_same_for_everybody() -> None:
    def act(notes: Run, book: Book) -> list[str]:
        book.on_accepted(QUEUE, 1, message("a"), 0.0)
        book.saw(QUEUE, 1, Content(STREAM, ("a",)), "a reader")
        assert notes.violations == []
        book.saw(QUEUE, 1, Content(STREAM, ("b",)), "another")
        return notes.violations

    assert len(with_book(act)) == 1


@pytest.mark.parametrize(
    ("acks", "count"),
    [
        ([(1, 0), (2, 1)], 0),
        ([(1, 0), (1, 0), (2, 1)], 0),  # an answer with the earlier number
        ([(1, 0), (2, 0)], 1),
        ([(2, 0), (1, 1)], 1),
    ],
    ids=["in order", "again", "twice", "backwards"],
)
def test_the_sequences_of_a_producer_are_stored_once_and_in_order(
    acks: list[tuple[int, int]], count: int
) -> None:
    def act(notes: Run, book: Book) -> list[str]:
        for number, seq in acks:
            book.on_accepted(QUEUE, number, message(f"{number}", seq), 0.0)
        return list(book.check_acks())

    assert len(with_book(act)) == count


@pytest.mark.parametrize(("started_s", "count"), [(-1.0, 0), (1.0, 1)])
def test_what_was_sent_after_an_acknowledgement_is_stored_behind_it(
    started_s: float, count: int
) -> None:
    def act(notes: Run, book: Book) -> list[str]:
        book.on_accepted(QUEUE, 2, message("a"), -1.0)
        book.on_accepted(QUEUE, 1, message("b"), started_s)
        return list(book.check_acks())

    assert len(with_book(act)) == count


@pytest.mark.parametrize(("text", "count"), [("a", 0), ("b", 1)])
def test_what_is_handled_is_what_is_stored_there(text: str, count: int) -> None:
    def act(notes: Run, book: Book) -> list[str]:
        book.saw(QUEUE, 1, Content(STREAM, ("a",)), "a reader")
        notes.history.record(Delivered(STREAM, "ada", Token(0, 1, 0), text, False))
        return list(book.check_delivered())

    assert len(with_book(act)) == count


def test_what_was_deleted_may_be_known_from_its_handlers_only() -> None:
    def act(notes: Run, book: Book) -> list[str]:
        book.saw(QUEUE, 3, Content(STREAM, ("c",)), "a reader")
        for number, text in ((1, "a"), (3, "c")):
            notes.history.record(Delivered(STREAM, "ada", Token(0, number, 0), text, False))
        book.on_trimmed(QUEUE, 2)
        book.learn()
        assert list(book.check_delivered()) == []
        return book.items_of(STREAM)

    assert with_book(act) == ["a", "c"]
