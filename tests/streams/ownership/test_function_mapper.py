"""A mapper that calls a function of the program."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, MemoryStateStore, StreamError
from millstream.streams import (
    FunctionMapper,
    HashRingMapper,
    PersistentStreams,
    QueueMapper,
    StreamId,
)
from millstream.streams.ownership.layout import Layout
from millstream.streams.ownership.mapper import QUEUES_MAX
from millstream.streams.ownership.mapper_record import MapperRecord, MapperRecords, OldRing
from millstream.streams.ownership.sound import sound

STREAM = StreamId("orders", "7")
BAD = StreamId("orders", "bad")


def by_key(stream: StreamId, queues: int) -> int:
    return int(stream.key) % queues


def mapper_of(answer: object) -> FunctionMapper:
    def by(stream: StreamId, queues: int) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return FunctionMapper(queues=3, by=by, name="odd")


def refusal(mapper: QueueMapper, stream: StreamId = STREAM) -> str:
    with pytest.raises(StreamError) as caught:
        mapper.queue_for(stream)
    assert type(caught.value) is StreamError
    return str(caught.value)


def test_a_stream_goes_to_the_queue_whose_number_is_answered() -> None:
    mapper = FunctionMapper(queues=3, by=by_key, name="by_key", prefix="lane")
    assert list(mapper.queues()) == ["lane-0", "lane-1", "lane-2"]
    assert (mapper.epoch, mapper.name) == (1, "by_key")
    assert mapper.queue_for(STREAM) == "lane-1"
    more = mapper.with_queues(8, 2)
    assert (more.epoch, more.name, len(more.queues())) == (2, "by_key", 8)
    assert more.queue_for(STREAM) == "lane-7" and mapper.queue_for(STREAM) == "lane-1"


def test_the_least_and_the_most_that_may_be_given_is_taken() -> None:
    one = FunctionMapper(queues=1, by=by_key, name="x")
    assert (one.queues(), one.queue_for(STREAM)) == (("queue-0",), "queue-0")
    most = FunctionMapper(queues=QUEUES_MAX, by=by_key, name="x" * 100)
    assert most.queue_for(StreamId("orders", "65535")) == most.queues()[-1] == "queue-65535"


@pytest.mark.parametrize("answer", [3, -1, True, 1.0, "queue-0", None, 10**30])
def test_an_answer_that_is_no_queue_is_named_with_mapper_and_stream(answer: object) -> None:
    assert refusal(mapper_of(answer)) == (
        "orders/7: the stream has no queue: the function of FunctionMapper 'odd' returned "
        f"{answer!r}, which is not an int from 0 to 2"
    )


class Wild:
    def __repr__(self) -> str:
        raise OSError


def test_an_answer_that_cannot_be_shown_is_refused_all_the_same() -> None:
    assert "returned a Wild, which is" in refusal(mapper_of(Wild()))
    assert len(refusal(mapper_of("x" * 10_000))) < 1_000


@pytest.mark.parametrize(
    "error", [KeyError("eu"), StreamError("of its own"), asyncio.CancelledError("no")]
)
def test_what_the_function_raises_becomes_a_stream_error(error: BaseException) -> None:
    text = refusal(mapper_of(error))
    where = "the function of FunctionMapper 'odd' "
    assert text.startswith(f"orders/7: the stream has no queue: {where}")
    assert text.endswith(f"raised {type(error).__name__}: {error}")


async def an_async_one(stream: StreamId, queues: int) -> int:
    return 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"queues": 0}, r"FunctionMapper\(queues=0\): give a whole number from 1 to 65536"),
        ({"queues": QUEUES_MAX + 1}, "from 1 to 65536"),
        ({"queues": True}, "from 1 to 65536"),
        ({"by": 3}, "by=3.: the argument cannot be called"),
        ({"by": an_async_one}, "is async; give a plain function"),
        ({"name": ""}, "name=''.: give a name of 1 to 100 characters"),
        ({"name": "x" * 101}, "give a name of 1 to 100 characters"),
        ({"prefix": ""}, "the names of the queues begin with it"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {"queues": 8, "by": by_key, "name": "by_key"}
    with pytest.raises(ConfigError, match=said):
        FunctionMapper(**{**right, **wrong})


@pytest.mark.parametrize("field", ["name", "prefix"])
@pytest.mark.parametrize("wrong", [5, "\ud800"])
def test_a_name_that_is_no_text_is_refused(field: str, wrong: Any) -> None:
    right: dict[str, Any] = {"queues": 8, "by": by_key, "name": "by_key"}
    with pytest.raises(TypeError, match=rf"FunctionMapper\({field}=...\)"):
        FunctionMapper(**{**right, field: wrong})


@pytest.mark.parametrize(
    "other",
    [HashRingMapper(queues=3), FunctionMapper(queues=3, by=by_key, name="other")],
    ids=["another kind", "another name"],
)
async def test_a_name_that_differs_from_what_is_stored_is_refused(other: QueueMapper) -> None:
    store = MemoryStateStore()
    mine = FunctionMapper(queues=3, by=by_key, name="by_key")
    await MapperRecords(store, "p", mine).agree()
    await MapperRecords(store, "p", mine).agree()
    with pytest.raises(ConfigError, match=r"\(queue-0 to queue-2\), mapper 'by_key', mapper epoch"):
        await MapperRecords(store, "p", other).agree()
    another = MemoryStateStore()
    await MapperRecords(another, "p", other).agree()
    with pytest.raises(ConfigError, match=r"this silo has .* mapper 'by_key', mapper epoch 1"):
        await MapperRecords(another, "p", mine).agree()


async def test_after_a_change_of_number_the_name_still_counts() -> None:
    store = MemoryStateStore()
    mine = FunctionMapper(queues=3, by=by_key, name="by_key")
    records, layout = MapperRecords(store, "p", mine), Layout(mine)
    record = await records.resize(mine.with_queues(4, 2), layout.ring_of)
    assert (record.name, record.queues) == ("by_key", 4)
    await MapperRecords(store, "p", mine).agree()
    with pytest.raises(ConfigError, match="mapper 'by_key'"):
        await MapperRecords(store, "p", HashRingMapper(queues=4)).agree()


class Careless:
    """A mapper by another author."""

    epoch = 1

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def queues(self) -> list[str]:
        return ["a", "b"]

    def queue_for(self, stream: StreamId, /) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_a_mapper_of_somebody_else_is_held_to_the_same() -> None:
    assert sound(Careless("b")).queue_for(STREAM) == "b"
    text = "orders/7: the stream has no queue: the mapper Careless "
    assert refusal(sound(Careless("c"))) == f"{text}returned 'c', which is not one of its 2 queues"
    assert refusal(sound(Careless(KeyError("x")))) == f"{text}raised KeyError: 'x'"
    assert refusal(sound(Careless([]))).startswith(f"{text}raised TypeError")
    assert refusal(Layout(Careless("c"))).startswith(text)
    ring = HashRingMapper(queues=2)
    assert sound(ring) is ring
    layout = Layout(ring)
    layout.bring(Careless("c"))
    assert refusal(layout).startswith(text)


def picky(stream: StreamId, queues: int) -> int:
    """Has no queue for one stream among three queues."""
    if stream == BAD and queues == 3:
        raise KeyError(stream.key)
    return queues - 1


def test_a_stream_that_the_former_ring_has_no_queue_for_waits_until_that_is_left() -> None:
    layout = Layout(FunctionMapper(queues=3, by=picky, name="picky"))
    old = OldRing(3, "queue-0", "queue-2", 1, begun_era=1)
    record = MapperRecord(4, "queue-0", "queue-3", 2, era=1, old=old, name="picky")
    layout.adopt(record)
    assert layout.queue_for(BAD) == "queue-3"
    assert not layout.is_open(BAD, "queue-3", 1) and layout.is_open(BAD, "queue-2", 0)
    assert list(layout.queues_of(BAD)) == ["queue-3"]
    layout.adopt(MapperRecord(4, "queue-0", "queue-3", 2, era=1, name="picky"))
    assert layout.is_open(BAD, "queue-3", 1)


def test_where_no_ring_has_a_queue_for_a_stream_that_is_said() -> None:
    layout = Layout(FunctionMapper(queues=3, by=picky, name="picky"))
    assert list(layout.queues_of(STREAM)) == ["queue-2"]
    with pytest.raises(StreamError, match="orders/bad: the stream has no queue"):
        layout.queues_of(BAD)


def test_silos_compare_the_name_before_one_starts() -> None:
    def said(mapper: QueueMapper) -> str:
        streams = PersistentStreams(MemoryQueues(), mapper=mapper, balancer=DeploymentBalancer())
        return streams.settings.agreement()["mapper"]

    mine = FunctionMapper(queues=3, by=by_key, name="by_key")
    assert said(mine) == "FunctionMapper 'by_key' of 3 queues, queue-0 to queue-2, epoch 1"
    ring = HashRingMapper(queues=3)
    assert said(ring) == "HashRingMapper of 3 queues, queue-0 to queue-2, epoch 1"
