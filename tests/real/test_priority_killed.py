"""A process that works on priority queues is killed at any moment. Answered requests are not
lost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from millstream.providers.priority import EmbeddedStore, QueueSettings, State
from millstream.providers.priority.core.commands import Page

pytestmark = pytest.mark.real

ROUNDS = 3
LINES = 150
WORK = """
import asyncio, sys
from millstream.providers.priority import EmbeddedStore, QueueSettings
from millstream.providers.priority.core.commands import Complete, Dequeue, Enqueue

async def put(queue, name):
    for number in range(100_000):
        await queue.do(Enqueue(f"{name}-{number}", bytes(number % 3_000), number))
        print("put", f"{name}-{number}", flush=True)

async def work(queue, name):
    while True:
        for lease in (await queue.do(Dequeue(name, 3))).leases:
            print("leased", lease.id, flush=True)
            await queue.do(Complete(lease.id, lease.token))
            print("done", lease.id, flush=True)
        await asyncio.sleep(0)

async def main(directory, name):
    store = EmbeddedStore(directory, events=True)
    await store.open()
    queue = await store.acquire("q", QueueSettings())
    await asyncio.gather(*(put(queue, f"{name}{n}") for n in range(3)), work(queue, "w"))

asyncio.run(main(*sys.argv[1:]))
"""


async def answered_before_it_was_killed(directory: Path, name: str) -> list[tuple[str, str]]:
    """Return the answers that the process printed before SIGKILL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORK, str(directory), name, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(LINES)]
    process.kill()
    lines += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    whole = [line.decode().split() for line in lines if line.endswith(b"\n")]
    return [(what, id) for what, id in whole]


async def test_what_a_killed_process_was_answered_is_stored(tmp_path: Path) -> None:
    answered: list[tuple[str, str]] = []
    for round_ in range(ROUNDS):
        answered += await answered_before_it_was_killed(tmp_path, f"r{round_}-")
    store = EmbeddedStore(tmp_path, events=True)
    await store.open()
    queue = await store.acquire("q", QueueSettings())
    states: dict[str, State] = {}
    after = 0
    while views := await queue.look(Page(1_000, after)):
        states |= {view.id: view.state for view in views}
        after = views[-1].sequence
    for what, id in answered:
        assert id in states, f"{what} {id} is lost"
        assert what == "put" or states[id] in (State.RUNNING, State.COMPLETED), f"{what} {id}"
        assert what != "done" or states[id] is State.COMPLETED, f"{id} was completed"
    done = [id for what, id in answered if what == "done"]
    assert len(set(done)) == len(done) > 20
    versions: dict[str, int] = {}
    for outbox in range(store.outboxes):
        for _, event in await store.events(outbox, 0, 100_000):
            assert event.version == versions.get(event.id, 0) + 1, "events have no gaps"
            versions[event.id] = event.version
    assert set(versions) == set(states)
    await store.aclose()
