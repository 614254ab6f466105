"""The tests of an index, wherever it is stored. A subclass per database gives `place`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.providers.index.kit import (
    NAMES_CHANGE,
    START_MS,
    Contents,
    Died,
    Dying,
    DyingDatabase,
    DyingDisk,
    batches_of,
    change,
    contents,
    lived,
    name_of,
    numbered,
    wanted_contents,
    wanted_current,
)
from tests.providers.index.sharded import IDS, QUEUE, VALUES, exclusive_changes

from millstream.providers.spark.index import (
    ChangeRow,
    IndexOptions,
    IndexWriter,
    PriorityIndex,
    differences,
)
from millstream.providers.spark.index.changes import COLUMNS, DAY_MS, day_of
from millstream.providers.spark.index.files import HistoryFiles
from millstream.providers.spark.index.place import open_database
from millstream.runtime import ConfigError, StorageUnavailable
from millstream.runtime.extending import RealDisk

FOR_EVER = IndexOptions(history_days=None)
END_MS = START_MS + 400 * DAY_MS


def content(place: str) -> Contents:
    with closing(open_database(place, writes=False)) as database:
        return contents(database)


def put(
    place: str,
    batches: Sequence[Sequence[ChangeRow]],
    query: str = "query",
    options: IndexOptions = FOR_EVER,
    now_ms: int = END_MS,
) -> IndexWriter:
    """Apply all batches, as Spark does."""
    writer = IndexWriter(place, options)
    for batch, rows in numbered(batches):
        writer.apply(query, batch, rows, now_ms)
    return writer


def put_dying(writer: IndexWriter, place: str, rows: Sequence[ChangeRow], at: int | None) -> int:
    """Apply a batch in a process that dies before step `at`, and return the number of steps."""
    dying = Dying(at)
    writer._disk = DyingDisk(RealDisk(), dying)
    with closing(open_database(place, writes=True)) as database:
        writer._apply_in(DyingDatabase(database, dying), "query", 1, rows, END_MS)
    return dying.steps


def in_files(directory: Path) -> list[tuple[Any, ...]]:
    """The names of the changes in the files, sorted."""
    from pyarrow import parquet

    found: list[tuple[Any, ...]] = []
    for path in directory.glob("dt=*/*.parquet"):
        rows = parquet.read_table(path, partitioning=None)
        assert rows.column_names == list(COLUMNS)
        for one in rows.to_pylist():
            assert path.parent.name == f"dt={day_of(one['time_ms'])}"
            found.append(tuple(one[name] for name in NAMES_CHANGE))
    return sorted(found)


class IndexSuite:
    """The tests. A subclass has a fixture `place` that names an empty database."""

    @pytest.mark.parametrize("seed", range(6))
    def test_it_has_what_the_changes_say(self, place: str, seed: int) -> None:
        changes = lived(seed)
        put(place, batches_of(changes, Random(seed)))
        assert content(place) == wanted_contents(changes)
        with PriorityIndex(place) as index:
            assert not index.verify()

    async def test_messages_of_several_shards_that_share_an_id_are_all_there(
        self, place: str
    ) -> None:
        changes, depths = await exclusive_changes()
        put(place, [changes])
        with PriorityIndex(place) as index:
            assert sum(index.depth()[QUEUE].values()) == VALUES * IDS
            assert not differences(index.depth(), depths) and not index.verify()

    def test_a_batch_that_comes_again_and_a_replay_from_the_first_change_alter_nothing(
        self, place: str
    ) -> None:
        changes = lived(7)
        batches = batches_of(changes, Random(7))
        writer = put(place, batches)
        for batch, rows in numbered(batches):
            assert writer.apply("query", batch, rows, END_MS).is_repeat
        put(place, batches_of(changes, Random(8)), query="another")
        assert content(place) == wanted_contents(changes)

    def test_batches_of_two_queries_in_any_order_end_alike(self, place: str) -> None:
        changes = lived(9)
        rng = Random(9)
        halves = [batches_of(changes, rng), batches_of(changes, rng)]
        writer = IndexWriter(place, FOR_EVER)
        for at in range(max(map(len, halves))):
            for query, batches in enumerate(halves):
                if at < len(batches):
                    writer.apply(f"q{query}", at, batches[at], END_MS)
        assert content(place) == wanted_contents(changes)

    def test_batches_in_any_order_end_alike(self, place: str) -> None:
        changes = lived(10)
        batches = batches_of(changes, Random(10))
        put(place, batches[::-1])
        assert content(place) == wanted_contents(changes)

    def test_whatever_step_is_the_last_the_batch_counts_once(
        self, place: str, tmp_path: Path
    ) -> None:
        changes = lived(3, steps=60)
        files = tmp_path / "history"
        options = IndexOptions(history_days=None, parquet=files)
        writer = IndexWriter(place, options)
        writer.apply("query", 0, changes[:30], END_MS)
        at = 1
        while True:
            with suppress(Died):
                put_dying(writer, place, changes[30:], at)
                break
            first = wanted_contents(changes[:30])
            assert content(place) in (first, wanted_contents(changes))
            at += 1
        assert at > 20
        assert content(place) == wanted_contents(changes)
        assert in_files(files) == sorted(row[:6] for row in changes)

    def test_files_have_once_what_comes_twice(self, place: str, tmp_path: Path) -> None:
        files = tmp_path / "history"
        options = IndexOptions(history_days=None, parquet=files)
        rows = [change(), change(seq=2), change(version=2, seq=3, source="pending")]
        put(place, [rows, rows], options=options)
        assert in_files(files) == [rows[0][:6], rows[2][:6]]

    def test_files_of_a_batch_that_another_query_put_in_meanwhile_are_not_shown(
        self, place: str, tmp_path: Path
    ) -> None:
        files = tmp_path / "history"
        writer = IndexWriter(place, IndexOptions(history_days=None, parquet=files))
        writer.apply("query", 0, [change()], END_MS)
        rows = [change(version=2, source="pending")]
        HistoryFiles(files).save("query", 1, rows)  # the query dies before its transaction ends
        put(place, [rows], "another")  # a query without files
        writer.apply("query", 1, rows, END_MS)
        assert in_files(files) == [change()[:6]]

    def test_a_day_begins_at_midnight(self, place: str, tmp_path: Path) -> None:
        files = tmp_path / "history"
        options = IndexOptions(history_days=1, parquet=files)
        first, last = change(id="a", time_ms=START_MS - 1), change(id="b", time_ms=START_MS)
        put(place, [[first, last]], options=options, now_ms=START_MS)
        writer = IndexWriter(place, options)
        late, in_time = change(id="c", seq=8, time_ms=START_MS - 9), change(id="d", seq=9)
        done = writer.apply("query", 1, [late, in_time], START_MS + DAY_MS + 5)
        assert done.trimmed_before_ms == START_MS
        with PriorityIndex(place) as index:
            kept = [id for id in "abcd" if index.history("q", id)]
            assert kept == ["b", "c", "d"] and index.depth() == {"q": {"pending": 4}}
        assert [row[2] for row in in_files(files)] == ["b", "d"]
        # a clock that goes back and a time on the same day delete nothing more
        for batch, now_ms in ((2, START_MS), (3, START_MS + DAY_MS + 6)):
            done = writer.apply("query", batch, [], now_ms)
            assert done.trimmed_before_ms == START_MS
        with PriorityIndex(place) as index:
            assert index.history("q", "c") == [late]

    def test_what_was_deleted_stays_so_when_a_lower_token_follows(self, place: str) -> None:
        options = IndexOptions(history_days=1)
        old = change(id="a", seq=9, time_ms=START_MS)
        newer = change(id="b", seq=5, time_ms=START_MS + DAY_MS)
        put(place, [[old, newer]], options=options, now_ms=START_MS)
        writer = IndexWriter(place, options)
        for batch, days in ((1, 2), (2, 3)):
            writer.apply("query", batch, [], START_MS + days * DAY_MS)
        writer.apply("another", 0, [old, newer], START_MS + 3 * DAY_MS)
        with PriorityIndex(place) as index:
            assert not index.history("q", "a") and not index.history("q", "b")

    def test_history_goes_by_days_and_a_replay_brings_nothing_of_it_back(
        self, place: str, tmp_path: Path
    ) -> None:
        changes = lived(11, steps=200)
        files = tmp_path / "history"
        options = IndexOptions(history_days=2, parquet=files)
        batches = [changes[at : at + 20] for at in range(0, len(changes), 20)]
        writer = IndexWriter(place, options)
        for batch, rows in numbered(batches):
            now_ms = max(one.time_ms for one in rows)
            done = writer.apply("query", batch, rows, now_ms)
        before_ms = done.trimmed_before_ms
        assert before_ms == now_ms - 2 * DAY_MS - now_ms % DAY_MS
        found = content(place)
        wanted = wanted_contents(changes, before_ms)
        assert found[0] == wanted[0]
        late = [row for row in found[1] if row[8] < before_ms]
        assert [row for row in found[1] if row[8] >= before_ms] == wanted[1] != []
        assert len(late) < 20  # late rows of the last batch, older than the deletion
        kept = in_files(files)
        assert kept == sorted(row[:6] for row in wanted[1])
        put(place, batches, "another", options, now_ms)
        assert content(place) == found and in_files(files) == kept
        with PriorityIndex(place) as index:
            assert not index.verify()

    def test_a_replay_over_deleted_history_does_not_bring_a_collected_message_back(
        self, place: str
    ) -> None:
        day, options = DAY_MS, IndexOptions(history_days=1)
        life = [
            change(version=1, time_ms=START_MS),
            change(version=2, source="pending", target="canceled", step="canceled"),
            change(version=3, source="canceled", target=None, step="collected"),
        ]
        put(place, [life], options=options, now_ms=START_MS)
        other = change(id="other", seq=9, time_ms=START_MS + 5 * day)
        writer = IndexWriter(place, options)
        assert writer.apply("query", 1, [other], START_MS + 5 * day).trimmed_before_ms
        writer.apply("another", 0, life[:1], START_MS + 5 * day)
        with PriorityIndex(place) as index:
            assert index.depth() == {"q": {"pending": 1}}
            assert not index.messages("q", "m") and not index.history("q", "m")

    def test_what_comes_late_of_an_earlier_era_is_put_in(self, place: str) -> None:
        options = IndexOptions(history_days=1)
        early = change(id="a", era=2, seq=5)
        put(place, [[early]], options=options, now_ms=START_MS)
        late_ms = START_MS + 5 * DAY_MS
        writer = IndexWriter(place, options)
        writer.apply("query", 1, [], late_ms)
        late = change(id="b", era=1, seq=900, time_ms=late_ms)
        writer.apply("query", 2, [late, change(id="c", era=2, seq=4)], late_ms)
        early_again = change(id="a", era=1, seq=901, version=0)
        writer.apply("query", 3, [early_again], late_ms)
        with PriorityIndex(place) as index:
            assert index.messages("q", "b") == [late] and not index.messages("q", "c")
            assert index.messages("q", "a") == [early] and not index.history("q", "a")[1:]

    def test_an_id_that_is_used_again_has_two_lives(self, place: str) -> None:
        first = [
            change(version=1, seq=1),
            change(version=2, source="pending", target="canceled", step="canceled", seq=2),
            change(version=3, source="canceled", target=None, step="collected", seq=3),
        ]
        again = change(created_ms=START_MS + 5, sequence=2, time_ms=START_MS + 5, seq=4)
        put(place, [[again], first])
        with PriorityIndex(place) as index:
            assert index.messages("q", "m") == [again]
            assert index.history("q", "m") == [*first, again] and not index.verify()
            assert index.time_in_state("q", now_ms=START_MS + 6) == [
                ("canceled", 1, 0, 0),
                ("pending", 2, 1, 1),
            ]

    # -- queries

    def test_depths_by_queue_state_and_metadata(self, place: str) -> None:
        rows = [
            change(id=f"m{at}", seq=at, metadata={"region": "ab"[at % 2], "size": str(at % 3)})
            for at in range(12)
        ]
        rows.append(change("r", "x", metadata={"it's": 'a "quote"'}))
        put(place, [rows])
        with PriorityIndex(place) as index:
            assert index.depth() == {"q": {"pending": 12}, "r": {"pending": 1}}
            assert index.depth("q", wanted={"region": "a"}) == {"q": {"pending": 6}}
            both = {"region": "a", "size": "0"}
            assert index.depth(wanted=both) == {"q": {"pending": 2}}
            assert index.depth(wanted={"it's": 'a "quote"'}) == {"r": {"pending": 1}}
            assert index.depth("none") == {} == index.depth(wanted={"region": "c"})

    def test_time_in_states_and_errors_of_processing(self, place: str) -> None:
        def at(version: int, source: str, target: str, ms: int, step: str, tries: int) -> ChangeRow:
            found = change(version=version, source=source, target=target, step=step)
            return found._replace(time_ms=START_MS + ms, attempt=tries)

        put(
            place,
            [
                [
                    change(version=1),
                    at(2, "pending", "running", 100, "dequeued", 1),
                    # released, and therefore not counted
                    at(3, "running", "pending", 150, "released", 0),
                    at(4, "pending", "running", 200, "dequeued", 1),
                    at(5, "running", "pending", 230, "released", 1),
                    at(6, "pending", "running", 300, "dequeued", 2),
                    at(7, "running", "pending", 310, "expired", 2),
                    at(8, "pending", "running", 320, "dequeued", 3),
                    at(9, "running", "errored", 325, "failed", 3),
                ],
                [change("r", "other")],
                # the first changes of `s` are older than the index
                [change("s", version=5, source="running", step="released", attempt=2)],
            ],
        )
        with PriorityIndex(place) as index:
            assert index.time_in_state("q", "m") == [
                ("errored", 1, 0, 0),
                ("pending", 4, 100 + 50 + 70 + 10, 100),
                ("running", 4, 50 + 30 + 10 + 5, 50),
            ]
            until = index.time_in_state("q", now_ms=START_MS + 1_325)
            assert until == [
                ("errored", 1, 1_000, 1_000),
                *index.time_in_state("q", "m")[1:],
            ]
            errors = index.processing_errors("q", "m")
            assert errors == (1, 1, 1) and errors.total == 3
            assert index.processing_errors(since_ms=START_MS + 310) == (1, 1, 0)
            assert index.processing_errors("r").total == 0
            assert index.processing_errors("s") == (0, 0, 1)
            assert [one.state for one in index.time_in_state()] == ["errored", "pending", "running"]

    def test_versions_that_are_missing_are_named(self, place: str) -> None:
        changes = [one for one in lived(5) if one.version != 3]
        begun = change(id="late", version=2, created_ms=START_MS + 1, time_ms=START_MS + 2, seq=999)
        old = change(id="old", version=5, created_ms=START_MS - 1, seq=1_000)
        put(place, [[*changes, begun._replace(queue="q0"), old._replace(queue="q0")]])
        gaps = {name_of(one) for one in lived(5) if one.version > 3}
        with PriorityIndex(place) as index:
            found = index.verify()
        named = [((one.queue, one.shard, one.id), one.missing) for one in found]
        assert {name for name, missing in named if missing} == {*gaps, ("q0", 0, "late")}
        # a missing collection shows when the id was used again
        latest = {name_of(one): one for one in lived(5)}
        ends = [one for one in lived(5) if one.version == 3 and one.to_state is None]
        ends = [one for one in ends if one != latest[name_of(one)]]
        uncollected = sorted(name for name, missing in named if not missing)
        assert uncollected == sorted(map(name_of, ends)) != []

    async def test_a_message_of_which_nothing_is_there_is_found_by_its_number(
        self, place: str
    ) -> None:
        changes, _ = await exclusive_changes()
        changes = [one._replace(created_ms=one.created_ms + 60_000) for one in changes]
        shards = {one.shard for one in changes}
        put(place, [[one for one in changes if one.sequence not in (20, 21)]])
        with PriorityIndex(place) as index:
            found = index.verify()
        assert [(one.shard, one.id, one.missing) for one in found] == [
            (shard, "", 2) for shard in sorted(shards)
        ]
        assert len(shards) == 4 and "sequences 20 to 21" in found[0].what

    def test_tables_that_take_two_messages_for_one_are_found(self, place: str) -> None:
        first, second = change(shard=1), change(shard=2, seq=2)
        later = change(shard=2, sequence=2, id="n", created_ms=START_MS + 1, seq=3)
        put(place, [[first, second, later]])
        with closing(
            open_database(place, writes=True)
        ) as database:  # as if the key contained no shard
            database.run("DELETE FROM current WHERE shard = 1")
            database.run("UPDATE historic SET id = 'm' WHERE id = 'n'")
            database.run("UPDATE current SET id = 'm', shard = 3 WHERE id = 'n'")
        with PriorityIndex(place) as index:
            found = index.verify()
        assert [(one.shard, one.id) for one in found] == [(1, "m"), (2, "m")]
        assert "sequence 1, which is older" in found[1].what

    def test_a_message_that_was_not_collected_when_its_id_came_again_is_found(
        self, place: str
    ) -> None:
        again = change(created_ms=START_MS + 5, sequence=2, time_ms=START_MS + 5, seq=4)
        put(place, [[change(), again]])
        with PriorityIndex(place) as index:
            (found,) = index.verify()
        assert found.id == "m" and "was the queue deleted?" in found.what

    def test_a_current_that_is_not_as_the_history_is_found(self, place: str) -> None:
        changes = lived(6)
        put(place, [changes])
        present = sorted(wanted_current(changes))
        with closing(open_database(place, writes=True)) as database:
            gone, stale = present[:2]
            where = "queue = ? AND shard = ? AND id = ?"
            database.run(f"DELETE FROM current WHERE {where}", gone)
            database.run(f"UPDATE current SET version = 0 WHERE {where}", stale)
            over = (one for one in changes if one.to_state is None)
            ended = next(one for one in over if name_of(one) not in present)
            columns = ", ".join(COLUMNS).replace("to_state", "'pending'")
            database.run(
                f"INSERT INTO current SELECT {columns} FROM historic WHERE token = ?",
                (ended.token,),
            )
        with PriorityIndex(place) as index:
            found = index.verify()
        wrong = sorted([gone, stale, name_of(ended)])
        assert [(one.queue, one.shard, one.id) for one in sorted(found)] == wrong

    # -- transactions and tables

    def test_nothing_is_in_when_a_row_cannot_be(self, place: str) -> None:
        good = change()
        bad = change(id="bad")._replace(version="x")  # type: ignore[arg-type]
        writer = put(place, [[good]])
        if "sqlite" not in place:
            with pytest.raises(StorageUnavailable):
                writer.apply("query", 1, [change(id="b"), bad], END_MS)
        with pytest.raises(StorageUnavailable, match="NOT NULL|not-null|null value"):
            writer.apply("query", 1, [change(id="b"), good._replace(id=None)], END_MS)  # type: ignore[arg-type]
        assert content(place) == wanted_contents([good])
        assert not writer.apply("query", 1, [change(id="b")], END_MS).is_repeat

    def test_one_writes_at_a_time_and_readers_do_not_mind(self, place: str) -> None:
        put(place, [[change()]])
        with closing(open_database(place, writes=True)):
            with pytest.raises(ConfigError, match="writes this index"):
                open_database(place, writes=True)
            with PriorityIndex(place) as index:
                assert index.depth() == {"q": {"pending": 1}}
        put(place, [[], [change(id="b")]])
        with PriorityIndex(place) as index:
            assert index.depth() == {"q": {"pending": 2}}

    def test_an_empty_place_and_one_of_another_version_are_refused(self, place: str) -> None:
        with pytest.raises(ConfigError, match="there is no index"):
            PriorityIndex(place)
        writer = put(place, [[change()]])
        with closing(open_database(place, writes=True)) as database:
            database.run("UPDATE marks SET value = '7' WHERE name = 'version'")
        for use in (lambda: PriorityIndex(place), lambda: writer.apply("q", 1, [], END_MS)):
            with pytest.raises(ConfigError, match="is an index of version 7"):
                use()

    def test_changes_of_another_source_are_refused(self, place: str) -> None:
        writer = put(place, [[change()]])
        for source in ("cluster 'a', incarnation 1", "cluster 'a', incarnation 1"):
            writer.prepare(source)
        with pytest.raises(ConfigError, match="changes of cluster 'a', .* 1, .* reads cluster 'b'"):
            writer.prepare("cluster 'b', incarnation 2")
        assert content(place) == wanted_contents([change()])

    def test_tables_of_somebody_else_are_refused(self, place: str) -> None:
        with closing(open_database(place, writes=True)) as database:
            database.run("CREATE TABLE theirs (a TEXT)")
        with pytest.raises(ConfigError, match="do not belong to an index"):
            put(place, [[change()]])
