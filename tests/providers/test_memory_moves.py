"""The content of a memory queue on its way from one activation to the next."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter, MemoryReceiver
from millstream.providers.memory.local_logs import LocalLogs
from millstream.providers.memory.queue_grain import CHUNK_MESSAGES, MemoryQueue
from millstream.providers.memory.wire_form import QueuedMessage, StoredQueue
from millstream.runtime import (
    Conflict,
    CursorTooOld,
    DeactivationReason,
    Etag,
    MemoryMembershipTable,
    MemoryStateStore,
    QueueUnavailable,
    Row,
    Silo,
    StorageUnavailable,
)
from millstream.runtime.extending import unseal
from millstream.streams import PersistentStreams, QueueMessage, Token

ROW = "memory-queue/default/q"


def message(text: str, producer: str = "", seq: int = 0, items: int = 1) -> QueuedMessage:
    return QueuedMessage("n", "k", [text.encode()] * items, None, producer, seq, 0.0)


def make_silo(
    store: MemoryStateStore, table: MemoryMembershipTable | None = None, capacity: int = 10
) -> Silo:
    memory = MemoryOptions(capacity_events=capacity, enqueue_wait_s=0.02)
    streams = PersistentStreams(MemoryQueues(memory), balancer=DeploymentBalancer())
    return Silo(
        grains=[],
        membership=table or MemoryMembershipTable(),
        stores={"default": store},
        streams={"default": streams},
        can_own_queues=False,
    )


def queue_of(silo: Silo) -> MemoryQueue:
    return silo.grain(MemoryQueue, "default/q")


async def texts_of(queue: MemoryQueue, era: int = 1) -> tuple[int, int, str]:
    found = await queue.read(9, era, 0, 100, 1000, 0.0)
    return found.era, found.first_seq, "".join(m.items[0].decode() for m in found.messages)


class Store(MemoryStateStore):
    """Leaves writes or scans unanswered as the test says. An unanswered write may still take
    effect.
    """

    def __init__(self) -> None:
        super().__init__()
        # for each of the next writes of the queue's row: does it take effect?
        self.unanswered: list[bool] = []
        self.unscanned = 0

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        if key != ROW or not self.unanswered:
            return await super().write(key, data, expect, fence)
        if self.unanswered.pop(0):
            await super().write(key, data, expect, fence)
        raise StorageUnavailable("no answer")

    async def scan(self, prefix: str, after: str, limit: int, /) -> list[tuple[str, Row]]:
        if prefix.startswith("memory-queue-content/") and self.unscanned:
            self.unscanned -= 1
            raise StorageUnavailable("no answer")
        return list(await super().scan(prefix, after, limit))


@pytest.mark.parametrize("unanswered", [[True], [False], [False, True], [True, True]])
async def test_an_activation_that_hears_no_answer_to_its_mark_goes_on_with_the_content(
    unanswered: list[bool],
) -> None:
    store = Store()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message(text) for text in "abc"])
    async with make_silo(store) as silo:
        store.unanswered = list(unanswered)
        assert await texts_of(queue_of(silo)) == (1, 1, "abc")
        assert await queue_of(silo).append([message("d")]) == [(1, 4)]


async def test_a_new_queue_whose_mark_was_not_answered_begins() -> None:
    store = Store()
    store.unanswered = [True]
    async with make_silo(store) as silo:
        assert await queue_of(silo).append([message("a")]) == [(1, 1)]


async def test_rows_of_content_that_cannot_be_dropped_do_not_end_an_activation() -> None:
    store = Store()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message("a")])
    async with make_silo(store) as silo:
        store.unscanned = 1
        assert await texts_of(queue_of(silo)) == (1, 1, "a")
    async with make_silo(store) as silo:
        assert await texts_of(queue_of(silo)) == (1, 1, "a")


async def test_a_sequence_whose_message_is_done_is_known_after_a_move() -> None:
    """The processed message follows an unprocessed one. It moves as its own entry with its
    producer.
    """
    store = MemoryStateStore()
    async with make_silo(store) as silo:
        queue = queue_of(silo)
        await queue.append([message("a", "p", 1), message("b", "p", 2)])
        await queue.begin(1)
        await queue.acknowledge(1, 1, 0, [2])
    async with make_silo(store) as silo:
        assert await queue_of(silo).append([message("b", "p", 2)]) == [(1, 0)]
        assert await queue_of(silo).append([message("c", "p", 3)]) == [(1, 3)]


class Race(MemoryStateStore):
    """Lets another write happen right after the queue's row was read."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], None] | None = None

    async def read(self, key: str, /) -> Row | None:
        row = await super().read(key)
        if key == ROW and self.between is not None:
            between, self.between = self.between, None
            between()
        return row


async def test_content_is_taken_once() -> None:
    store = Race()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message("a")])
    loaded = store.get(ROW)
    assert loaded is not None

    def take() -> None:
        store.put(ROW, loaded.data, loaded.etag, loaded.fence)

    store.between = take
    async with make_silo(store) as silo:
        with pytest.raises(Conflict):
            await queue_of(silo).begin(1)


async def test_sequences_are_known_after_a_move_though_all_was_acknowledged() -> None:
    store = MemoryStateStore()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message("a", "p", 4), message("b", "q", 0)])
        await queue_of(silo).acknowledge(9, 1, 2, [])
    async with make_silo(store) as silo:
        repeats = [message("a", "p", 4), message("b", "q", 0), message("c", "p", 5)]
        assert await queue_of(silo).append(repeats) == [(1, 0), (1, 0), (1, 3)]


async def test_content_above_a_capacity_that_was_lowered_is_kept_and_leaves_room_again() -> None:
    store = MemoryStateStore()
    async with make_silo(store, capacity=100) as silo:
        await queue_of(silo).append([message("a", items=60), message("b", items=30)])
    async with make_silo(store, capacity=10) as silo:
        queue = queue_of(silo)
        assert await queue.backlog() == 90
        assert await texts_of(queue) == (1, 1, "ab")
        await queue.acknowledge(9, 1, 2, [])
        assert await queue.append([message("c", items=10)]) == [(1, 3)]
    async with make_silo(store, capacity=10) as silo:
        assert await texts_of(queue_of(silo)) == (1, 3, "c")


async def test_content_of_several_rows_comes_back_with_its_numbers() -> None:
    """With more messages than one row takes, the next reader sees the same tokens and gaps."""
    store, count = MemoryStateStore(), 2 * CHUNK_MESSAGES + 5
    async with make_silo(store, capacity=2 * count) as silo:
        queue = queue_of(silo)
        await queue.append([message(str(n)) for n in range(count)])
        await queue.begin(1)
        await queue.acknowledge(1, 1, 3, [7, CHUNK_MESSAGES + 1])
    left = [n for n in range(3, count) if n + 1 not in (7, CHUNK_MESSAGES + 1)]
    async with make_silo(store, capacity=2 * count) as silo:
        queue = queue_of(silo)
        found = await queue.read(9, 1, 0, count, 1 << 20, 0.0)
        numbered = enumerate(found.messages, found.first_seq)
        assert {seq: int(one.items[0]) for seq, one in numbered if one.items} == {
            n + 1: n for n in left
        }
        receiver = silo.services.part("default").adapter.receiver("q", 10)
        await receiver.start(None)
        read: list[QueueMessage] = []
        while messages := await receiver.read(1000, 1 << 20, 0.0):
            read += [one for one in messages if one.items]
        assert [(one.token, int(one.items[0])) for one in read] == [
            (Token(1, n + 1), n) for n in left
        ]
        assert await queue.append([message("next")]) == [(1, count + 1)]


async def test_an_activation_that_ends_leaves_what_a_newer_one_has_stored() -> None:
    """The silo was declared dead. Another activation took the queue, and has stored its content."""
    store = MemoryStateStore()
    silo = make_silo(store)
    await silo.start()
    await queue_of(silo).append([message("old")])
    mark = store.get(ROW)
    assert mark is not None
    newer = msgspec.msgpack.encode(StoredQueue(2, True, 0, 5, 0, ""))
    store.put(ROW, newer, mark.etag, mark.fence)
    await silo.stop()
    kept = store.get(ROW)
    assert kept is not None and kept.data == newer


async def forget(self: MemoryQueue, reason: DeactivationReason, /) -> None:
    """Deactivate as in a crash: nothing is stored."""
    self._adapter.logs.serves_no_more(self._queue, self._log)
    self._log.close("it forgets")


def receiver_of(silo: Silo, epoch: int) -> MemoryReceiver:
    adapter = silo.services.part("default").adapter
    assert isinstance(adapter, MemoryAdapter)
    return adapter.receiver("q", epoch)


async def test_content_that_was_lost_is_said_until_something_since_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()
    async with make_silo(store, table) as silo:
        await receiver_of(silo, 1).start(None)  # a new queue has lost nothing
        await queue_of(silo).append([message("a")])
        monkeypatch.setattr(MemoryQueue, "on_deactivate", forget)
    async with make_silo(store, table) as silo:
        for after in (None, Token(1, 1)):
            with pytest.raises(CursorTooOld) as caught:
                await receiver_of(silo, 2).start(after)
            assert caught.value.first == Token(2, 1)
        receiver = receiver_of(silo, 2)
        with pytest.raises(CursorTooOld):
            await receiver.start(Token(1, 1))
        await queue_of(silo).append([message("b")])
        (read,) = await receiver.read(10, 1000, 0.0)  # the receiver is at the position of the error
        assert (read.token, read.items) == (Token(2, 1), [b"b"])
        await receiver_of(silo, 2).start(Token(2, 1))
        await receiver.ack(Token(2, 1))
        await receiver_of(silo, 3).start(None)
        await receiver_of(silo, 3).start(Token(1, 1))


async def test_content_that_was_lost_is_said_also_where_what_came_since_has_moved() -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()
    with pytest.MonkeyPatch.context() as patch:
        async with make_silo(store, table) as silo:
            await queue_of(silo).append([message("a")])
            patch.setattr(MemoryQueue, "on_deactivate", forget)
    for text in "bc":  # no reader comes before the queue moves
        async with make_silo(store, table) as silo:
            await queue_of(silo).append([message(text)])
    async with make_silo(store, table) as silo:
        receiver = receiver_of(silo, 2)
        with pytest.raises(CursorTooOld) as caught:
            await receiver.start(Token(1, 1))
        assert caught.value.first == Token(2, 1)
        assert len(await receiver.read(10, 1000, 0.0)) == 2
        await receiver.ack(Token(2, 1))
    async with make_silo(store, table) as silo:
        await receiver_of(silo, 3).start(Token(1, 1))


@pytest.mark.parametrize("is_near", [True, False])
async def test_a_receiver_whose_content_was_lost_meanwhile_is_not_given_other_content(
    is_near: bool,
) -> None:
    async with make_silo(MemoryStateStore()) as silo:
        receiver = receiver_of(silo, 1)
        await receiver.start(None)
        receiver._era -= 1
        await queue_of(silo).append([message("a")])
        if not is_near:
            receiver._logs = LocalLogs()
        with pytest.raises(QueueUnavailable, match="its content of era 0 was lost"):
            await receiver.read(10, 1000, 0.0)


CHUNK = "memory-queue-content/default/q/00000000"


@pytest.mark.parametrize("key", [ROW, CHUNK])
async def test_content_whose_row_is_damaged_is_named_and_kept_until_the_row_is_restored(
    key: str,
) -> None:
    store = MemoryStateStore()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message(text) for text in "abc"])
    row = store.get(key)
    assert row is not None
    etag = row.etag
    for bit in (0, 31, 40, 170, 8 * len(row.data) - 1):
        data = bytearray(row.data)
        data[bit // 8] ^= 1 << bit % 8
        etag = store.put(key, bytes(data), etag, row.fence)
        async with make_silo(store) as silo:
            for _ in range(2):
                with pytest.raises(Exception, match=f"row {key} is .*restore"):
                    await texts_of(queue_of(silo))
        found = store.get(key)
        assert found is not None and found.data == bytes(data)
    store.put(key, row.data, etag, row.fence)
    async with make_silo(store) as silo:
        assert await texts_of(queue_of(silo)) == (1, 1, "abc")


async def test_content_that_was_written_bare_is_gone_on_with() -> None:
    store = MemoryStateStore()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message(text) for text in "abc"])
    for key in (ROW, CHUNK):
        row = store.get(key)
        assert row is not None
        store.put(key, unseal(key, row.data).content, row.etag, row.fence)
    async with make_silo(store) as silo:
        assert await texts_of(queue_of(silo)) == (1, 1, "abc")
