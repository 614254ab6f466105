"""The link against a gateway in a thread: window, sending again, refusals, idle connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")
arrow = pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from tests.providers.fake_gateway import FakeGateway, Faults  # noqa: E402

from millstream.runtime.wire.message import (  # noqa: E402
    WIRE_VERSION,
    Failure,
    Goodbye,
    Hello,
    Reply,
)
from pyspark_millstream import link as link_module  # noqa: E402
from pyspark_millstream.link import Link, linked  # noqa: E402
from pyspark_millstream.options import WriteOptions  # noqa: E402
from pyspark_millstream.rows import encode_arguments  # noqa: E402
from pyspark_millstream.tokens import Numbering, Origin  # noqa: E402
from pyspark_millstream.window import (  # noqa: E402
    GatewayUnavailable,
    PublishFailed,
    Rounds,
    TimeLeft,
    Window,
)
from pyspark_millstream.wire import HandshakeRefused  # noqa: E402
from pyspark_millstream.writer import Written, batch_origin, send_rows, stream_origin  # noqa: E402

FIRST = Origin("w", 0, 0)

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def no_idle_connections() -> Iterator[None]:
    """Each test begins, and leaves the process, without connections."""
    yield
    while link_module._idle:
        link_module._idle.popitem()[1].close()


def options(*gateways: FakeGateway, **more: Any) -> WriteOptions:
    addresses = tuple(gateway.address for gateway in gateways)
    return WriteOptions(
        **{
            "gateways": addresses,
            "namespace": "arrivals",
            "key_column": "key",
            "value_columns": ("n",),
            "timeout_s": 10.0,
            **more,
        }
    )


def send(opts: WriteOptions, rows: int, origin: Origin = FIRST, batch_rows: int = 7) -> Written:
    """Rows 0..rows-1 with three keys, in small Arrow batches."""
    starts = range(0, rows, batch_rows)
    parts = [range(start, min(start + batch_rows, rows)) for start in starts]
    batches = (
        arrow.record_batch({"key": [f"k{n % 3}" for n in part], "n": list(part)}) for part in parts
    )
    return send_rows(opts, origin, batches)


def numbers(gateway: FakeGateway) -> list[int]:
    return sorted(row.item["n"] for row in gateway.rows)


def closed_port() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        return host, port


def test_link_publishes_every_row_once_and_in_order_per_key() -> None:
    with FakeGateway() as gateway:
        assert send(options(gateway, chunk_rows=10), 95) == Written(95, 30, 10)
    assert numbers(gateway) == list(range(95))
    for key in ("k0", "k1", "k2"):
        mine = [row.item["n"] for row in gateway.rows if row.key == key]
        assert mine == sorted(mine)
    assert {(row.namespace, row.producer) for row in gateway.rows} == {("arrivals", "w/0")}


def test_link_says_what_it_is_and_sends_the_agreed_call() -> None:
    with FakeGateway() as gateway:
        send(options(gateway, provider="lake", timeout_s=9.0), 1)
    hello, call = gateway.hellos[0], gateway.calls[0]
    assert (hello.version, hello.cluster, hello.is_silo) == (WIRE_VERSION, "dev", False)
    assert (call.kind, call.key, call.method) == ("$ingest", "lake", "publish")
    assert (call.ttl_s, call.caller, call.chain, call.hops) == (9.0, "spark/w", [], 0)


def test_link_opens_no_connection_when_there_are_no_rows() -> None:
    opts = WriteOptions((closed_port(),), "arrivals", "key", ("n",))
    assert send_rows(opts, Origin("w", 0, 0), iter(())) == Written(0, 0, 0)


def test_link_fills_its_window_and_no_more_before_an_answer_comes() -> None:
    # The gateway answers once three calls are out: a smaller window would wait for ever.
    with FakeGateway(Faults(hold=3)) as gateway:
        send(options(gateway, chunk_rows=10, window=3), 90)
    assert not gateway.overrun
    assert numbers(gateway) == list(range(90))


def test_link_sends_again_what_was_not_answered_when_the_connection_is_reset() -> None:
    with FakeGateway(Faults(drop_at={2, 5})) as gateway:
        written = send(options(gateway, chunk_rows=10), 100)
    assert written == Written(100, 30, 10)
    assert gateway.repeats > 0
    assert numbers(gateway) == list(range(100))


def test_link_goes_to_the_next_gateway_when_one_is_gone() -> None:
    with FakeGateway() as gateway:
        opts = options(gateway)
        gone = (closed_port(), closed_port())
        opts = WriteOptions((*gone, *opts.gateways), "arrivals", "key", ("n",), timeout_s=10.0)
        send(opts, 10)
    assert numbers(gateway) == list(range(10))


def test_link_goes_elsewhere_after_the_answers_when_a_gateway_says_goodbye() -> None:
    # Call 2 is out when the goodbye comes with the answers to 0 and 1.
    with FakeGateway(Faults(goodbye_at={1}, hold=2)) as gateway:
        send(options(gateway, chunk_rows=10, window=3), 90)
    assert len(gateway.hellos) == 2
    assert gateway.repeats == 0
    assert numbers(gateway) == list(range(90))


def test_link_gives_up_when_no_gateway_answers_for_the_timeout() -> None:
    waits: list[float] = []
    opts = WriteOptions((closed_port(),), "arrivals", "key", ("n",), timeout_s=3.0)
    link = Link(opts, wait=waits.append)
    with pytest.raises(GatewayUnavailable, match=r"for timeout_s 3: .*refused"):
        link.publish(b"\x90", 1, "spark/w")
    assert sum(waits) == pytest.approx(3.0)
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4] and max(waits) <= 2.0


def test_link_gives_up_when_a_gateway_takes_calls_and_never_answers() -> None:
    with FakeGateway(Faults(hold=100)) as gateway:
        with pytest.raises(GatewayUnavailable, match=r"timeout_s 0\.2"):
            send(options(gateway, timeout_s=0.2), 10)
    assert not link_module._idle


def test_a_refused_call_raises_the_clusters_own_text_and_drops_the_connection() -> None:
    with FakeGateway(Faults(refuse_at={1})) as gateway:
        opts = options(gateway, chunk_rows=10)
        with pytest.raises(PublishFailed, match=r"rows: errors\.QueueFull: 10 of 10$"):
            send(opts, 50)
        assert not link_module._idle
        send(opts, 50)
    assert len(gateway.hellos) == 2
    assert numbers(gateway) == list(range(50))


def test_fewer_accepted_messages_than_sent_are_an_error() -> None:
    with FakeGateway(Faults(short_of=1)) as gateway:
        with pytest.raises(PublishFailed, match="accepted 2 of 3 messages"):
            send(options(gateway), 9)


def test_a_frame_larger_than_the_gateway_takes_is_refused_with_the_option() -> None:
    small = Faults(hello=Hello(WIRE_VERSION, "dev", "fake", True, 200))
    with FakeGateway(small) as gateway:
        with pytest.raises(ValueError, match=r"takes 200: write a smaller option 'chunk_rows'"):
            send(options(gateway), 100)
    assert not gateway.calls


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (
            Hello(WIRE_VERSION, "prod", "fake", True, 1 << 20),
            "is of cluster 'prod', option 'cluster' is 'dev",
        ),
        (Hello(9, "dev", "fake", True, 1 << 20), f"speaks wire version 9, we speak {WIRE_VERSION}"),
        (Reply(1, msgspec.Raw(b"\x01")), "began with Reply"),
    ],
)
def test_a_gateway_that_does_not_fit_is_refused_at_once(hello: Hello | Reply, text: str) -> None:
    with FakeGateway(Faults(hello=hello)) as gateway:
        with pytest.raises(HandshakeRefused, match=text):
            send(options(gateway), 1)
    assert len(gateway.hellos) <= 1 and not gateway.calls


def test_a_gateway_that_greets_with_goodbye_is_tried_until_the_timeout() -> None:
    with FakeGateway(Faults(hello=Goodbye("stopping"))) as gateway:
        with pytest.raises(GatewayUnavailable, match="said goodbye: stopping"):
            send(options(gateway, timeout_s=0.8), 1)


def test_tasks_of_one_process_share_a_connection() -> None:
    with FakeGateway() as gateway:
        for batch in range(3):
            send(options(gateway, window=2 + batch), 20, Origin("w", batch, 0))
        assert len(link_module._idle) == 1
    assert len(gateway.hellos) == 1
    assert len({call.id for call in gateway.calls}) == len(gateway.calls)


def test_an_idle_connection_that_was_closed_meanwhile_is_replaced() -> None:
    with FakeGateway() as gateway:
        send(options(gateway), 20)
        gateway.hang_up()
        wire = next(iter(link_module._idle.values()))
        assert not wire.silent()
        send(options(gateway), 20, Origin("w", 1, 0))
    assert len(gateway.hellos) == 2
    assert len(gateway.rows) == 40


def test_a_connection_is_dropped_when_the_task_is_interrupted() -> None:
    with FakeGateway() as gateway:
        with pytest.raises(KeyboardInterrupt):
            with linked(options(gateway)) as link:
                body = encode_arguments("a", "w/0", {"k": [{}]}, Numbering(Origin("w", 0, 0)))
                link.publish(body, 1, "spark/w")
                link.check()
                raise KeyboardInterrupt
    assert not link_module._idle


def test_a_repeated_task_adds_nothing_whatever_batches_it_gets() -> None:
    with FakeGateway() as gateway:
        for attempt_batch_rows in (7, 11):
            send(options(gateway, chunk_rows=10), 100, batch_rows=attempt_batch_rows)
    assert gateway.repeats == 30
    assert numbers(gateway) == list(range(100))


def test_a_window_is_full_at_its_limit_and_forgets_a_call_with_its_answer() -> None:
    ids, window = count(1), Window(2)
    frames = []
    for _ in range(2):
        assert not window.full
        frames.append(window.add(_call(next(ids)), 1))
    assert window.full and window.moved() == frames
    assert window.take(Reply(1, msgspec.Raw(b"\x01")))
    assert not window.full and window.moved() == frames[1:]
    with pytest.raises(PublishFailed, match="call 1, which is not out"):
        window.take(Reply(1, msgspec.Raw(b"\x01")))
    window.check()


@pytest.mark.parametrize("body", [b"\x90", b"\xc0", b"\xc1"])
def test_an_answer_that_is_no_known_error_still_fails_with_what_it_is(body: bytes) -> None:
    with pytest.raises(PublishFailed, match="the cluster refused rows: b'"):
        Window(1).take(Failure(1, msgspec.Raw(body)))


def test_time_left_ends_after_its_waits_and_begins_anew_with_an_answer() -> None:
    time_left = TimeLeft(3.0)
    time_left.spend(2.0, None)
    assert time_left.slice_s(5.0) == 1.0
    time_left.renew()
    time_left.spend(2.5, None)
    with pytest.raises(GatewayUnavailable, match="timeout_s 3: boom"):
        time_left.spend(0.5, OSError("boom"))


def test_backoff_tries_every_gateway_before_it_waits() -> None:
    backoff = Rounds(3)
    assert [backoff.next_s() for _ in range(7)] == [0, 0, 0.05, 0.05, 0.05, 0.1, 0.1]
    backoff.reset()
    assert backoff.next_s() == 0


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


def _call(call_id: int) -> Any:
    from millstream.runtime.wire.message import Call

    return Call(call_id, "$ingest", "default", "publish", msgspec.Raw(b"\x90"), 1, "s", [], 0, None)
