"""Every known fault of BookKeeper is planted here, and a test must detect it.

docs/internals/ledger_mutations.md has the table of faults, and explains the numbers. A fault is
planted where this code could have it. The model checker detects faults in a core, schedules in
virtual time detect faults in a driver, and the bookie's own tests detect faults in the bookie. A
detecting test is a test of this folder that passes without the fault, or a shape that is explored
here without the fault, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.providers.ledger import test_handle as handles
from tests.providers.ledger import test_handle_schedules as schedules
from tests.providers.ledger import test_metadata_rows as rows
from tests.providers.ledger.bookie import test_bookie as bookies
from tests.providers.ledger.bookie import test_collection as collection
from tests.providers.ledger.bookie import test_directory as directories
from tests.providers.ledger.bookie import test_tails as tails
from tests.providers.ledger.model import moves, world
from tests.providers.ledger.model.actors import Draft
from tests.providers.ledger.model.cores import frozen
from tests.providers.ledger.model.explorer import explore
from tests.providers.ledger.model.shapes import QUICK, SLOW, SOLO, STRIPED, TWO, USUAL
from tests.providers.ledger.model.world import Bookie, Bounds, Message, Shape

from millstream.providers.ledger.bookie import startup
from millstream.providers.ledger.bookie.bookie import Bookie as RealBookie
from millstream.providers.ledger.bookie.store import Store
from millstream.providers.ledger.handle import recovery
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.ledger_sender import LedgerSender
from millstream.providers.ledger.handle.reader import LedgerReader
from millstream.providers.ledger.handle.recovery import Attempt
from millstream.providers.ledger.handle.writer import LedgerWriter
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol import record
from millstream.providers.ledger.protocol.append_core import Action, AppendCore, Change
from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.errors import NotRecoverable
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.providers.ledger.protocol.record import with_ensemble
from millstream.providers.ledger.protocol.recovery_core import RecoveryCore, Step

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "internals" / "ledger_mutations.md"
Plant = Callable[[pytest.MonkeyPatch], None]
FAILED = (AssertionError, pytest.fail.Exception)


@dataclass(frozen=True)
class Bug:
    """A planted fault. The function `see` must fail with one of `fails` and a message matching
    `text`.
    """

    name: str
    plant: Plant
    see: Callable[[], object]
    text: str = "."
    fails: tuple[type[BaseException], ...] = FAILED


def explored(name: str) -> Callable[[], None]:
    """Run the checker over one shape."""
    return lambda: explore(SHAPE[name]) and None


# --- ensemble changes ---


def confirmed_between_unsets(patch: pytest.MonkeyPatch) -> None:
    """#3005: an entry that needs no replaced bookie confirms later entries. Those entries still
    count the acknowledgements of the replaced bookie.
    """
    unset_all = AppendCore.on_changed

    def changed(self: AppendCore, instead: Mapping[int, str]) -> list[Action]:
        for entry, pending in self._pending.items():
            if not set(instead) & set(pending.places) and entry > self.confirmed:
                self._is_changing = False
                confirmed = self._confirm()
                self._is_changing = True
                return [*confirmed, *unset_all(self, instead)]
            for place in instead:
                pending.acks &= ~(1 << place)
        return unset_all(self, instead)

    patch.setattr(AppendCore, "on_changed", changed)


def confirmed_before_unset(patch: pytest.MonkeyPatch) -> None:
    """#4097: confirming continues before the acknowledgements of the replaced bookies are
    dropped.
    """
    unset_all = AppendCore.on_changed

    def changed(self: AppendCore, instead: Mapping[int, str]) -> list[Action]:
        self._is_changing = False
        confirmed = self._confirm()
        self._is_changing = True
        return [*confirmed, *unset_all(self, instead)]

    patch.setattr(AppendCore, "on_changed", changed)


def confirmed_during_change(patch: pytest.MonkeyPatch) -> None:
    """#4651: entries after the start of the new fragment are confirmed on the old bookies."""

    confirm = AppendCore._confirm

    def confirmed(self: AppendCore) -> list[Action]:
        was, self._is_changing = self._is_changing, False
        actions = confirm(self)
        self._is_changing = was
        return actions

    patch.setattr(AppendCore, "_confirm", confirmed)


def counted_before_stored(patch: pytest.MonkeyPatch) -> None:
    """#1591, in the driver: the writer continues before the record is stored."""
    store = LedgerWriter._store

    async def stored(
        self: LedgerWriter, first: int, instead: Mapping[int, tuple[str, str]]
    ) -> Mapping[int, str]:
        writing = asyncio.ensure_future(store(self, first, instead))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return {place: new for place, (_, new) in instead.items()}

    patch.setattr(LedgerWriter, "_store", stored)


def changed_before_stored(patch: pytest.MonkeyPatch) -> None:
    """#1591, in the model's driver: a change of bookies takes effect before it is stored."""
    post = Draft._change

    def change(self: Draft, who: int, core: AppendCore, term: int, wanted: Change) -> None:
        spare = [name for name in self.model.names if name not in core.bookies()]
        instead = frozen(dict(zip(wanted.places, spare, strict=False)))
        post(self, who, core, term, wanted)
        self.tell_rows(Message(world.Kind.LOCAL, who, body=(wanted.first, instead)))

    patch.setattr(Draft, "_change", change)
    patch.setattr(Draft, "_writer_hears", without_changed(Draft._writer_hears))


def without_changed(
    hears: Callable[[Draft, Message], None],
) -> Callable[[Draft, Message], None]:
    def hear(self: Draft, message: Message) -> None:
        if message.kind is not world.Kind.CHANGED:
            hears(self, message)

    return hear


def counted_for_the_next_bookie(patch: pytest.MonkeyPatch) -> None:
    """2.3.2: an acknowledgement counts for the bookie that has the place at that time."""

    def acknowledged(
        self: AppendCore, place: int, change: int, entries: tuple[int, ...]
    ) -> list[Action]:
        if self.failed is not None:
            return []
        for entry in entries:
            self._settle(entry, place, has_it=True)
        return self._confirm()

    patch.setattr(AppendCore, "on_acknowledged", acknowledged)


# --- fences and ends ---


def reads_that_do_not_fence(patch: pytest.MonkeyPatch) -> None:
    """#2614, in the bookie: reads do not fence."""
    patch.setattr(world, "fenced_by_read", lambda bookie, term: bookie)


class Unfencing:
    """Bookies whose reads lose their term."""

    def __init__(self, bookies: Any) -> None:
        self._bookies = bookies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bookies, name)

    async def read(self, bookie: str, ledger: int, first: int, *limits: int) -> Found:
        entries_max, bytes_max, _ = limits
        found: Found = await self._bookies.read(bookie, ledger, first, entries_max, bytes_max, 0)
        return found


def reads_without_a_term(patch: pytest.MonkeyPatch) -> None:
    """#2614, in the driver: reads carry no term."""
    begin = Attempt.__init__

    def begun(self: Attempt, context: HandleContext, found: record.LedgerRecord) -> None:
        unfencing: Any = Unfencing(context.bookies)
        begin(self, context._replace(bookies=unfencing), found)

    patch.setattr(Attempt, "__init__", begun)


def no_floor(patch: pytest.MonkeyPatch) -> None:
    """#2615: the last bookies know of no confirmed entry, so the recovery begins at entry 0."""
    begin = RecoveryCore.__init__

    def begun(self: RecoveryCore, found: record.LedgerRecord) -> None:
        begin(self, found)
        self._confirmed = NOTHING

    patch.setattr(RecoveryCore, "__init__", begun)


def doubt_is_absence(patch: pytest.MonkeyPatch) -> None:
    """#2908, in the core: an unknown entry counts as absent."""
    find = RecoveryCore.found

    def found(self: RecoveryCore, place: int, first: int, what: Found) -> list[Step]:
        if what.missing is Missing.UNKNOWN:
            what = what._replace(missing=Missing.ABSENT)
        return find(self, place, first, what)

    patch.setattr(RecoveryCore, "found", found)


def damage_is_absence(patch: pytest.MonkeyPatch) -> None:
    """#2908, in the bookie: an unreadable entry is answered as absent."""

    def put(
        self: RealBookie, entries: list[bytes], ledger: int, missing: Missing, fault: str = ""
    ) -> Found:
        told = Missing.ABSENT if missing is Missing.UNKNOWN else missing
        return Found(tuple(entries), told, self.store.index.find_confirmed(ledger))

    patch.setattr(RealBookie, "_found", put)


def damaged_copies_deny(patch: pytest.MonkeyPatch) -> None:
    """4.18 (i): an answer counts before its checksum is verified."""
    copy = RecoveryCore._copy

    def copied(self: RecoveryCore) -> Any:
        kept = copy(self)
        self._absent |= {(place, at) for place, at in self._unsure if place in self._known}
        return kept

    patch.setattr(RecoveryCore, "_copy", copied)


def waits_for_all(patch: pytest.MonkeyPatch) -> None:
    """#1067: a recovery concludes only when every bookie has answered."""
    go_on = RecoveryCore._go_on

    def waited(self: RecoveryCore) -> list[Step]:
        places = range(len(self._fragment.bookies))
        if any(place not in self._fenced | self._silent for place in places):
            return []
        return go_on(self)

    patch.setattr(RecoveryCore, "_go_on", waited)


def written_back_as_the_writer(patch: pytest.MonkeyPatch) -> None:
    """#4163: the entries that a recovery writes back carry the writer's term."""

    def sending(context: Any, core: AppendCore, term: int, store: Any) -> LedgerSender:
        return LedgerSender(context, core, term - 1, store)

    patch.setattr(recovery, "LedgerSender", sending)


def changes_by_anybody(patch: pytest.MonkeyPatch) -> None:
    """10.5.7: an idle writer replaces the bookies of a closed ledger."""

    def change(
        found: record.LedgerRecord, term: int, first: int, instead: Any
    ) -> record.LedgerRecord:
        opened = msgspec.structs.replace(found, state=record.LedgerState.OPEN, term=term)
        changed = with_ensemble(opened, term, max(first, found.fragments[-1].first), instead)
        return msgspec.structs.replace(found, fragments=changed.fragments)

    patch.setattr(world, "with_ensemble", change)
    patch.setattr("millstream.providers.ledger.handle.writer.with_ensemble", change)


# --- bookies ---


def a_fresh_bookie_of_the_same_name(patch: pytest.MonkeyPatch) -> None:
    """#4812: an emptied directory keeps the name that ensembles know."""
    patch.setattr(moves, "restored", lambda bookie, keeps: Bookie())


def an_older_copy_is_believed(patch: pytest.MonkeyPatch) -> None:
    """#4812, in the bookie: the age of the directory is not checked."""
    patch.setattr(startup, "judge", lambda loaded, found, known, path: loaded)


def tombstones_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """4.18 (j): the fence of a deleted ledger is deleted with its entries."""
    patch.setattr(Store, "is_forgotten", lambda self, ledger: False)
    patch.setattr(Store, "term_of", lambda self, ledger: self.state.fences.get(ledger, 0))


def denied_before_the_fence_is_durable(patch: pytest.MonkeyPatch) -> None:
    """4.7: a fencing read that finds no entry does not wait for its fence."""
    look = RealBookie.read

    async def read(
        self: RealBookie, ledger: int, first: int, entries: int, size: int, term: int = 0
    ) -> Found:
        if term and not self.store.index.find(ledger, first):
            fencing = asyncio.ensure_future(self.fence(ledger, term))
            fencing.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.sleep(0)
            term = 0
        return await look(self, ledger, first, entries, size, term)

    patch.setattr(RealBookie, "read", read)


def denials_that_a_crash_unfences(patch: pytest.MonkeyPatch) -> None:
    """4.7, in the model's bookie: it crashes before the fence of a denial is durable."""
    read = world.read

    def denied(mail: Any, bookie: Bookie, message: Message, page: int) -> Any:
        after, answer = read(mail, bookie, message, page)
        (first,) = message.body
        assert isinstance(first, int)
        return (after if bookie.has(first) is not None else bookie), answer

    def fence(mail: Any, bookie: Bookie, message: Message) -> Any:
        after, answer = world_fence(mail, bookie, message)
        return (after if bookie.entries else bookie), answer

    world_fence = world.fence
    patch.setattr(world, "read", denied)
    patch.setattr(world, "fence", fence)


# --- rows and readers ---


def tokens_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """#1967: a write whose answer was lost is taken for the write of another process."""

    async def tried(self: Any, name: str, change: Any, operation: str, pins: bool) -> Any:
        found, witness = await self._look(name)
        known = None if found is None else found.value
        new = change(known)
        if new is None:
            return await self._discard(name)
        if new != known:
            if found is None:
                witness = await self._reserve(name, witness)
            found = await self._write(name, new, found, operation)
        if self._is_witnessed:
            await self._pin(name, found.seal, witness)
        return found.value

    patch.setattr(RecordRows, "_try", tried)


def records_are_read_once(patch: pytest.MonkeyPatch) -> None:
    """#4613: a reader keeps using the bookies that it began with."""

    async def read(self: LedgerReader) -> None:
        return None

    patch.setattr(LedgerReader, "_read_record", read)


# --- the table ---

SHAPE = {
    "solo": Shape(SOLO, 1, Bounds(2, 1, give_ups=1, doubts=1)),
    "solo restored": Shape(SOLO, 0, Bounds(2, 1, restores=1, damages=1)),
    "two": Shape(TWO, 1, Bounds(1, 1, give_ups=1)),
    "two changes": Shape(TWO, 1, Bounds(2, 0, give_ups=1, doubts=1)),
    "two restored": Shape(TWO, 0, Bounds(1, 1, restores=1, damages=1)),
    "usual": Shape(USUAL, 0, Bounds(1, 1)),
    "usual hangs": Shape(USUAL, 0, Bounds(1, 1, hangs=1), must_end=True),
    "striped": Shape(STRIPED, 1, Bounds(3, 0, give_ups=1), is_prompt=True),
}
BUGS = (
    Bug("#3005", confirmed_between_unsets, explored("striped"), "I7"),
    Bug("#4097", confirmed_before_unset, explored("two changes"), "I7"),
    Bug("#4651", confirmed_during_change, explored("two changes"), "I6"),
    Bug(
        "#1591 driver",
        counted_before_stored,
        schedules.test_nothing_on_other_bookies_counts_before_the_record_names_them,
    ),
    Bug("#1591", changed_before_stored, explored("two changes"), "I7"),
    Bug("2.3.2", counted_for_the_next_bookie, explored("two changes"), "I7"),
    Bug("#2614", reads_that_do_not_fence, explored("usual"), "I14"),
    Bug(
        "#2614 driver",
        reads_without_a_term,
        schedules.test_a_write_that_comes_late_to_a_bookie_that_was_read_is_refused,
    ),
    Bug("#2615", no_floor, explored("solo"), "I15"),
    Bug("#2908", doubt_is_absence, explored("solo restored"), "I15"),
    Bug(
        "#2908 bookie",
        damage_is_absence,
        lambda: tails.test_a_damaged_entry_in_a_whole_frame_is_unknown_alone(700),
    ),
    Bug("4.18 (i)", damaged_copies_deny, explored("solo restored"), "I15"),
    Bug("#1067", waits_for_all, explored("usual hangs"), "I32"),
    Bug("#1067 driver", waits_for_all, handles.test_a_hanging_bookie_holds_up_no_recovery),
    Bug(
        "#4163",
        written_back_as_the_writer,
        handles.test_a_writer_that_was_fenced_confirms_nothing_more,
        fails=(NotRecoverable,),
    ),
    Bug("10.5.7", changes_by_anybody, explored("solo"), "I10"),
    Bug(
        "10.5.7 driver",
        changes_by_anybody,
        schedules.test_an_idle_writer_whose_bookies_are_all_gone_confirms_nothing_on_fresh_ones,
    ),
    Bug("#4812", a_fresh_bookie_of_the_same_name, explored("two restored"), "I15"),
    Bug(
        "#4812 bookie",
        an_older_copy_is_believed,
        directories.test_an_older_copy_is_seen_as_often_as_it_is_restored,
    ),
    Bug(
        "4.18 (j)",
        tombstones_are_forgotten,
        collection.test_a_deleted_ledger_leaves_a_tombstone_that_outlives_its_segments,
    ),
    Bug("4.7", denials_that_a_crash_unfences, explored("usual"), "I14"),
    Bug(
        "4.7 bookie",
        denied_before_the_fence_is_durable,
        bookies.test_nothing_is_acknowledged_or_answered_to_a_fence_before_the_sync,
    ),
    Bug(
        "#1967",
        tokens_are_not_looked_at,
        rows.test_a_lost_answer_is_no_failure_and_the_write_happens_once,
    ),
    Bug(
        "#4613",
        records_are_read_once,
        handles.test_a_reader_finds_entries_that_were_moved,
        fails=(NotRecoverable,),
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
@pytest.mark.one_in(8)
def test_it_is_seen(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(bug.fails, match=bug.text):
        bug.see()


@pytest.mark.parametrize("name", SHAPE)
def test_without_a_fault_the_same_shape_holds(name: str) -> None:
    shape = SHAPE[name]
    assert shape in (*QUICK, *SLOW), "it is explored by test_model.py"


ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_the_page_names_every_fault_and_tests_that_exist() -> None:
    found = ROW.findall(PAGE.read_text())[1:]
    planted = {name for _, plants, _ in found for name in re.findall(r"`(\w+)`", plants)}
    assert planted == {bug.plant.__name__ for bug in BUGS}
    for bug, _, seen in found:
        assert "the checker" in seen or TEST.findall(seen), bug
        for path, name in TEST.findall(seen):
            assert f"def {name}(" in (HERE / path).read_text(), f"{bug}: {path}::{name}"
