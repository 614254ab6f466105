"""A stream over the adapter of this folder: `python examples/custom_adapter/main.py`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from jsonl_queues import JsonLinesQueues

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe

WORDS = StreamNamespace("words", str)
heard: list[str] = []
done = asyncio.Event()


class Listener(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        heard.append(f"{self.key}: {event.item}")
        if len(heard) == 6:
            done.set()


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:

        def streams() -> PersistentStreams:
            queues = JsonLinesQueues(Path(place))
            mapper, balancer = HashRingMapper(queues=2), DeploymentBalancer()
            return PersistentStreams(queues, mapper=mapper, balancer=balancer)

        async with LocalCluster(grains=[Listener], streams={"default": streams}) as cluster:
            for word in ("one", "two", "three"):
                await cluster.stream(WORDS, "a").publish(word)
                await cluster.stream(WORDS, "b").publish(word)
            await done.wait()
    print("\n".join(sorted(heard, key=lambda line: line.partition(":")[0])))


asyncio.run(main())
