"""A decided batch with messages that a queue refuses for good.

The writer learns the reason, and no message is skipped silently. When an operator gives up the
refused messages, the rest is published once, in order, and the writer continues. This holds under a
crash, a failure or a second desk between any two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.streams.staging.test_desk import (
    FAULTS,
    LANES,
    PARTS,
    WAIT_S,
    Desk,
    Spark,
    World,
    expected,
    simulated,
)

from millstream.runtime import QueueFull, StorageUnavailable, StreamError
from millstream.streams import OutMessage
from millstream.streams.extending import RefusedMessage, WriterStatus
from millstream.streams.staging import desk as desk_module
from millstream.streams.staging.batch import Manifest
from millstream.streams.staging.coordinator import (
    SILENT_S,
    SWEEP_AFTER_S,
    Abandoned,
    Done,
    Refused,
    Waiting,
)
from millstream.streams.staging.desk import STATUS_WAIT_S
from millstream.streams.staging.status import status_of

POISON = [b"0.0.0.0", b"0.0.1.2", b"0.1.0.1", b"0.1.1.0", b"0.1.1.1"]


class Fussy(World):
    """Refuses some items for good; `too_large`: the provider refuses them before they are sent.

    A queue takes a sequence for known once a higher one is stored, like real queues.
    """

    def __init__(self, faults: Mapping[int, str], poison: set[bytes], too_large: bool) -> None:
        self.poison = poison
        self.too_large = too_large
        self.last = dict.fromkeys(LANES, -1)
        super().__init__(faults)

    def new_desk(self) -> Desk:
        self.desks += 1
        self.desk = FussyDesk(self)
        return self.desk


class FussyDesk(Desk):
    world: Fussy

    def check(self, message: OutMessage, /) -> None:
        if self.world.too_large and message.items[0] in self.world.poison:
            raise ValueError("too large")

    async def enqueue(self, messages: Sequence[OutMessage]) -> Any:
        for message in messages:
            self.check(message)
        world, outcomes = self.world, []
        failed: dict[str, StreamError] = {}
        for message in messages:
            assert message.mark is not None
            lane, seq = message.mark.producer.removeprefix("w/"), message.mark.seq
            if lane not in failed and seq > world.last[lane]:
                if message.items[0] in world.poison:
                    failed[lane] = StreamError("no, never")
                else:
                    world.queues[lane].append(message.items[0])
                    world.last[lane] = seq
            outcomes.append(failed.get(lane))
        return outcomes


class Operator(Spark):
    """Writes batch 0, which is refused, gives it up, and writes batch 1."""

    world: Fussy

    def __init__(self, world: Fussy) -> None:
        super().__init__(world)
        self.world = world
        self.refusals = 0

    async def commit(self, batch: int, manifests: Any) -> bool:
        for _ in range(2):
            desk = self.world.desk
            answer = await self.ask(desk, desk.desk.commit(batch, manifests, WAIT_S / 2))
            if isinstance(answer, Refused):
                assert answer.batch == 0
                self.refusals += 1
                await self.abandon()
            if isinstance(answer, Done):
                return True
        return False

    async def abandon(self) -> None:
        for _ in range(200):
            desk = self.world.desk
            answer = await self.ask(desk, desk.desk.abandon(0, WAIT_S / 2))
            if isinstance(answer, Abandoned):
                return
            assert answer is None or isinstance(answer, Waiting | Refused)
        raise AssertionError("it is not over")

    async def report(self) -> tuple[Abandoned | None, list[RefusedMessage]]:
        desk = self.world.desk
        found: list[RefusedMessage] = []
        part, chunk = 0, -1
        while page := await desk.desk.list_refused(0, part, chunk):
            found += page
            part, chunk = page[-1].part, page[-1].chunk
        return (await desk.desk.state())[0].abandoned, found


async def written_under(
    faults: Mapping[int, str], poison: set[bytes], too_large: bool
) -> tuple[Fussy, Operator, Abandoned | None, list[RefusedMessage]]:
    world = Fussy(faults, poison, too_large)
    operator = Operator(world)
    async with asyncio.timeout(10_000):
        await operator.write()
    world._faults.clear()
    found = await operator.report()
    for wait_s in (0.0, SILENT_S, SWEEP_AFTER_S) * (len(faults) + 2):
        await asyncio.sleep(wait_s)
        await world.desk.desk.keep_house()
    await world.desk.tasks.aclose()
    return world, operator, *found


def judge(
    world: Fussy, operator: Operator, abandoned: Abandoned | None, refused: list[RefusedMessage]
) -> None:
    """Check that all good items are stored once, in order, and that exactly the refused ones are
    named."""
    left = {
        lane: [item for item in items if item not in world.poison]
        for lane, items in expected().items()
    }
    assert world.queues == left
    assert operator.refusals >= bool(world.poison)
    named = {f"0.{one.part}.{one.chunk}.{one.place}".encode() for one in refused}
    assert named == world.poison and len(refused) == len(named)
    if world.poison:
        total = sum(items.startswith(b"0.") for lane in expected().values() for items in lane)
        assert abandoned == Abandoned(0, total - len(refused), len(refused))
        assert all(one.key == "k" and one.items == 1 and one.size_bytes == 7 for one in refused)
    else:
        assert abandoned is None
    assert world.store.range("staged/default/chunk/", "", 10) == []


@pytest.mark.parametrize("too_large", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_step_of_giving_up_loses_and_doubles_nothing(
    fault: str, too_large: bool
) -> None:
    poison = set(POISON)
    steps = simulated(lambda: written_under({}, poison, too_large))[0].steps
    for at in range(1, steps + 1):
        judge(*simulated(lambda at=at: written_under({at: fault}, poison, too_large)))  # type: ignore[misc]


ITEMS = [item for items in expected().values() for item in items if item.startswith(b"0.")]


@given(
    faults=st.dictionaries(st.integers(1, 150), st.sampled_from(FAULTS), max_size=8),
    poison=st.sets(st.sampled_from(ITEMS)),
    too_large=st.booleans(),
)
@settings(deadline=None, max_examples=examples(60))
def test_whatever_is_refused_is_named_and_all_the_rest_is_published(
    faults: dict[int, str], poison: set[bytes], too_large: bool
) -> None:
    judge(*simulated(lambda: written_under(faults, poison, too_large)))


def test_without_an_operator_the_batch_waits_with_its_cause_and_goes_on_when_the_queue_does() -> (
    None
):
    async def go() -> tuple[object, object, WriterStatus, object, Fussy]:
        world = Fussy({}, {POISON[0]}, too_large=False)
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        found = [one for one in manifests if one is not None]
        first = await world.desk.desk.commit(0, found, WAIT_S)
        again = await world.desk.desk.commit(0, found, WAIT_S)
        state, refusal = await world.desk.desk.state()
        status = status_of("w", state, refusal)
        world.poison.clear()  # the operator has raised the limit
        done = await world.desk.desk.commit(0, found, WAIT_S)
        await world.desk.tasks.aclose()
        return first, again, status, done, world

    first, again, status, done, world = simulated(go)
    assert first == again == Refused(0, "StreamError: no, never")
    assert (status.waiting, status.messages) == (0, 12)
    assert status.refusal == "StreamError: no, never"
    assert done == Done(12)
    assert world.queues == {
        lane: [item for item in items if item.startswith(b"0.")]
        for lane, items in expected().items()
    }


@pytest.mark.parametrize("is_full", [False, True])
def test_whoever_looks_at_a_writer_has_its_batch_tried_for_a_second(is_full: bool) -> None:
    """Its silo crashed, so no other silo knows yet why the batch waits."""

    async def go() -> tuple[WriterStatus, float]:
        world = Fussy({}, {POISON[0]}, too_large=False)
        desk, _ = await refused_batch(world)
        await desk.tasks.aclose()
        desk, loop = world.new_desk(), asyncio.get_running_loop()

        async def full(messages: Sequence[OutMessage]) -> Any:
            raise QueueFull("full")

        if is_full:
            desk.enqueue = full  # type: ignore[method-assign]
        began_s = loop.time()
        status = status_of("w", *await desk.desk.state())
        took_s = loop.time() - began_s
        await desk.tasks.aclose()
        return status, took_s

    status, took_s = simulated(go)
    assert status.waiting == 0
    assert status.refusal == ("" if is_full else "StreamError: no, never")
    assert took_s == pytest.approx(STATUS_WAIT_S if is_full else 0.0, abs=0.1)


def test_whoever_looks_at_a_writer_whose_batch_can_be_delivered_sees_it_delivered() -> None:
    async def go() -> tuple[WriterStatus, WriterStatus]:
        world = Fussy({}, {POISON[0]}, too_large=False)
        desk, _ = await refused_batch(world)
        await desk.tasks.aclose()
        world.poison.clear()
        desk = world.new_desk()
        first = status_of("w", *await desk.desk.state())
        again = status_of("w", *await desk.desk.state())
        await desk.tasks.aclose()
        return first, again

    first, again = simulated(go)
    assert first == again and first.waiting is None and first.refusal == ""


async def refused_batch(world: Fussy) -> tuple[Desk, list[Manifest]]:
    """Decide a batch of which a queue refuses a message."""
    spark = Spark(world)
    manifests = [await spark.write_part(0, part) for part in range(PARTS)]
    found = [one for one in manifests if one is not None]
    assert isinstance(await world.desk.desk.commit(0, found, WAIT_S), Refused)
    return world.desk, found


def test_a_batch_is_told_as_waiting_while_its_end_cannot_be_stored() -> None:
    async def go() -> WriterStatus:
        world = Fussy({}, {POISON[0]}, too_large=False)
        desk, _ = await refused_batch(world)
        await desk.tasks.aclose()
        world.poison.clear()
        desk = world.new_desk()

        async def away(*args: Any) -> Any:
            raise StorageUnavailable("the store takes no writes")

        desk.write = away  # type: ignore[method-assign]
        status = status_of("w", *await desk.desk.state())
        await desk.tasks.aclose()
        return status

    assert simulated(go).waiting == 0


def test_a_refusal_is_forgotten_once_the_queue_only_asks_to_wait() -> None:
    async def go() -> object:
        world = Fussy({}, {POISON[0]}, too_large=False)
        desk, manifests = await refused_batch(world)

        async def full(messages: Sequence[OutMessage]) -> Any:
            raise QueueFull("full")

        desk.enqueue = full  # type: ignore[method-assign]
        answer = await desk.desk.commit(0, manifests, WAIT_S)
        await desk.tasks.aclose()
        return answer

    assert isinstance(simulated(go), Waiting)


@pytest.mark.parametrize("wait_s", [0.0, 0.2, 3.0])
def test_whoever_asks_for_a_batch_waits_as_long_as_he_said(wait_s: float) -> None:
    async def go() -> tuple[object, float]:
        world = Fussy({}, {POISON[0]}, too_large=False)
        desk, manifests = await refused_batch(world)

        async def full(messages: Sequence[OutMessage]) -> Any:
            raise QueueFull("full")

        desk.enqueue = full  # type: ignore[method-assign]
        loop, tasks = asyncio.get_running_loop(), len(asyncio.all_tasks())
        began_s = loop.time()
        answer = await desk.desk.commit(0, manifests, wait_s)
        took_s = loop.time() - began_s
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == tasks  # no task is left that waits
        await desk.tasks.aclose()
        return answer, took_s

    answer, took_s = simulated(go)
    assert isinstance(answer, Waiting) and took_s == pytest.approx(wait_s, abs=0.01)


def test_a_refusal_is_told_at_once_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> tuple[float, tuple[str, str]]:
        world = Fussy({}, {POISON[0]}, too_large=False)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        desk, manifests = await refused_batch(world)
        took_s = loop.time() - began_s
        await asyncio.sleep(60.0)
        before = (await desk.desk.state())[1]
        world.poison.clear()
        await asyncio.sleep(60.0)  # nobody asks, and the batch is published all the same
        state, after = await desk.desk.state()
        assert state.delivering is None
        await desk.tasks.aclose()
        return took_s, (before, after)

    took_s, refusals = simulated(go)
    assert took_s < 0.1 and refusals == ("StreamError: no, never", "")
    assert caplog.text.count("a queue permanently refuses one of its messages: StreamError") == 1


def test_whoever_asks_for_a_batch_has_it_tried_at_once_however_long_it_was_refused() -> None:
    async def go() -> tuple[object, float]:
        world = Fussy({}, {POISON[0]}, too_large=False)
        desk, manifests = await refused_batch(world)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(60.0)
        steps = world.steps
        while world.steps == steps:  # until just after an attempt
            await asyncio.sleep(0.01)
        world.poison.clear()
        began_s = loop.time()
        answer = await desk.desk.commit(0, manifests, 60.0)
        took_s = loop.time() - began_s
        await desk.tasks.aclose()
        return answer, took_s

    answer, took_s = simulated(go)
    assert answer == Done(12) and took_s < 0.5


def test_what_an_operator_gave_up_is_finished_by_whoever_keeps_house_next() -> None:
    """The silo crashes as soon as the operator's decision is stored."""

    async def go() -> tuple[Fussy, Abandoned | None]:
        world = Fussy({}, set(POISON), too_large=False)
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        found = [one for one in manifests if one is not None]
        desk = world.desk
        assert isinstance(await desk.desk.commit(0, found, WAIT_S), Refused)
        await desk.tasks.aclose()
        await desk.desk._ask(lambda core: core.abandon(0))
        world.new_desk()
        await world.desk.desk.keep_house()
        await asyncio.sleep(60.0)
        await world.desk.tasks.aclose()
        return world, (await world.new_desk().desk.state())[0].abandoned

    world, abandoned = simulated(go)
    assert abandoned == Abandoned(0, 12 - len(POISON), len(POISON))
    assert sum(map(len, world.queues.values())) == 12 - len(POISON)


def test_only_a_batch_that_waits_can_be_given_up() -> None:
    async def go() -> list[object]:
        world = Fussy({}, set(), too_large=False)
        await Spark(world).try_batch(0)
        desk = world.desk.desk
        found: list[object] = [await desk.abandon(batch, WAIT_S) for batch in (0, 1, 7)]
        await world.desk.tasks.aclose()
        return found

    assert simulated(go) == [None, None, None]


def test_a_queue_that_is_full_is_waited_for_and_not_given_up() -> None:
    async def go() -> tuple[object, object, Fussy]:
        world = Fussy({}, set(), too_large=False)
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        found = [one for one in manifests if one is not None]
        desk, is_full = world.desk, True
        enqueue = desk.enqueue

        async def maybe(messages: Sequence[OutMessage]) -> Any:
            if is_full:
                raise QueueFull("full")
            return await enqueue(messages)

        desk.enqueue = maybe  # type: ignore[method-assign]
        first = await desk.desk.commit(0, found, WAIT_S)
        given_up = await desk.desk.abandon(0, WAIT_S)
        is_full = False
        while isinstance(given_up, Waiting):
            given_up = await desk.desk.abandon(0, WAIT_S)
        await desk.tasks.aclose()
        return first, given_up, world

    first, given_up, world = simulated(go)
    assert isinstance(first, Waiting)
    assert given_up == Abandoned(0, 12, 0)
    assert sum(map(len, world.queues.values())) == 12


def test_a_queue_that_is_full_is_tried_again_a_twentieth_of_a_second_later() -> None:
    async def go() -> float:
        world = Fussy({}, set(), too_large=False)
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        found = [one for one in manifests if one is not None]
        desk, loop = world.desk, asyncio.get_running_loop()
        enqueue, full = desk.enqueue, [QueueFull("full")]

        async def once_full(messages: Sequence[OutMessage]) -> Any:
            if full:
                raise full.pop()
            return await enqueue(messages)

        desk.enqueue = once_full  # type: ignore[method-assign]
        began_s = loop.time()
        assert await desk.desk.commit(0, found, WAIT_S) == Done(12)
        took_s = loop.time() - began_s
        await desk.tasks.aclose()
        return took_s

    assert simulated(go) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("is_refused", [False, True])
def test_whoever_waits_sees_whether_more_was_accepted(is_refused: bool) -> None:
    """Accepted, or refused and given up; after a refusal the list is sent message by message."""

    async def go() -> list[int]:
        world = Fussy({}, {POISON[0]} if is_refused else set(), too_large=False)
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        found = [one for one in manifests if one is not None]
        desk, may = world.desk, [0]
        enqueue = desk.enqueue

        async def some(messages: Sequence[OutMessage]) -> Any:
            if not may[0]:
                raise QueueFull("full")
            may[0] -= 1
            return await enqueue(messages)

        desk.enqueue = some  # type: ignore[method-assign]
        steps: list[int] = []
        await desk.desk.commit(0, found, 0.0)
        for may[0] in (0, 0, 2, 2, 0, 2) if is_refused else (0, 0, 1, 1, 0, 1):
            answer = await desk.desk.abandon(0, 60.0)
            assert isinstance(answer, Waiting)
            steps.append(answer.steps)
        await desk.tasks.aclose()
        return steps

    found = simulated(go)
    assert [now > before for before, now in pairwise(found)] == [False, True, True, False, True]


def test_what_was_given_up_stays_so_though_its_queue_would_accept_it_now() -> None:
    async def go() -> tuple[Abandoned | None, Fussy]:
        world = Fussy({}, set(POISON), too_large=False)
        desk, _ = await refused_batch(world)
        write = desk.write

        async def dies(key: str, *args: Any) -> Any:
            found = await write(key, *args)
            if "/refused/" in key:
                await asyncio.get_running_loop().create_future()
            return found

        desk.write = dies  # type: ignore[method-assign]
        assert isinstance(await desk.desk.abandon(0, WAIT_S), Waiting)
        await desk.tasks.aclose()
        world.poison.clear()
        new = world.new_desk()
        await new.desk.keep_house()
        await asyncio.sleep(60.0)
        state, _ = await new.desk.state()
        await new.tasks.aclose()
        return state.abandoned, world

    abandoned, world = simulated(go)
    assert abandoned == Abandoned(0, 11, 1)
    kept = [item for items in world.queues.values() for item in items]
    assert len(kept) == 11 and POISON[0] not in kept


def test_of_what_is_given_up_the_first_ones_of_a_chunk_keep_their_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk_module, "REASONS_MAX", 2)

    async def go() -> list[str]:
        world = Fussy({}, {f"0.0.0.{number}".encode() for number in range(3)}, too_large=False)
        desk, _ = await refused_batch(world)
        assert isinstance(await desk.desk.abandon(0, WAIT_S), Abandoned)
        await desk.tasks.aclose()
        return [one.why for one in await desk.desk.list_refused(0, 0, -1)]

    assert simulated(go) == ["StreamError: no, never"] * 2 + [""]


def test_what_was_given_up_before_is_forgotten_when_a_later_batch_is() -> None:
    async def go() -> list[str]:
        world = Fussy({}, {*POISON, b"1.0.0.0"}, too_large=False)
        desk, spark = world.desk.desk, Spark(world)
        for batch in (0, 1):
            manifests = [await spark.write_part(batch, part) for part in range(PARTS)]
            found = [one for one in manifests if one is not None]
            assert isinstance(await desk.commit(batch, found, WAIT_S), Refused)
            assert isinstance(await desk.abandon(batch, WAIT_S), Abandoned)
        await asyncio.sleep(1.0)
        await world.desk.tasks.aclose()
        rows = world.store.range("staged/default/refused/", "", 100)
        return [key.removeprefix("staged/default/refused/") for key, _ in rows]

    (key,) = simulated(go)
    assert key.startswith(f"w/{1:020}/")


def test_what_was_given_up_is_forgotten_with_a_writer_that_is_used_once() -> None:
    async def go() -> None:
        world = Fussy({}, set(POISON), too_large=False)
        desk, _ = await refused_batch(world)
        assert isinstance(await desk.desk.abandon(0, WAIT_S), Abandoned)
        await desk.desk.begin("last", 1, 0, once=True)
        await desk.desk.abort(1)
        await desk.desk.keep_house()
        assert world.store.range("staged/default/refused/", "", 1)
        await asyncio.sleep(SWEEP_AFTER_S + 1)
        await desk.desk.keep_house()
        await asyncio.sleep(SILENT_S)
        await desk.desk.keep_house()
        await desk.tasks.aclose()
        assert world.store.range("staged/default/", "", 1) == []

    simulated(go)


def test_storage_that_is_away_while_something_is_given_up_is_tried_again() -> None:
    world, operator, abandoned, refused = simulated(
        lambda: written_under({at: "before fail" for at in range(20, 60)}, set(POISON), False)
    )
    judge(world, operator, abandoned, refused)
