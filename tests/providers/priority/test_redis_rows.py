"""The data that a store in Redis writes, without a server: keys, rows, and arguments of scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from redis.crc import key_slot
from tests.providers.priority.row_store import RowStore

from millstream.providers.priority import OwnerLost, QueueSettings, SettingsRow
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.changes import Changes, Counters
from millstream.providers.priority.core.commands import (
    Cancel,
    Configure,
    Dequeue,
    Enqueue,
    perform,
)
from millstream.providers.priority.core.core import PriorityCore, QueueRows
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.redis import RedisOptions
from millstream.providers.priority.redis.keys import (
    LANES,
    QueueKeys,
    lane_keys,
    lane_of,
    queue_keys,
)
from millstream.providers.priority.redis.loading import QueueReader
from millstream.providers.priority.redis.rows import (
    Head,
    answer_of,
    commit_lists,
    event_of,
    head_of,
    message_of,
    pack_settings,
    payload_bytes,
    session_of,
)
from millstream.runtime import StorageError

SETTINGS = QueueSettings("project", 2, shapes=(("a", "b"),), answers_kept_ms=100)
NAMES = ["q", "a/b", "{x}y", "}{", "ä\x00", "x" * 256]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_all_keys_of_a_queue_and_its_lane_are_in_one_slot(name: str) -> None:
    keys = [*queue_keys("p", name), *lane_keys("p", lane_of(name))]
    assert len(set(keys)) == 9 and len({key_slot(key) for key in keys}) == 1


def test_lanes_are_in_different_slots_and_do_not_move() -> None:
    assert len({key_slot(lane_keys("millstream", lane).lane) for lane in range(LANES)}) == LANES
    assert [lane_of(name) for name in ("encode", "plato", "q")] == [5, 13, 6]
    assert queue_keys("p", "q").head == b"{p:%d}:head:q" % lane_of("q")


class Hashes:
    """Applies lists of changes as the commit's script does."""

    def __init__(self) -> None:
        self.head: dict[bytes, bytes] = {}
        self.states: dict[bytes, bytes] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.sessions: dict[bytes, bytes] = {}
        self.answers: dict[bytes, bytes] = {}
        self.events: list[bytes] = []

    def apply(self, changes: Changes) -> None:
        self.rest = [as_sent(value) for value in commit_lists(changes)]
        self._put(self.head)
        for sequence in self._take():
            del self.states[sequence], self.bodies[sequence]
        self._put(self.bodies)
        self._put(self.states)
        for table in (self.sessions, self.answers):
            for field in self._take():
                table.pop(field, None)
        self._put(self.sessions)
        self._put(self.answers)
        self.events += self._take()
        assert not self.rest

    def _take(self) -> list[bytes]:
        count = int(self.rest.pop(0))
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def _put(self, table: dict[bytes, bytes]) -> None:
        taken = self._take()
        table |= dict(zip(taken[::2], taken[1::2], strict=True))

    def rows(self) -> QueueRows:
        fields = (
            b"settings_version",
            b"settings",
            b"sequence",
            b"leases",
            b"layout",
            b"now_ms",
            b"ahead_ms",
        )
        head = head_of([b"7", *(self.head.get(field) for field in fields), None])
        assert head.epoch == 7 and head.due_ms is None
        states = sorted((int(field), state) for field, state in self.states.items())
        bodies = [self.bodies[b"%d" % sequence] for sequence, _ in states]
        return QueueRows(
            head.settings,
            head.counters,
            [message_of(*one, body) for one, body in zip(states, bodies, strict=True)],
            [session_of(*one) for one in self.sessions.items()],
            [answer_of(*one) for one in self.answers.items()],
        )


def as_sent(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def opened() -> tuple[PriorityCore, Hashes]:
    core, hashes = PriorityCore.create(1_000, "q", SETTINGS), Hashes()
    hashes.head = {b"settings_version": b"1", b"settings": pack_settings(SETTINGS)}
    return core, hashes


def equal(hashes: Hashes, rows: RowStore) -> None:
    found = hashes.rows()
    assert found.settings == rows.settings and found.counters == rows.counters
    assert list(found.messages) == sorted(rows.messages.values(), key=lambda row: row.sequence)
    assert sorted(found.sessions) == sorted(rows.sessions.values())
    keys = sorted((row.session, row.number, row.what) for row in found.answers)
    assert keys == sorted((row.session, row.number, row.what) for row in rows.answers.values())
    assert [event_of({b"e": event}) for event in hashes.events] == rows.events


@pytest.mark.parametrize("seed", range(5))
def test_what_was_written_is_read_back_equal(seed: int) -> None:
    """Any history is stored in pieces."""
    rng, (core, hashes), rows = Random(seed), opened(), RowStore()
    now_ms = 1_000
    for number in range(1, 200):
        now_ms += rng.choice([0, 1, 40])
        pairs = (("project", rng.choice("xyä")), ("a", "\x00"))
        request = Request(rng.choice(["s", "t:1", "ü"]), number, rng.choice([0, number - 1]))
        command: Any = rng.choice(
            [
                Enqueue(f"m{number}", rng.randbytes(rng.choice([0, 9, 2_000])), -number, pairs),
                Enqueue(f"n{number}", b"", 2**53, pairs, 30, 7, 2),
                Dequeue("w", rng.randint(1, 3)),
                Configure(replace(SETTINGS, lease_ms=number)),
            ]
        )
        perform(core, now_ms, command, request)
        if rng.random() < 0.3:
            core.sweep(now_ms)
            changes = core.drain()
            if changes is not None:
                rows.apply(changes)
                hashes.apply(changes)
                equal(hashes, rows)
    again = PriorityCore("q", hashes.rows())
    again.check()
    assert again.read.page(1_000) == rows.opened().read.page(1_000)


def test_answers_of_sessions_that_ended_go_with_them() -> None:
    core, hashes = opened()
    perform(core, 1_000, Enqueue("a", b"", 1, (("project", "x"),)), Request("s:1", 1))
    perform(core, 1_000, Enqueue("b", b"", 1, (("project", "x"),)), Request("s", 1))
    hashes.apply(core.drain())  # type: ignore[arg-type]
    assert len(hashes.sessions) == len(hashes.answers) == 2
    perform(core, 1_100, Cancel("a"), Request("s", 2))
    core.sweep(1_100)
    hashes.apply(core.drain())  # type: ignore[arg-type]
    assert list(hashes.sessions) == [b"s"] and list(hashes.answers) == [b"2:s"]


def test_a_new_queue_has_counted_nothing() -> None:
    settings = pack_settings(SETTINGS)
    found = head_of([b"1", b"1", settings, None, None, None, None, None, b"7"])
    assert found == Head(1, SettingsRow(1, SETTINGS), Counters(), 7)


def test_a_state_says_how_long_the_payload_is() -> None:
    core, hashes = opened()
    core.enqueue(1_000, MessageFields("a", b"x" * 777, 1, {"project": "x"}))
    hashes.apply(core.drain())  # type: ignore[arg-type]
    assert [payload_bytes(state) for state in hashes.states.values()] == [777]


def test_nothing_to_store_is_nine_empty_lists() -> None:
    assert commit_lists(None) == [0] * 9


class Pages:
    """A server with one queue that records the requests."""

    place = "here"

    def __init__(self, hashes: Hashes, keys: QueueKeys) -> None:
        self.tables = {
            keys.states: hashes.states,
            keys.bodies: hashes.bodies,
            keys.sessions: hashes.sessions,
            keys.answers: hashes.answers,
        }
        self.batches: list[int] = []
        self.counts: set[Any] = set()
        self.cursors: list[int] = []

    async def ask(self, commands: Any) -> list[Any]:
        (name, key, *rest), (_, _, field) = commands
        assert field == "mark"
        if name == "HMGET":
            found = [self.tables[key].get(b"%d" % sequence) for sequence in rest]
            self.batches.append(len(rest))
            return [found, b"mark"]
        self.counts.add(rest[-1])
        self.cursors.append(int(rest[0]))
        return [self._scanned(self.tables[key], int(rest[0])), b"mark"]

    def _scanned(self, table: dict[bytes, bytes], cursor: int) -> tuple[int, dict[bytes, bytes]]:
        """Return a page in reverse order and with repeats, as a scan may."""
        items = sorted(table.items(), reverse=True)
        page = dict(items[max(cursor - 1, 0) : cursor + 2])
        return (cursor + 2 if cursor + 2 < len(items) else 0), page


def reader(pages: Pages, mark: str = "mark", **options: Any) -> QueueReader:
    server: Any = pages
    return QueueReader(server, RedisOptions(**options), "q", KEYS, mark)


KEYS = queue_keys("p", "q")
HEAD = Head(1, SettingsRow(1, SETTINGS), Counters(99, 0, 0, 1_000), None)


def filled(sizes: Sequence[int] = (600, 300, 200, 9_000, 10, 10, 10, 10)) -> Hashes:
    core, hashes = opened()
    for number, size in enumerate(sizes):
        new = MessageFields(f"m{number}", bytes(size), 1, {"project": "x"})
        core.enqueue(1_000, new)
    hashes.apply(core.drain())  # type: ignore[arg-type]
    return hashes


async def test_a_queue_is_read_in_order_in_pages_of_rows_and_bytes() -> None:
    pages = Pages(filled(), KEYS)
    rows, count = await reader(pages, page_rows=3, page_bytes=1_000).read(HEAD)
    messages = list(rows.messages)
    assert [row.id for row in messages] == [f"m{number}" for number in range(8)] and count == 8
    assert [len(row.payload) for row in messages] == [600, 300, 200, 9_000, 10, 10, 10, 10]
    assert pages.batches == [2, 1, 1, 3, 1] and pages.counts == {3}
    assert pages.cursors == [0, 2, 4, 6, 0, 0]


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [((400, 600, 1, 999), [2, 2]), ((400, 601, 400, 601), [1, 1, 1, 1]), ((1_001,), [1]), ((), [])],
    ids=str,
)
async def test_a_page_is_filled_to_the_byte(sizes: tuple[int, ...], batches: list[int]) -> None:
    pages = Pages(filled(sizes) if sizes else Hashes(), KEYS)
    await reader(pages, page_bytes=1_000).read(HEAD)
    assert pages.batches == batches


async def test_a_page_behind_another_mark_is_of_no_use() -> None:
    with pytest.raises(OwnerLost, match="'q'"):
        await reader(Pages(filled(), KEYS), "another").read(HEAD)


async def test_a_message_without_a_body_is_told() -> None:
    hashes = filled()
    del hashes.bodies[b"3"]
    with pytest.raises(StorageError, match="queue 'q' in here: 1 messages have no body"):
        await reader(Pages(hashes, KEYS)).read(HEAD)
