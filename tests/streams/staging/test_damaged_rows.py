"""Damaged rows of staged writes are named and never misread, and nothing is swept because of
them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.streams.staging.test_desk import (
    LANES,
    PARTS,
    WAIT_S,
    Spark,
    World,
    expected,
    simulated,
)
from tests.streams.staging.test_finder import WRITERS, Rig

from millstream.runtime import Corrupt, MemoryStateStore
from millstream.streams.extending import RefusedMessage
from millstream.streams.staging.coordinator import SILENT_S, SWEEP_AFTER_S, Done, WriterState
from millstream.streams.staging.finder import ROWS_AT_ONCE
from millstream.streams.staging.rows import (
    CHUNK_BYTES_MAX,
    Chunk,
    StagedMessage,
    StagedRows,
    StoredChunk,
    out_messages,
)

CHUNK = Chunk("rows", LANES, [StagedMessage(1, "k", [b"item", b"other"])])
REFUSED = [RefusedMessage(2, 0, 7, "k", 1, 9, "too large")]
WRITER, PUT, REFUSED_KEY = (
    "staged/p/writer/w",
    "staged/p/chunk/u1/00000",
    "staged/p/refused/w/00000000000000000004/00000000000000000002/00000",
)


async def stored() -> tuple[MemoryStateStore, StagedRows]:
    """Make one row of each kind."""
    store = MemoryStateStore()
    rows = StagedRows(store, "p")
    await rows.write("w", WriterState(), None)
    await rows.put("u1", 0, StoredChunk(CHUNK))
    await rows.put_refused("w", 4, REFUSED, None)
    return store, rows


READS: dict[str, Callable[[StagedRows], Awaitable[object]]] = {
    WRITER: lambda rows: rows.read("w"),
    PUT: lambda rows: rows.get("u1", 0),
    REFUSED_KEY: lambda rows: rows.read_refused("w", 4, 2, 0),
}


@pytest.mark.parametrize("key", READS)
async def test_no_flipped_bit_and_no_cut_gives_another_row(key: str) -> None:
    store, rows = await stored()
    row = store.get(key)
    assert row is not None
    etag = row.etag
    flipped = [bytearray(row.data) for _ in range(8 * len(row.data))]
    for bit, data in enumerate(flipped):
        data[bit // 8] ^= 1 << bit % 8
    for other in [*map(bytes, flipped), *(row.data[:size] for size in range(len(row.data)))]:
        etag = store.put(key, other, etag, 0)
        with pytest.raises(Corrupt, match=f"^row {key} .*restore"):
            await READS[key](rows)
        if key == PUT:
            with pytest.raises(Corrupt):
                await rows.put("u1", 0, StoredChunk(CHUNK))


async def test_rows_that_were_written_bare_are_read() -> None:
    store = MemoryStateStore()
    rows = StagedRows(store, "p")
    contents: dict[str, object] = {WRITER: WriterState(), PUT: CHUNK, REFUSED_KEY: REFUSED}
    for key, content in contents.items():
        store.put(key, msgspec.msgpack.encode(content), None, 0)
    assert (await rows.read("w"))[0] == WriterState()
    assert await rows.get("u1", 0) == CHUNK == await rows.put("u1", 0, StoredChunk(CHUNK))
    assert (await rows.read_refused("w", 4, 2, 0))[0] == REFUSED


def cut(store: MemoryStateStore, key: str) -> bytes:
    """Damage a row; return its former data."""
    row = store.get(key)
    assert row is not None
    store.put(key, row.data[:-1], row.etag, row.fence)
    return row.data


def mend(store: MemoryStateStore, key: str, data: bytes) -> None:
    row = store.get(key)
    assert row is not None
    store.put(key, data, row.etag, row.fence)


def test_writers_are_woken_beside_many_whose_rows_are_damaged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> Rig:
        rig = Rig()
        await rig.fill()
        store = rig.rows._store
        assert isinstance(store, MemoryStateStore)
        for number in range(1, ROWS_AT_ONCE + 20):  # more than a page
            cut(store, f"staged/default/writer/w{number:03}")
        await rig.look(2)
        await rig.tasks.aclose()
        return rig

    woken = simulated(go).woken
    whole = {f"w{n:03}" for n in range(ROWS_AT_ONCE + 20, WRITERS) if n % 3}
    assert set(woken) == whole
    assert caplog.text.count("row staged/default/writer/w001 is damaged") == 1


async def test_what_was_given_up_is_listed_beside_a_damaged_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, rows = await stored()
    later = [RefusedMessage(3, 1, 0, "k", 1, 9)]
    await rows.put_refused("w", 4, later, None)
    assert await rows.next_refused("w", 4, 0, -1) == REFUSED
    assert await rows.next_refused("w", 4, 2, 0) == later
    for _ in range(2):  # damaged, restored, and damaged again
        whole = cut(store, REFUSED_KEY)
        assert await rows.next_refused("w", 4, 0, -1) == later
        mend(store, REFUSED_KEY, whole)
        assert await rows.next_refused("w", 4, 0, -1) == REFUSED
    assert caplog.text.count(f"row {REFUSED_KEY} is damaged") == 2
    assert await rows.next_refused("w", 4, 3, 1) == []


def test_nothing_of_a_writer_is_swept_while_its_row_is_damaged() -> None:
    async def go() -> tuple[int, int, int]:
        world = World({})
        spark = Spark(world)
        await spark.write_part(0, 0)
        chunks = len(world.store.range("staged/default/chunk/", "", 99))
        whole = cut(world.store, "staged/default/writer/w")
        await world.desk.tasks.aclose()
        desk = world.new_desk()
        for wait_s in (0.0, SILENT_S, SWEEP_AFTER_S, SWEEP_AFTER_S):
            await asyncio.sleep(wait_s)
            with pytest.raises(Corrupt, match="row staged/default/writer/w is damaged"):
                await desk.desk.keep_house()
        damaged = len(world.store.range("staged/default/chunk/", "", 99))
        mend(world.store, "staged/default/writer/w", whole)
        for wait_s in (0.0, SILENT_S, SWEEP_AFTER_S, SWEEP_AFTER_S):
            await asyncio.sleep(wait_s)
            await desk.desk.keep_house()
        await desk.tasks.aclose()
        return chunks, damaged, len(world.store.range("staged/default/chunk/", "", 99))

    chunks, damaged, mended = simulated(go)
    assert chunks == damaged > 0 == mended


def test_a_decided_batch_waits_for_its_damaged_chunk_and_is_published_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> World:
        world = World({})
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        key = world.store.range("staged/default/chunk/", "", 9)[1][0]
        whole = cut(world.store, key)
        found = [one for one in manifests if one is not None]
        desk = world.desk.desk
        assert not isinstance(await desk.commit(0, found, WAIT_S), Done)
        await asyncio.sleep(60)
        assert caplog.text.count(f"waits until a row is restored: row {key} is damaged") == 1
        mend(world.store, key, whole)
        assert isinstance(await desk.commit(0, found, 20.0), Done)
        assert await spark.try_batch(1)
        await world.desk.tasks.aclose()
        return world

    assert simulated(go).queues == expected()


def test_a_chunk_has_its_limit_unless_it_is_one_message() -> None:
    def chunk(*sizes: int) -> Chunk:
        return Chunk("rows", LANES, [StagedMessage(0, "k", [bytes(size)]) for size in sizes])

    rest = len(StoredChunk(chunk(70_000, 70_000)).data) - 140_000
    room = CHUNK_BYTES_MAX - 70_000 - rest
    assert len(StoredChunk(chunk(70_000, room)).data) == CHUNK_BYTES_MAX
    with pytest.raises(ValueError, match=f"the chunk has {CHUNK_BYTES_MAX + 1} bytes"):
        StoredChunk(chunk(70_000, room + 1))
    StoredChunk(chunk(2 * CHUNK_BYTES_MAX))


def test_headers_of_a_chunk_are_those_of_its_messages() -> None:
    messages = [StagedMessage(0, "k", [b"a"]), StagedMessage(0, "k", [b"b"], {"h": "x"})]
    found = out_messages(Chunk("rows", LANES, messages), "w", dict.fromkeys(LANES, 5))
    assert [message.headers for message in found] == [{}, {"h": "x"}]
