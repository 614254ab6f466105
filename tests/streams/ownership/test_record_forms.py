"""Queue records of the former version: this version reads them, and writes rows that the former
version refuses."""

from __future__ import annotations

import msgspec
import pytest
from tests.conditions import until
from tests.streams.partition_place import PartitionPlace

from millstream.runtime import Etag, Grain, MemoryStateStore
from millstream.runtime.extending import open_row, seal_content
from millstream.streams import (
    Event,
    OwnershipOptions,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.ownership.record import Handoff, ListedSubscription, QueueRecord, QueueState
from millstream.streams.ownership.store import OwnershipStore

LINES = StreamNamespace("lines", int)
KEY = "queue/default/p0"
SEEN: list[tuple[int, bool]] = []
OPTIONS = StreamOptions(
    ownership=OwnershipOptions(poll_s=0.02, max_handoff_s=0.5, checkpoint_every_s=0.02),
    read_wait_s=0.05,
)


class FormerRow(msgspec.Struct):
    """The fields of a row that a decoder of version 0.1 needs."""

    owner: str
    epoch: int
    state: str
    frontier: Token | None = None
    behind: tuple[tuple[str, str, str, Token, bool, Token | None], ...] = ()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        SEEN.append((event.item, event.redelivered))


def former(handoff: dict[str, object], subscription: str) -> dict[str, object]:
    """Make a row of version 0.1: ten messages are done, except for one subscription from the fifth
    on."""
    return {
        "owner": "",
        "epoch": 7,
        "state": "free",
        "drain_by_s": 0.0,
        "checkpoint": None,
        "handoff": handoff,
        "lease_s": 0.0,
        "frontier": Token(1, 9),
        "behind": [["lines", "a", subscription, Token(1, 4), False, Token(1, 5)]],
        "deaths": 0,
        "suspects": [],
        "is_held": False,
        "lost": None,
        "rival": "",
    }


async def put(store: MemoryStateStore, row: object, etag: Etag | None = None) -> None:
    await store.write(KEY, seal_content(KEY, msgspec.msgpack.encode(row)), etag, 0)


@pytest.mark.parametrize(
    ("handoff", "read"),
    [
        ({"clean": True, "in_flight": 0, "done": [], "sent": None}, Handoff(True, 0)),
        ({"clean": False, "in_flight": 2}, Handoff(False, 2)),
        (
            {"clean": True, "in_flight": 0, "done": [[Token(1, 11), Token(1, 12)]]},
            Handoff(False, 0),
        ),
    ],
)
async def test_a_former_row_is_read_as_a_present_one(
    handoff: dict[str, object], read: Handoff
) -> None:
    """Messages that were done after the frontier are redelivered, so the hand-over was not
    clean."""
    store = MemoryStateStore()
    await put(store, former(handoff, "sub"))
    stored = await OwnershipStore(store, "default").read("p0")
    assert stored is not None
    listed = ListedSubscription("lines", "a", "sub", Token(1, 4), Token(1, 5))
    assert stored.record == QueueRecord(
        "", 7, QueueState.FREE, handoff=read, upto=Token(1, 9), listed=(listed,)
    )
    assert not stored.record.handoff or stored.record.handoff.is_known is read.clean


async def test_a_former_version_refuses_a_present_row() -> None:
    store = MemoryStateStore()
    for listed in ((), (ListedSubscription("lines", "a", "sub", Token(1, 4)),)):
        record = QueueRecord("", 7, QueueState.FREE, upto=Token(1, 9), listed=listed)
        row = await store.read(KEY)
        await OwnershipStore(store, "default").write("p0", record, row.etag if row else None)
        row = await store.read(KEY)
        assert row is not None
        with pytest.raises(Exception, match=r"this version cannot read it.*behind"):
            open_row(KEY, row.data, msgspec.msgpack.Decoder(FormerRow).decode)


async def test_a_subscription_that_lagged_when_its_silo_was_upgraded_goes_on_at_its_place() -> None:
    SEEN.clear()
    place = PartitionPlace([Reader], options=OPTIONS)
    async with place.cluster() as cluster:
        for item in range(10):
            await cluster.stream(LINES, "a").publish(item)
        await until(lambda: len(SEEN) == 10)
        (subscription,) = (
            cluster.silos[0]
            .services.part("default")
            .manager.agents()[0]
            .subscribers.of(cluster.stream(LINES, "a").id)
        )
    record = await place.record()
    assert record.upto == Token(1, 9) and record.listed == ()
    SEEN.clear()
    row = await place.store.read("queue/default/p0")
    assert row is not None
    clean = {"clean": True, "in_flight": 0, "done": [], "sent": None}
    await put(place.store, former(clean, subscription.id), row.etag)
    async with place.cluster() as cluster:
        await until(lambda: len(SEEN) == 6)
        await cluster.stream(LINES, "a").publish(10)
        await until(lambda: len(SEEN) == 7)
    assert SEEN == [(item, item <= 5) for item in range(4, 11)]
    record = await place.record()
    assert record.upto == Token(1, 10) and record.listed == ()
