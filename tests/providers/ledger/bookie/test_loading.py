"""The state of a bookie after it has read its segments: the core alone, frame by frame."""

from __future__ import annotations

import pytest
from tests.providers.ledger.bookie.kit import entry
from tests.providers.ledger.bookie.segments import Content, Journal, put

from millstream.providers.ledger.bookie.form.envelope import NotWhole
from millstream.providers.ledger.bookie.form.frame import SECTOR_BYTES, JournalRecord, RecordKind
from millstream.providers.ledger.bookie.form.loader import Doubt, LoadedDirectory, Loader
from millstream.providers.ledger.bookie.form.runs import HOLE_MAX
from millstream.providers.ledger.bookie.form.sealed import Sealed
from millstream.providers.ledger.bookie.form.segment import FRAMES_START, place_of
from millstream.providers.ledger.bookie.form.state import (
    TERM_MAX,
    DirectoryState,
    state_bytes,
    state_in,
)
from millstream.providers.ledger.bookie.form.tail import SegmentTail

Segment = Content | Sealed


def loaded(*segments: Segment, first: int = 1, durable: int = 0) -> LoadedDirectory:
    """Load a directory whose segments are numbered from `first`."""
    loader = Loader("d", durable)
    for number, segment in enumerate(segments, first):
        if isinstance(segment, Sealed):
            loader.take_sealed(segment)
        else:
            loader.take_walk(number, segment.walk())
    return loader.finish()


def sealed(content: Content, number: int = 1) -> Sealed:
    """Make the index file of a segment that is not the last."""
    journal = Journal(99, 99)
    found = loaded(content, Content(*journal.frames(1)), first=number).unsealed[0]
    assert found.segment == number
    return found


def places(found: LoadedDirectory, ledger: int = 1) -> dict[int, int]:
    placed = found.index.ledgers.get(ledger)
    if placed is None:
        return {}
    return {base + at: place for base, run in placed.runs for at, place in enumerate(run) if place}


def fence(ledger: int, term: int) -> JournalRecord:
    return JournalRecord(RecordKind.FENCE, ledger, term)


def state_of(*fences: tuple[int, int]) -> bytes:
    state = DirectoryState()
    for ledger, term in fences:
        state.fence(ledger, term)
    return state_bytes(state)


# -- one segment without index file


def test_all_frames_but_the_last_are_believed_and_its_entries_are_given_back() -> None:
    journal = Journal()
    made = [journal.made(put(1, 0), put(2, 0)), journal.made(put(1, 1)), journal.made(put(1, 2))]
    found = loaded(Content(*(b"".join(frame.parts) for frame in made)))
    at = FRAMES_START + made[0].length
    assert places(found) == {
        0: place_of(1, FRAMES_START + made[0].starts[0]),
        1: place_of(1, at + made[1].starts[0]),
    }
    assert places(found, 2) == {0: place_of(1, FRAMES_START + made[0].starts[1])}
    assert found.carried == (put(1, 2),)
    assert (found.sequence, found.check, found.seen) == (2, made[1].check, 3)
    assert found.ends == {1: at + made[1].length}
    assert found.empty == () and found.doubts == () and found.damaged == 0
    [index] = found.unsealed
    assert (index.first, index.previous, index.last, index.check) == (1, 0, 2, made[1].check)
    assert (index.directory, index.segment, index.end) == ("d", 1, at + made[1].length)
    assert {one.ledger: one.confirmed for one in index.ledgers} == {1: 0, 2: -1}
    assert found.index.find_confirmed(1) == 0
    use = found.index.segments[1]
    assert (use.entries, use.size_bytes) == (3, 3 * len(entry(1, 0)))


def test_what_else_the_last_frame_says_holds_at_once() -> None:
    journal = Journal()
    last = journal.frame(
        JournalRecord(RecordKind.STATE, 0, 0, state_of((7, 3))), fence(8, 4), put(1, 0), fence(7, 2)
    )
    found = loaded(Content(last))
    assert (found.state.term_of(7), found.state.term_of(8)) == (3, 4)
    assert found.carried == (put(1, 0),) and places(found) == {}
    assert found.empty == (1,) and found.unsealed == () and found.ends == {}


@pytest.mark.parametrize(("durable", "is_kept"), [(1, False), (2, True), (3, True)])
def test_a_last_frame_that_is_damaged_is_torn_unless_it_was_durable(
    durable: int, is_kept: bool
) -> None:
    journal = Journal()
    one, two = journal.frames(2)
    content = Content(one, two)
    content.data[-SECTOR_BYTES + 100] ^= 1  # in the frame's body
    found = loaded(content, durable=durable)
    assert found.carried == ()
    assert (found.sequence, found.seen) == ((2, 2) if is_kept else (1, 1))
    assert set(places(found)) == ({0, 1} if is_kept else {0})
    assert found.damaged == int(is_kept) and found.unsealed[0].damaged == int(is_kept)
    assert found.index.find_confirmed(1) == -1, "a damaged head says nothing"
    missing = [
        Doubt(0, 0, f"the journal ends at frame {found.seen}, but frame {durable} was durable")
    ]
    assert list(found.doubts) == (missing if found.seen < durable else [])


def test_damage_in_the_middle_is_an_entry_that_is_there_and_cannot_be_read() -> None:
    one, two, three = Journal().frames(3)
    content = Content(one, two, three)
    content.data[FRAMES_START + 100] ^= 1
    content.data[FRAMES_START + len(one) + 100] ^= 1
    found = loaded(content)
    assert set(places(found)) == {0, 1} and found.damaged == 2 == found.unsealed[0].damaged
    assert found.doubts == () and found.carried == (put(1, 2),)


def test_frames_that_are_missing_in_the_middle_are_in_doubt() -> None:
    one, two, three, four = Journal().frames(4)
    at = FRAMES_START + len(one)
    found = loaded(Content(one, bytes(SECTOR_BYTES), two))
    assert list(found.doubts) == [
        Doubt(1, at + SECTOR_BYTES, "frames before this offset are damaged")
    ]
    found = loaded(Content(one, three, four))
    assert list(found.doubts) == [
        Doubt(1, at, "frame 3 does not follow frame 1"),
        Doubt(1, at, "frames before this offset are damaged"),
    ]
    assert (found.sequence, found.seen) == (3, 4)


def test_a_journal_that_ends_before_what_was_durable_is_in_doubt() -> None:
    content = Content(*Journal().frames(3))
    assert loaded(content, durable=3).doubts == ()
    [doubt] = loaded(content, durable=4).doubts
    assert doubt == Doubt(0, 0, "the journal ends at frame 3, but frame 4 was durable")
    assert str(doubt) == doubt.why
    assert str(Doubt(2, 5, "so")) == "segment 2, offset 5: so"


def test_a_state_in_a_frame_replaces_what_was_and_a_damaged_one_is_in_doubt() -> None:
    journal = Journal()
    given = [
        journal.frame(fence(6, 9), fence(7, 1)),
        journal.frame(JournalRecord(RecordKind.STATE, 0, 0, state_of((7, 3)))),
        journal.frame(put(1, 0)),
    ]
    found = loaded(Content(*given))
    assert (found.state.term_of(6), found.state.term_of(7)) == (0, 3)
    content = Content(*given)
    at = FRAMES_START + len(given[0])
    content.data[at + 100] ^= 1
    found = loaded(content)
    assert (found.state.term_of(6), found.state.term_of(7)) == (9, 1)
    [doubt] = found.doubts
    assert (doubt.segment, doubt.offset) == (1, at)
    assert doubt.why.startswith("the state in frame 2 is damaged: ")


def test_ledgers_that_were_deleted_are_not_there() -> None:
    journal = Journal()
    given = [journal.frame(put(1, 0), put(2, 0), put(3, 0)), journal.frame(put(3, 1))]
    given += [journal.frame(JournalRecord(RecordKind.FORGET, 1, 2)), journal.frame(put(3, 2))]
    found = loaded(Content(*given))
    assert set(found.index.ledgers) == {3} and set(places(found, 3)) == {0, 1}
    assert found.state.term_of(2) == TERM_MAX
    assert found.index.segments[1].entries == 2


# -- empty or unreadable segments


def test_a_segment_without_frames_is_empty_whether_it_has_an_index_file_or_not() -> None:
    nothing = SegmentTail(2).seal("d", state_bytes(DirectoryState()))
    frames = Journal().frames(2)
    found = loaded(Content(frames[0]), nothing, Content(), Content(frames[1]))
    assert found.empty == (2, 3, 4), "of the last one nothing is believed yet"
    assert found.carried == (put(1, 1),) and found.doubts == () and set(found.ends) == {1}


def test_an_empty_segment_that_cannot_be_read_is_kept_and_in_doubt() -> None:
    content = Content(bytes(2 * SECTOR_BYTES), bad=[FRAMES_START + SECTOR_BYTES])
    first = Content(*Journal().frames(2))
    found = loaded(first, content)
    assert found.empty == () and [one.segment for one in found.unsealed] == [2, 1]
    assert list(found.doubts) == [Doubt(2, FRAMES_START, "a sector cannot be read")]
    assert state_in(found.unsealed[0].state).fences == {}


def test_a_sector_behind_the_last_frame_that_cannot_be_read_is_in_doubt() -> None:
    one, two, three = Journal().frames(3)
    end = FRAMES_START + len(one) + len(two)
    torn = Content(one, two, bytes(SECTOR_BYTES), bad=[end])
    found = loaded(torn)
    assert list(found.doubts) == [Doubt(1, end, "a sector cannot be read")]
    assert found.empty == () and [one.segment for one in found.unsealed] == [1]
    found = loaded(torn, Content(three))
    assert found.doubts == (), "what follows says that nothing was there"


# -- several segments


def test_a_first_segment_begins_at_the_first_frame() -> None:
    assert loaded(Content(*Journal().frames(2))).doubts == ()
    late = Journal(2, 5)
    found = loaded(Content(*late.frames(2)))
    assert list(found.doubts) == [Doubt(1, FRAMES_START, "frame 3 does not follow frame 0")]


def test_frames_of_segments_that_were_removed_are_missed_by_nobody() -> None:
    found = loaded(Content(*Journal(2, 5).frames(2)), first=4)
    assert found.doubts == () and found.sequence == 3
    journal = Journal()
    first, _, later = (Content(*journal.frames(2)) for _ in range(3))
    loader = Loader("d", 0)
    loader.take_walk(1, first.walk())
    loader.take_walk(3, later.walk())
    assert loader.finish().doubts == ()


@pytest.mark.parametrize(("first", "is_doubted"), [(4, True), (8, True), (9, False)])
def test_after_a_gap_frames_go_on_and_not_back(first: int, is_doubted: bool) -> None:
    loader = Loader("d", 0)
    loader.take_walk(2, Content(*Journal(6, 5).frames(2)).walk())
    loader.take_walk(4, Content(*Journal(first - 1, 6).frames(2)).walk())
    why = [doubt.why for doubt in loader.finish().doubts]
    assert why == [f"frame {first} does not follow frame 8"] * is_doubted


def test_only_the_first_frame_behind_a_gap_may_follow_nothing() -> None:
    journal = Journal(6, 5)
    one, _, three = journal.frames(3)
    found = loaded(Content(one, three), first=2)
    assert [doubt.why for doubt in found.doubts] == [
        "frame 9 does not follow frame 7",
        "frames before this offset are damaged",
    ]


def test_a_segment_may_begin_anew_and_only_its_first_frame() -> None:
    first, anew = Content(*Journal().frames(2)), Journal(9, 0)
    found = loaded(first, Content(*anew.frames(2)))
    assert found.doubts == () and (found.sequence, found.seen) == (10, 11)
    mixed = Content(*Journal().frames(1), *Journal(9, 0).frames(2))
    found = loaded(mixed)
    assert "frame 10 does not follow frame 1" in [doubt.why for doubt in found.doubts]


def test_all_of_a_segment_is_believed_when_another_frame_follows() -> None:
    journal = Journal()
    first, second = Content(*journal.frames(2)), Content(journal.frame(put(2, 0)))
    found = loaded(first, second)
    assert set(places(found)) == {0, 1} and found.carried == (put(2, 0),)
    [index] = found.unsealed
    assert (index.segment, index.first, index.last) == (1, 1, 2)
    assert found.empty == (2,) and found.doubts == ()


def test_a_frame_that_was_written_again_counts_once() -> None:
    """The copy is in a new segment, because the first one was perhaps in the system's cache
    only.
    """
    journal = Journal()
    one = journal.frame(put(1, 0))
    check = journal.check
    two = journal.frame(put(1, 1))
    again = Journal(1, check).made(put(1, 1), put(1, 2))
    found = loaded(Content(one, two), Content(b"".join(again.parts)))
    assert set(places(found)) == {0} and found.carried == (put(1, 1), put(1, 2))
    assert found.doubts == () and (found.sequence, found.seen) == (1, 2)
    assert [(index.segment, index.last) for index in found.unsealed] == [(1, 1)]


def test_a_torn_copy_of_the_last_frame_does_not_replace_the_whole_one() -> None:
    one, two = Journal().frames(2)
    torn = Content(two)
    torn.data[-SECTOR_BYTES + 100] ^= 1
    found = loaded(Content(one, two), torn)
    assert found.carried == (put(1, 1),) and found.damaged == 0 and found.empty == (2,)
    both = Content(one, two)
    both.data[-SECTOR_BYTES + 100] ^= 1
    found = loaded(both, Content(two))
    assert found.carried == (put(1, 1),) and found.doubts == ()


def test_another_frame_that_is_damaged_is_no_copy() -> None:
    one, two, three = Journal().frames(3)
    damaged = Content(three)
    damaged.data[-SECTOR_BYTES + 100] ^= 1
    found = loaded(Content(one, two), damaged, durable=3)
    assert set(places(found)) == {0, 1, 2} and found.damaged == 1 and found.carried == ()


# -- index files


def test_an_index_file_stands_for_its_segment() -> None:
    journal = Journal()
    first = Content(*journal.frames(3), journal.frame(fence(9, 4)))
    second = Content(journal.frame(put(1, 3)))
    walked, read = loaded(first, second), loaded(sealed(first), second)
    assert places(read) == places(walked) and set(places(read)) == {0, 1, 2}
    assert read.state.fences == walked.state.fences == {9: 4}
    assert (read.sequence, read.check, read.seen) == (4, walked.check, 5)
    assert read.ends == walked.ends and read.unsealed == () and read.doubts == ()
    for found in (read, walked):
        use = found.index.segments[1]
        assert (use.entries, use.size_bytes) == (3, 3 * len(entry(1, 0)))
    assert read.index.find_confirmed(1) == 1


def test_the_bytes_of_a_ledger_with_holes_are_counted_once() -> None:
    journal = Journal()
    far = 2 * HOLE_MAX
    index = sealed(Content(journal.frame(put(1, 0)), journal.frame(put(1, far))))
    assert len(index.ledgers[0].runs) == 2
    found = loaded(index)
    assert set(places(found)) == {0, far}
    assert found.index.segments[1].size_bytes == index.ledgers[0].size_bytes > 0


def test_damage_that_an_index_file_knows_is_told() -> None:
    one, two = Journal().frames(2)
    content = Content(one, two)
    content.data[FRAMES_START + 100] ^= 1
    index = sealed(content)
    assert index.damaged == 1
    assert loaded(index).damaged == 1
    more = Content(one, *Journal(9, 0).frames(1))
    more.data[FRAMES_START + 100] ^= 1
    assert loaded(index, sealed(more, 2)).damaged == 2


def test_an_index_file_that_does_not_follow_is_in_doubt() -> None:
    journal = Journal(4, 5)
    index = sealed(Content(*journal.frames(2)), 2)
    found = loaded(Content(*Journal().frames(1)), index)
    assert list(found.doubts) == [Doubt(2, 0, "frame 5 does not follow frame 1")]
    assert (found.sequence, found.seen) == (6, 6)
    assert found.carried == (), "something follows all frames that were read"


def test_an_index_file_may_be_behind_what_was_seen() -> None:
    old = sealed(Content(*Journal().frames(2)), 2)
    found = loaded(sealed(Content(*Journal(6, 5).frames(2))), old)
    assert (found.sequence, found.seen) == (2, 8)


def test_a_damaged_state_of_an_index_file_is_refused() -> None:
    index = SegmentTail(1).seal("d", b"x")
    with pytest.raises(NotWhole):
        index.state_of()
