"""A program with its own topics is killed while it produces. Acknowledged messages are not lost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from millstream.providers.ledger import LedgerTopic, Position, open_topics

pytestmark = pytest.mark.real

PROGRAM = """
import asyncio, sys
from millstream.providers.ledger import open_topics

async def main():
    async with open_topics(sys.argv[1], open_wait_s=20) as topics:
        orders = await topics.topic("orders", partitions=2)

        async def produce(key):
            for sequence in range(int(sys.argv[2]), 1_000_000):
                value = f"{key}:{sequence}".encode()
                where = await orders.produce(key, value, producer=key, sequence=sequence)
                if where is not None:  # a repeat that is not the newest: it is there
                    print(where.partition, where.number, value.decode(), flush=True)

        await asyncio.gather(*map(produce, ("a", "b", "c", "d")))

asyncio.run(main())
"""


async def stored(topic: LedgerTopic) -> dict[tuple[int, int], str]:
    """Read every message of the topic."""
    found: dict[tuple[int, int], str] = {}
    for at in range(topic.partitions):
        start = Position(at, 1)
        while page := await topic.read(start):
            for one in page:
                found[one.position.partition, one.position.number] = one.value.decode()
            start = Position(at, page[-1].position.number + 1)
    return found


async def test_what_a_killed_program_was_told_is_there(tmp_path: Path) -> None:
    told: dict[tuple[int, int], str] = {}
    for lives in (1, 2, 3):
        first = str(1 + max((int(text.partition(":")[2]) for text in told.values()), default=0))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            str(tmp_path / "shop"),
            first,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                while len(told) < 200 * lives:
                    partition, number, value = (await process.stdout.readline()).decode().split()
                    told[int(partition), int(number)] = value
        finally:
            process.kill()
            await process.wait()
    async with open_topics(tmp_path / "shop", open_wait_s=20) as topics:
        found = await stored(await topics.topic("orders"))
    assert {place: found.get(place) for place in told} == told
    values = list(found.values())
    assert len(set(values)) == len(values)
    for key in "abcd":
        numbers = [int(text[2:]) for _, text in sorted(found.items()) if text.startswith(key)]
        assert numbers == sorted(numbers)
