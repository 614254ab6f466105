"""Silo processes for tests of Spark, which block, and a reader of their queues."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from tests.real.ledger_kit import process

from millstream.runtime import connect
from millstream.runtime.run import SiloProcess, SiloProcesses
from millstream.streams import StreamNamespace, Token
from millstream.streams.extending import QueueReads
from millstream.streams.rewinding.outside import Range

__all__ = ["SparkSilos", "wait_for"]

ENDS_S = 90.0
LOOK_S = 0.25
PUBLISHED_MAX = 20


class SparkSilos:
    """Three silo processes over one ledger that run inside the `with` block."""

    namespace = "spark_rows"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._made = 0
        self._silos = SiloProcesses([self._silo() for _ in range(3)])
        self.gateways = ""

    def _silo(self, address: str = "127.0.0.1:0") -> SiloProcess:
        self._made += 1
        name, kept_s = f"silo-{self._made}", 3600.0
        return process(self._folder, name, ledger="ledger", address=address, retention_s=kept_s)

    def __enter__(self) -> SparkSilos:
        self._thread.start()
        self._run(self._silos.start())
        self.gateways = ",".join(silo.gateway for silo in self._silos)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._silos.kill())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _run(self, coro: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(ENDS_S)

    def publish(self, namespace: StreamNamespace[Any], items: Mapping[str, Sequence[Any]]) -> None:
        """Publish the items of each key in their order."""
        self._run(self._publish(namespace, items))

    async def _publish(
        self, namespace: StreamNamespace[Any], items: Mapping[str, Sequence[Any]]
    ) -> None:
        async with connect(*self.gateways.split(",")) as client:
            for key, of_key in items.items():
                stream = client.stream(namespace, key)
                for at in range(0, len(of_key), PUBLISHED_MAX):
                    await stream.publish_many(of_key[at : at + PUBLISHED_MAX])

    def kill(self, number: int) -> None:
        """Send SIGKILL to a silo."""
        self._run(self._silos[number].kill())

    def start_again(self, number: int) -> None:
        """Start another silo at the address of a killed one."""
        self._run(self._silos.replace(number, self._silo(self._silos[number].gateway)))

    def seen(self) -> dict[str, list[dict[str, Any]]]:
        """Read the items in the queues, by key and in the order of tokens."""
        found: dict[str, list[dict[str, Any]]] = self._run(self._seen())
        return found

    async def _seen(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        async with connect(*self.gateways.split(",")) as client:
            reads = QueueReads(client.gateway, "default", self.namespace)
            for one in (await reads.extents()).queues:
                if one.first is None or one.last is None:
                    continue
                part = Range(one.queue, one.first, Token(one.last.era, one.last.seq + 1))
                position = part.start
                while position < part.end:
                    page = await reads.page(part, position)
                    position = page.next
                    for message in page.messages:
                        found[message.key] += map(msgspec.msgpack.decode, message.items)
        return dict(found)

    def count(self) -> int:
        """Count the rows in the queues."""
        return sum(map(len, self.seen().values()))


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when the condition is true. Raises TimeoutError."""
    pause = threading.Event()
    for _ in range(round(ENDS_S / LOOK_S)):
        if condition():
            return
        pause.wait(LOOK_S)
    raise TimeoutError(f"not within {ENDS_S:g} s")
