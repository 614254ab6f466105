"""The calls of a task to a gateway in a thread: window, repeats, refusals and clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from tests.providers.fake_gateway import FakeGateway, Faults  # noqa: E402

from millstream.runtime import ConfigError, Env, QueueFull, SiloUnavailable  # noqa: E402
from millstream.runtime.wire.message import WIRE_VERSION, Hello  # noqa: E402
from pyspark_millstream import background as background_module  # noqa: E402
from pyspark_millstream.background import background, end_background  # noqa: E402
from pyspark_millstream.options import WriteOptions  # noqa: E402
from pyspark_millstream.task_sender import sending  # noqa: E402
from pyspark_millstream.tokens import Origin  # noqa: E402
from pyspark_millstream.writer import (  # noqa: E402
    Written,
    batch_origin,
    batch_writer,
    send_rows,
    stream_origin,
)

FIRST = Origin("w", 0, 0)

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Each test ends without connections and threads."""
    yield
    end_background()


def options(*gateways: FakeGateway, **more: Any) -> WriteOptions:
    given = {
        "gateways": tuple(gateway.option for gateway in gateways),
        "namespace": "arrivals",
        "key_column": "key",
        "value_columns": ("n",),
        "patience_s": 10.0,
    }
    return WriteOptions(**{**given, **more})


def send(opts: WriteOptions, rows: int, origin: Origin = FIRST, batch_rows: int = 7) -> Written:
    """Send rows 0 to rows-1 with three keys in small Arrow batches."""
    starts = range(0, rows, batch_rows)
    parts = [range(start, min(start + batch_rows, rows)) for start in starts]
    batches = (
        arrow.record_batch({"key": [f"k{n % 3}" for n in part], "n": list(part)}) for part in parts
    )
    return send_rows(opts, origin, batches)


def numbers(gateway: FakeGateway) -> list[int]:
    return sorted(row.item["n"] for row in gateway.rows)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return "{}:{}".format(*server.getsockname())


def test_a_task_publishes_every_row_once_and_in_order_per_key() -> None:
    with FakeGateway() as gateway:
        assert send(options(gateway, chunk_rows=10), 95) == Written(95, 30, 10)
    assert numbers(gateway) == list(range(95))
    for key in ("k0", "k1", "k2"):
        mine = [row.item["n"] for row in gateway.rows if row.key == key]
        assert mine == sorted(mine)
    assert {(row.namespace, row.producer) for row in gateway.rows} == {("arrivals", "w/0")}


def test_a_task_is_a_client_and_sends_one_session() -> None:
    with FakeGateway() as gateway:
        send(options(gateway, provider="default", chunk_rows=10), 30)
    assert not gateway.hellos[0].is_silo
    assert len({session for session, _ in gateway.sessions}) == 1
    assert [place for _, place in gateway.sessions] == [0, 1, 2]


def test_a_task_without_rows_connects_to_nobody() -> None:
    opts = WriteOptions((closed_port(),), "arrivals", "key", ("n",))
    assert send_rows(opts, Origin("w", 0, 0), iter(())) == Written(0, 0, 0)


def test_a_task_fills_its_window_and_no_more_before_an_answer_comes() -> None:
    # The gateway answers after three calls, so a smaller window would wait forever.
    with FakeGateway(Faults(hold=3)) as gateway:
        send(options(gateway, chunk_rows=10, window=3), 90)
    assert not gateway.overrun
    assert numbers(gateway) == list(range(90))


def test_what_was_not_answered_is_sent_again_when_the_connection_is_reset() -> None:
    with FakeGateway(Faults(drop_at={2, 5})) as gateway:
        written = send(options(gateway, chunk_rows=10), 100)
    assert written == Written(100, 30, 10)
    assert gateway.repeats > 0
    assert numbers(gateway) == list(range(100))


def test_a_full_queue_is_waited_for_within_the_patience() -> None:
    with FakeGateway(Faults(refuse_at={3, 4})) as gateway:
        send(options(gateway, chunk_rows=10), 100)
    assert numbers(gateway) == list(range(100))
    assert len({session for session, _ in gateway.sessions}) >= 2


def test_a_queue_that_stays_full_fails_the_task_with_the_clusters_own_error() -> None:
    with FakeGateway(Faults(refuse_at=set(range(10_000)))) as gateway:
        with pytest.raises(QueueFull, match="10 of 10") as raised:
            send(options(gateway, patience_s=0.3), 10)
        assert raised.value.__notes__[-1] == "retried for 0.3 s, and nothing was accepted"


def test_a_task_goes_to_the_gateway_that_answers() -> None:
    with FakeGateway() as gateway:
        send(options(gateway, gateways=(closed_port(), closed_port(), gateway.option)), 10)
    assert numbers(gateway) == list(range(10))


def test_a_task_gives_up_when_no_gateway_answers_for_its_patience() -> None:
    with pytest.raises(SiloUnavailable, match="no gateway .*answers") as raised:
        send(options(gateways=(closed_port(),), patience_s=0.3), 1)
    assert raised.value.__notes__[-1] == "retried for patience_s 0.3"


def test_a_chunk_larger_than_the_gateway_takes_names_the_option() -> None:
    hello = Hello(WIRE_VERSION, "dev", "127.0.0.1:1@1", True, 2000)
    with FakeGateway(Faults(hello=hello)) as gateway:
        with pytest.raises(ValueError, match="exceed frame_bytes_max 2000") as raised:
            send(options(gateway), 500)
        assert "lower the option 'chunk_rows'" in raised.value.__notes__[-1]
    assert not gateway.calls


def test_a_gateway_of_another_cluster_is_refused_at_once() -> None:
    hello = Hello(WIRE_VERSION, "prod", "127.0.0.1:1@1", True, 1 << 20)
    with FakeGateway(Faults(hello=hello)) as gateway:
        with pytest.raises(ConfigError, match="'prod'"):
            send(options(gateway), 1)
    assert not gateway.calls


def test_tasks_of_one_process_share_a_client() -> None:
    with FakeGateway() as gateway:
        for batch in range(3):
            send(options(gateway, window=2 + batch), 20, Origin("w", batch, 0))
        assert background().clients == 1
    assert len(gateway.hellos) == 1


def test_no_more_clients_are_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "CLIENTS_MAX", 1)
    with FakeGateway() as one, FakeGateway() as two:
        for gateway in (one, two, one):
            send(options(gateway), 5, Origin("w", len(one.hellos), 0))
            assert background().clients == 1
        assert (len(one.hellos), len(two.hellos)) == (2, 1)


def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    with FakeGateway() as gateway:
        send(options(gateway), 20)
        gateway.hang_up()
        send(options(gateway), 20, Origin("w", 1, 0))
    assert len(gateway.hellos) >= 2
    assert len(gateway.rows) == 40


def test_nothing_is_out_after_a_task_was_interrupted() -> None:
    with FakeGateway(Faults(hold=100)) as gateway:
        with pytest.raises(KeyboardInterrupt):
            with sending(options(gateway), FIRST) as link:
                link.send(b"\x90", 1)
                raise KeyboardInterrupt
        assert not any(kept.users for kept in background()._kept.values())


def test_a_repeated_task_adds_nothing_whatever_batches_it_gets() -> None:
    with FakeGateway() as gateway:
        for attempt_batch_rows in (7, 11):
            send(options(gateway, chunk_rows=10), 100, batch_rows=attempt_batch_rows)
    assert gateway.repeats == 30
    assert numbers(gateway) == list(range(100))


def test_two_writes_of_one_foreach_batch_are_two_writers() -> None:
    """Write fifty rows into one namespace, under their origin and under their destination."""
    inside: dict[str, str] = {"streaming.sql.batchId": "5", "sql.streaming.queryId": "q"}
    rows = {"origin": ["a", "b"] * 25, "dest": ["c", "d"] * 25, "n": list(range(50))}
    with FakeGateway() as gateway:
        for key_column in ("origin", "dest"):
            opts = options(gateway, key_column=key_column, writer_id="job", chunk_rows=10)
            origin = batch_origin(batch_writer(opts, Env()), inside.get, 0)
            send_rows(opts, origin, iter([arrow.record_batch(rows)]))
    assert len(gateway.rows) == 100 and gateway.repeats == 0


def test_a_batch_write_counts_the_micro_batch_only_inside_foreach_batch() -> None:
    assert batch_origin("w", lambda name: None, 3) == Origin("w", 0, 3)
    inside: dict[str, str] = {"streaming.sql.batchId": "5", "sql.streaming.queryId": "q"}
    assert batch_origin("w", inside.get, 3) == Origin("w", 5, 3)


def test_a_stream_write_is_named_by_its_query_unless_told_otherwise() -> None:
    properties = {"streaming.sql.batchId": "5", "sql.streaming.queryId": "q"}
    assert stream_origin("", properties.get, 1) == Origin("q", 5, 1)
    assert stream_origin("mine", properties.get, 1) == Origin("mine", 5, 1)
    with pytest.raises(RuntimeError, match=r"streaming\.sql\.batchId"):
        stream_origin("", lambda name: None, 1)


def test_who_waits_while_the_clients_are_closed_is_told() -> None:
    """Otherwise the thread and its process would wait forever."""
    began, ended = threading.Event(), threading.Event()
    here = background()

    async def never() -> None:
        began.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(CancelledError):
            here.run(never())
        ended.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert began.wait(10)
    end_background()
    assert ended.wait(10)
    waiting.join(10)
    with pytest.raises(RuntimeError, match="closed"):
        here.run(never())
