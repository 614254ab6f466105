"""The format of a bookie's files: written data is read back, and damaged data is refused."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.ledger.bookie.kit import Looked

from millstream.providers.ledger.bookie.form.envelope import (
    FORMAT,
    HEAD,
    Newer,
    NotWhole,
    unwrap,
    wrap,
)
from millstream.providers.ledger.bookie.form.frame import HEAD as HEAD_OF_FRAME
from millstream.providers.ledger.bookie.form.frame import (
    JOINED_MAX_BYTES,
    SECTOR_BYTES,
    JournalRecord,
    RecordKind,
    Row,
    frame_of,
    front_bytes_of,
    front_of,
)
from millstream.providers.ledger.bookie.form.identity import (
    Identity,
    identity_bytes,
    identity_in,
)
from millstream.providers.ledger.bookie.form.index import Index, Use
from millstream.providers.ledger.bookie.form.intervals import Intervals
from millstream.providers.ledger.bookie.form.runs import HOLE_MAX, Runs, places_bytes, places_in
from millstream.providers.ledger.bookie.form.sealed import pack_sealed, unpack_sealed
from millstream.providers.ledger.bookie.form.segment import (
    FRAMES_START,
    head_bytes,
    head_in,
    number_in,
    offset_of,
    place_of,
    segment_name,
    segment_of,
)
from millstream.providers.ledger.bookie.form.state import (
    TERM_MAX,
    DirectoryState,
    is_state,
    list_fenced,
    state_bytes,
    state_in,
)
from millstream.providers.ledger.bookie.form.tail import SegmentTail
from millstream.providers.ledger.bookie.form.walk import is_entry
from millstream.providers.ledger.protocol.entry import EntryHeader, check_of, pack

SEED = 77
NUMBERS = st.integers(0, 2**63 - 2)
RECORDS = st.lists(
    st.builds(
        JournalRecord, st.sampled_from(RecordKind), NUMBERS, NUMBERS, st.binary(max_size=600)
    ),
    max_size=6,
)


def front_in(data: bytes, seed: int = SEED) -> object:
    size = front_bytes_of(data)
    return front_of(seed, data[:size]) if 0 < size <= len(data) else None


@given(RECORDS, NUMBERS, NUMBERS)
def test_a_frame_comes_back_as_it_was_made(
    records: list[JournalRecord], sequence: int, previous: int
) -> None:
    frame = frame_of(SEED, sequence, previous, records)
    data = b"".join(frame.parts)
    assert len(data) == frame.length and len(data) % SECTOR_BYTES == 0
    front = front_of(SEED, data[: front_bytes_of(data)])
    assert front is not None
    assert (front.sequence, front.previous, front.check) == (sequence, previous, frame.check)
    assert [row.start for row in front.rows] == list(frame.starts)
    found = [
        JournalRecord(row.kind, row.ledger, row.entry, data[row.start : row.start + row.size])
        for row in front.rows
    ]
    assert found == records


@given(RECORDS, st.data())
def test_a_changed_byte_of_a_front_is_found(
    records: list[JournalRecord], data: st.DataObject
) -> None:
    frame = bytearray(b"".join(frame_of(SEED, 3, 4, records).parts))
    at = data.draw(st.integers(0, front_bytes_of(bytes(frame)) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    assert front_in(bytes(frame)) is None


def test_a_frame_of_another_segment_is_none() -> None:
    data = b"".join(frame_of(SEED, 3, 4, [JournalRecord(RecordKind.FENCE, 1, 2)]).parts)
    assert front_in(data) is not None and front_in(data, seed=SEED + 1) is None


def test_a_small_frame_is_one_piece_and_large_bodies_are_not_copied() -> None:
    for size in (JOINED_MAX_BYTES - 64, JOINED_MAX_BYTES - 63):  # with the front, 64 bytes more
        body = bytes(size)
        frame = frame_of(SEED, 1, 0, [JournalRecord(RecordKind.ENTRY, 1, 2, body)])
        is_joined = frame.length == JOINED_MAX_BYTES
        assert is_joined == (len(frame.parts) == 1) == (size == JOINED_MAX_BYTES - 64)
        assert is_joined or any(part is body for part in frame.parts)


@pytest.mark.parametrize(
    ("magic", "version", "length", "count"),
    [(b"MSfx", 1, 512, 1), (b"MSfr", 2, 512, 1), (b"MSfr", 1, 511, 1), (b"MSfr", 1, 512, 20)],
    ids=["magic", "version", "length", "too many records"],
)
def test_what_does_not_begin_as_a_frame_is_none(
    magic: bytes, version: int, length: int, count: int
) -> None:
    assert front_bytes_of(HEAD_OF_FRAME.pack(b"MSfr", 1, 0, 512, 19, 1, 1) + bytes(8)) == 496
    head = HEAD_OF_FRAME.pack(magic, version, 0, length, count, 1, 1)
    assert front_bytes_of(head + bytes(999)) == 0
    assert front_bytes_of(head + bytes(7)) == 0


def test_an_index_is_told_only_what_it_did_not_know() -> None:
    index = Index()
    assert not index.tell(1, 5) and index.find_confirmed(1) == -1
    index.put(1, 0, place_of(1, 512), 10, 3)
    assert [index.tell(1, number) for number in (2, 3, 4, 4)] == [False, False, True, False]
    assert index.find_confirmed(1) == 4


@pytest.mark.parametrize("size", range(0, 64))
def test_a_frame_that_was_cut_in_its_front_is_none(size: int) -> None:
    data = b"".join(frame_of(SEED, 3, 4, [JournalRecord(RecordKind.FENCE, 1, 2)]).parts)
    assert front_in(data[:size]) is None or size == front_bytes_of(data)


@given(st.binary(max_size=40), st.data())
def test_a_changed_or_cut_envelope_is_refused(payload: bytes, data: st.DataObject) -> None:
    whole = wrap(b"MStested", payload)
    assert unwrap(b"MStested", whole + b"behind") == payload
    at = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
        with pytest.raises(NotWhole):
            unwrap(b"MStested", wrong)
    with pytest.raises(NotWhole, match="the first bytes are"):
        unwrap(b"MSother_", whole)


def test_an_envelope_has_the_form_that_is_written_down() -> None:
    data = wrap(b"MStested", b"ab")
    assert data[:26].hex() == b"MStested".hex() + "01000000" + "00000000" + "02" + "00" * 7 + "6162"
    assert data[26:] == check_of(data[:26]).to_bytes(8, "little")


def test_a_newer_envelope_is_told_from_damage() -> None:
    data = HEAD.pack(b"MStested", FORMAT + 1, 0, 0)
    with pytest.raises(Newer, match=f"format {FORMAT + 1}"):
        unwrap(b"MStested", data + check_of(data).to_bytes(8, "little"))


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=12)


@given(PAIRS, st.lists(st.integers(0, 50), max_size=8))
def test_intervals_are_a_set(pairs: list[tuple[int, int]], gone: list[int]) -> None:
    found, model = Intervals(), set[int]()
    for first, more in pairs:
        found.add(first, first + more)
        model |= set(range(first, first + more + 1))
    for number in gone:
        found.remove(number)
        model.discard(number)
    assert list(found.numbers()) == sorted(model)
    assert all((number in found) == (number in model) for number in range(60))
    ends = [end for pair in found for end in pair]
    assert all(a <= b for a, b in found) and ends == sorted(ends)
    assert all(b[0] > a[1] + 1 for a, b in zip(list(found), list(found)[1:], strict=False))


ENTRIES = st.one_of(st.integers(0, 30), st.integers(0, 3 * HOLE_MAX), st.integers(0, 2**62))


@given(st.lists(st.tuples(ENTRIES, st.integers(1, 2**63))))
def test_runs_are_a_dictionary(puts: list[tuple[int, int]]) -> None:
    runs, model = Runs(), dict[int, int]()
    for number, place in puts:
        assert runs.put(number, place) == model.get(number, 0)
        model[number] = place
    assert len(runs) == len(model) and runs.last == max(model, default=-1)
    for number in [*model, *(number + 1 for number in model), 0]:
        assert runs.get(number) == model.get(number, 0)
    room = sum(len(places) for _, places in runs)
    assert room <= len(model) * (HOLE_MAX + 1)
    bases = [base for base, _ in runs]
    assert bases == sorted(bases)


@given(st.lists(st.tuples(st.integers(0, 2 * HOLE_MAX), st.lists(st.integers(0, 3)))))
def test_runs_that_are_added_behind_are_there_with_their_holes(
    added: list[tuple[int, list[int]]],
) -> None:
    runs, model, base = Runs(), dict[int, int](), 0
    for gap, places in added:
        base += gap
        runs.extend(base, array("Q", places))
        model |= {base + at: place for at, place in enumerate(places) if place}
        base = max(base + len(places), runs.last + 1)
    assert len(runs) == len(model)
    assert all(runs.get(number) == model.get(number, 0) for number in range(base + 3))


@pytest.mark.parametrize(("gap", "count"), [(1, 1), (HOLE_MAX, 1), (HOLE_MAX + 1, 2)])
def test_a_new_run_begins_where_too_many_entries_are_missing(gap: int, count: int) -> None:
    behind, before, added = Runs(), Runs(), Runs()
    behind.put(1_000, 7)
    behind.put(1_001 + gap, 8)
    before.put(1_001, 7)
    before.put(1_001 - gap, 8)
    added.put(1_000, 7)
    added.extend(1_001 + gap, array("Q", (8,)))
    assert len(list(behind)) == len(list(added)) == count
    assert len(list(before)) == count
    assert before.get(1_001) == 7 and before.get(1_001 - gap) == 8


def test_places_are_stored_as_little_endian_numbers() -> None:
    assert places_bytes(array("Q", (1, 2**63))).hex() == "01" + "00" * 14 + "80"
    assert places_in(places_bytes(array("Q", (5, 6)))) == array("Q", (5, 6))


PUTS = st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(1, 4), st.integers(-1, 20))


@given(st.lists(PUTS, max_size=40), st.sets(st.integers(1, 3)))
def test_an_index_knows_what_each_segment_still_has(
    puts: list[tuple[int, int, int, int]], gone: set[int]
) -> None:
    index, model = Index(), dict[tuple[int, int], int]()
    confirmed = dict[int, int]()
    for at, (ledger, number, segment, sure) in enumerate(puts):
        index.put(ledger, number, place_of(segment, at + 1), 100, sure)
        model[ledger, number] = place_of(segment, at + 1)
        confirmed[ledger] = max(confirmed.get(ledger, -1), sure)
    for ledger in gone:
        index.drop(ledger)
    model = {key: place for key, place in model.items() if key[0] not in gone}
    for ledger in range(1, 4):
        assert index.find_confirmed(ledger) == (-1 if ledger in gone else confirmed.get(ledger, -1))
        for number in range(14):
            assert index.find(ledger, number) == model.get((ledger, number), 0)
    for segment in range(1, 5):
        mine = {(*key, place) for key, place in model.items() if segment_of(place) == segment}
        assert set(index.entries_in(segment)) == mine
        use = index.segments.get(segment)
        assert (use.entries, use.size_bytes) == (len(mine), 100 * len(mine)) if use else not mine


@given(st.lists(PUTS, max_size=30), st.lists(PUTS, max_size=30))
def test_a_segments_index_file_brings_back_what_was_put(
    first: list[tuple[int, int, int, int]], second: list[tuple[int, int, int, int]]
) -> None:
    """The second segment repeats some entries of the first."""
    direct, loaded = Index(), Index()
    for segment, puts in ((1, first), (2, second)):
        tail = SegmentTail(segment)
        for at, (ledger, number, _, sure) in enumerate(puts):
            for index in (direct, tail.index):
                index.put(ledger, number, place_of(segment, at + 1), 100, sure)
        data = pack_sealed(tail.seal("d", state_bytes(DirectoryState())))
        for found in unpack_sealed(data, "d", segment).ledgers:
            for base, places in found.places():
                loaded.put_run(found.ledger, base, places, found.size_bytes, found.confirmed)
    for ledger in range(1, 4):
        assert loaded.find_confirmed(ledger) == direct.find_confirmed(ledger)
        for number in range(14):
            assert loaded.find(ledger, number) == direct.find(ledger, number)
    for segment in (1, 2):
        counts = [
            use.entries if (use := index.segments.get(segment)) else 0 for index in (direct, loaded)
        ]
        assert counts[0] == counts[1]
    with pytest.raises(NotWhole):
        unpack_sealed(data, "other", 2)


def test_an_index_file_without_a_whole_state_is_none() -> None:
    data = pack_sealed(SegmentTail(1).seal("d", state_bytes(DirectoryState())[:-1]))
    with pytest.raises(NotWhole):
        unpack_sealed(data, "d", 1)


def test_a_state_comes_back_and_its_fences_only_rise() -> None:
    state = DirectoryState()
    state.doubt_below = 9
    state.fence(1, 5)
    state.fence(1, 4)
    state.fence(2, 1)
    state.fence(8, 1)
    state.forget(2, 3)
    state.fence(2, 7)
    found = state_in(state_bytes(state))
    assert [found.term_of(ledger) for ledger in (1, 2, 3, 4, 8)] == [5, TERM_MAX, TERM_MAX, 0, 1]
    assert (found.doubt_below, found.fences) == (9, {1: 5, 8: 1})


STEPS = st.one_of(
    st.tuples(st.just("fence"), st.integers(0, 12), st.integers(1, 5)),
    st.tuples(st.just("forget"), st.integers(0, 12), st.integers(0, 3)),
)


@given(st.lists(STEPS, max_size=30))
def test_fences_and_tombstones_are_those_of_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    state, terms = DirectoryState(), dict[int, int]()
    for what, ledger, number in steps:
        if what == "fence":
            state.fence(ledger, number)
            terms[ledger] = max(number, terms.get(ledger, 0))
        else:
            state.forget(ledger, ledger + number)
            terms |= dict.fromkeys(range(ledger, ledger + number + 1), TERM_MAX)
        assert [state.term_of(one) for one in range(20)] == [terms.get(one, 0) for one in range(20)]
        assert state.fences == {one: t for one, t in terms.items() if t < TERM_MAX}
    state.doubt(7)
    state.doubt(3)
    found = state_in(state_bytes(state))
    assert (found.fences, list(found.forgotten)) == (state.fences, list(state.forgotten))
    assert found.doubt_below == 7


def test_names_and_heads_of_segments_come_back() -> None:
    assert number_in(segment_name(7)) == 7
    assert number_in("identity") is number_in("7.seg") is number_in("x" * 16 + ".seg") is None
    head = head_in(head_bytes("d", 7))
    assert (head.directory, head.segment) == ("d", 7)
    assert len(head_bytes("d" * 32, 2**32)) == SECTOR_BYTES
    assert (segment_of(place_of(9, 512)), offset_of(place_of(9, 512))) == (9, 512)


def test_an_identity_comes_back() -> None:
    identity = Identity("d", "c", 2, 3).with_segment(1).with_segment(2).with_segment(3)
    identity = identity.without_segment(2)
    assert identity_in(identity_bytes(identity)) == identity
    assert (identity.segments, identity.last_segment) == (((1, 1), (3, 3)), 3)


def test_a_frame_may_be_all_table() -> None:
    records = [JournalRecord(RecordKind.FENCE, ledger, 2) for ledger in range(41)]
    frame = frame_of(SEED, 3, 4, records)
    data = b"".join(frame.parts)
    assert frame.length == len(data) == front_bytes_of(data) == 2 * SECTOR_BYTES
    front = front_of(SEED, data)
    assert front is not None and [row.ledger for row in front.rows] == list(range(41))


def test_what_is_reserved_is_zero() -> None:
    data = b"".join(frame_of(SEED, 3, 4, [JournalRecord(RecordKind.FENCE, 1, 2)]).parts)
    assert HEAD_OF_FRAME.unpack_from(data)[2] == 0


@pytest.mark.parametrize("offset", [1, 512, 513, 2**32 - 1])
def test_a_place_has_segment_and_offset(offset: int) -> None:
    place = place_of(7, offset)
    assert (segment_of(place), offset_of(place)) == (7, offset)


def test_an_index_counts_how_often_entries_of_a_ledger_were_put() -> None:
    index = Index()
    assert index.puts(1) == -1
    for count, entry in enumerate((0, 1, 1), 1):
        index.put(1, entry, place_of(1, 512), 90, -1)
        assert (index.puts(1), index.puts(2)) == (count, -1)


def test_a_state_denies_only_what_was_never_here() -> None:
    state = DirectoryState()
    state.doubt(3)
    assert [state.denies(ledger) for ledger in (2, 3, 5)] == [False, True, True]
    state.apply(Row(RecordKind.LEAVE, 5, 0, 0, 0))
    assert not state.denies(5) and state.denies(6)
    state.apply(Row(RecordKind.FENCE, 6, 4, 0, 0))
    assert state.term_of(6) == 4 and state.denies(6)
    state.apply(Row(RecordKind.FORGET, 5, 6, 0, 0))
    assert [state.term_of(ledger) for ledger in (5, 6, 7)] == [TERM_MAX, TERM_MAX, 0]
    assert [state.denies(ledger) for ledger in (5, 6, 7)] == [False, False, True]
    assert state.left == set() and state.fences == {}, "of what is forgotten nothing else is kept"


def test_too_few_bytes_are_no_entry() -> None:
    packed = pack(EntryHeader(1, 2, -1, -1, 3, 3), b"abc")
    assert is_entry(1, 2, packed) and not is_entry(1, 3, packed)
    assert not any(is_entry(1, 2, packed[:size]) for size in range(len(packed)))


def test_a_segment_knows_its_first_frame_and_its_last() -> None:
    tail = SegmentTail(7)
    none = tail.seal("d", b"")
    assert (none.segment, none.first, none.last, none.previous, none.check) == (7, -1, -1, 0, 0)
    assert (none.end, none.damaged, none.ledgers) == (FRAMES_START, 0, [])
    for sequence in range(3):
        tail.grow(sequence, 50 + sequence, 60 + sequence, 1024 + sequence)
    found = tail.seal("d", b"")
    assert (found.first, found.previous) == (0, 50)
    assert (found.last, found.check, found.end) == (2, 62, 1026)


def test_places_are_little_endian_on_a_big_endian_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = array("Q", [1, 2**40])
    swapped = array("Q", places)
    swapped.byteswap()
    monkeypatch.setattr("sys.byteorder", "big")
    assert places_bytes(places) == swapped.tobytes()
    assert places == array("Q", [1, 2**40]), "what was given is left as it was"
    assert places_in(swapped.tobytes()) == places


def test_a_segment_never_has_less_than_no_bytes() -> None:
    """Sizes are estimates, so more may be subtracted than was added."""
    use = Use(2, 100)
    use.take(1, 150)
    assert (use.entries, use.size_bytes) == (1, 0)


def test_a_ledger_that_was_left_is_known_after_a_restart() -> None:
    state = DirectoryState()
    state.apply(Row(RecordKind.LEAVE, 5, 0, 0, 0))
    found = state_in(state_bytes(state))
    assert found.left == {5} and not found.denies(5) and found.denies(6)


def test_a_state_that_is_cut_damaged_or_newer_is_none() -> None:
    data = state_bytes(DirectoryState())
    newer = HEAD.pack(data[:8], FORMAT + 1, 0, 0)
    newer += check_of(newer).to_bytes(8, "little")
    assert is_state(data) is True
    assert [is_state(other) for other in (data[:-1], data[:-1] + b"x", newer)] == [False] * 3


def test_finding_what_is_fenced_costs_the_smaller_of_range_and_table() -> None:
    many = Looked({ledger: 1 for ledger in range(1000)})
    assert list(list_fenced(many, 10, 12)) == [10, 11, 12] and many.looks == 3
    few = Looked({5: 1, 2000: 1})
    assert list(list_fenced(few, 0, 999)) == [5] and few.looks == 0
