"""The first request with a key is lost on its way. A repeat by any process is the same request.

The tests run in virtual time with crashes. The HTTP server keeps no state about keys, so it is not
part of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import RequestInvalid
from millstream.providers.priority.core.commands import Dequeue, Enqueue
from millstream.providers.priority.http.routes.asked import (
    Opened,
    OpenedOf,
    poll_by_key,
    request_of,
)

ENQUEUE = Enqueue("m", b"x", 1)
REQUEST = request_of("a-key", ["enqueue", "m"])
POLL = Dequeue("w", 2)


def opened(runtime: Any) -> Opened:
    found: Opened = runtime.stream(OpenedOf("priority", 30.0), "q")
    return found


async def by_a_silo(rig: Rig, act: Any) -> Any:
    """Call a running silo, as another server would."""
    name = next(one for one in rig.cluster.names if rig.cluster.silo(one) is not None)
    return await rig.on(name, act(opened(rig.silo(name))))


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_change_whose_server_and_owner_die_is_done_once(point: str) -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        await rig.on(rig.host, queue.enqueue(b"first"))
        died = asyncio.Event()

        async def die(_: str) -> None:
            if not died.is_set():
                died.set()
                rig.simulation.crash(rig.owner_of())

        setattr(rig.faults, f"on_{point}", die)
        first = rig.spawn(opened(rig.client).calls.do(ENQUEUE, REQUEST))
        await died.wait()
        first.cancel()  # the server is gone, and sends no more
        await asyncio.wait([first])
        again = await by_a_silo(rig, lambda other: other.calls.do(ENQUEUE, REQUEST))
        assert (again.id, again.version, again.is_changed) == ("m", 1, True)
        third = await by_a_silo(rig, lambda other: other.calls.do(ENQUEUE, REQUEST))
        assert third == again and len(rig.stored()) == 2
        with pytest.raises(RequestInvalid, match="was used for 'enqueue"):
            other = request_of("a-key", ["enqueue", "n"])
            await by_a_silo(rig, lambda found: found.calls.do(ENQUEUE._replace(id="n"), other))

    in_cluster(main, silos=3)


def test_what_was_leased_for_a_server_that_is_gone_is_given_to_the_repeat() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        for id in "ab":
            await rig.on(rig.host, queue.enqueue(b"x", id=id, attempts=1))
        request = request_of("a-key", ["dequeue"])
        stored = asyncio.Event()

        async def gone(_: str) -> None:
            if not stored.is_set():
                stored.set()
                first.cancel()

        rig.faults.on_after = gone
        first = rig.spawn(poll_by_key(opened(rig.client).calls, POLL, request, 5.0))
        await asyncio.wait([first])
        assert first.cancelled() and stored.is_set()
        rows = await by_a_silo(rig, lambda other: poll_by_key(other.calls, POLL, request, 5.0))
        assert [(row.id, row.attempt, row.is_valid) for row in rows] == [
            ("a", 1, True),
            ("b", 1, True),
        ]

    in_cluster(main)


def test_a_poll_under_a_key_waits_and_who_leaves_takes_nothing() -> None:
    async def main(rig: Rig) -> None:
        queue = rig.queue()
        request = request_of("a-key", ["dequeue"])
        calls = opened(rig.client).calls
        first = rig.spawn(poll_by_key(calls, POLL, request, 25.0))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.sleep(1)
        await rig.on(rig.host, queue.enqueue(b"x", id="m"))
        [view] = await rig.on(rig.host, queue.peek())
        assert view.attempts_left == 3, "nobody leased it"
        [row] = await rig.on(rig.host, poll_by_key(calls, POLL, request, 25.0))
        assert row.id == "m"
        empty = request_of("another", ["dequeue"])
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert await rig.on(rig.host, poll_by_key(calls, POLL, empty, 5.0)) == ()
        assert 5.0 <= loop.time() - begun_s < 6.0

    in_cluster(main)
