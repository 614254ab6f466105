"""One producer process, one consumer process: the workload that every stream subject shares.

This module owns the events, the runs, the producer's loop over commands, and the notes of the
consumer. Invariants:

- Subjects differ only in how they send and receive.
- A producer has one unanswered batch at a time.
- The latency of an event ends when the consumer's code has the decoded event.
- With several subscribers, each gets every event, decoded for itself.
- With many streams, each event of a batch belongs to another stream. A run whose name ends with
  `_warm` is a second pass over the streams of the run before it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from benchmarks.measure import cpu_s, now, settle_memory

__all__ = [
    "CHOSEN",
    "DURABLE_RUNS",
    "RUNS",
    "WIDE_RUNS",
    "Arrivals",
    "Consumer",
    "Run",
    "Sample",
    "chosen",
    "measure_feed",
    "produce",
]

DATA = os.urandom(980)
WAIT_S = 120.0
CHOSEN = "MILLSTREAM_BENCHMARK_RUNS"
"""The environment variable that selects runs; children inherit it."""


class Sample(NamedTuple):
    """An event of about 1,000 bytes; the clock is the machine's monotonic one."""

    number: int
    sent_s: float
    data: bytes


class Run(NamedTuple):
    """A number of events, in batches. `rate`: events per second, 0 for as fast as possible."""

    name: str
    events: int
    batch: int
    rate: int
    subscribers: int = 1
    streams: int = 1

    def key_of(self, key: str, number: int) -> str:
        """Return the stream of an event; `key` names the run."""
        return key if self.streams == 1 else f"{key}/{number % self.streams}"

    @property
    def is_warm_up(self) -> bool:
        """Does the run have no figures?"""
        return self.name.startswith("warm")

    @property
    def first(self) -> str:
        """The run that writes to these streams first."""
        return self.name.removesuffix("_warm")


RUNS = (
    Run("warm100", 5_000, 100, 0),
    Run("b100", 40_000, 100, 0),
    Run("warm1", 300, 1, 0),
    Run("b1", 4_000, 1, 0),
    Run("paced", 2_000, 1, 1_000),
    Run("paced5k", 5_000, 1, 5_000),
)
DURABLE_RUNS = (
    RUNS[0],
    Run("durable100", 20_000, 100, 0),
    RUNS[2],
    Run("durable1", 2_000, 1, 0),
    Run("durable_paced", 2_000, 1, 500),
)
WIDE_RUNS = (
    Run("warm100", 5_000, 100, 0),
    Run("subscribers10", 4_000, 100, 0, subscribers=10),
    Run("subscribers100", 1_000, 100, 0, subscribers=100),
    Run("streams10000", 20_000, 100, 0, streams=10_000),
    Run("streams10000_warm", 20_000, 100, 0, streams=10_000),
)
Send = Callable[[str, list[Sample]], Awaitable[Any]]
SendEach = Callable[[str, list[str], list[Sample]], Awaitable[Any]]


class Arrivals:
    """The events of one run that the consumers received."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first_s = 0.0
        self._last_s = 0.0
        self._missing = run.events * run.subscribers
        self.latencies_s: list[float] = []
        self.numbers: list[list[int]] = [[] for _ in range(run.subscribers)]
        self.is_complete = asyncio.Event()

    def note(self, samples: Sequence[Sample], subscriber: int = 0) -> None:
        """Record that a subscriber has decoded events."""
        at = now()
        self._first_s = self._first_s or at
        numbers = self.numbers[subscriber]
        for number, sent_s, _ in samples:
            numbers.append(number)
            self.latencies_s.append(at - sent_s)
        self._missing -= len(samples)
        if self._missing <= 0:
            self._last_s = at
            self.is_complete.set()

    def check(self) -> None:
        """Assert that each subscriber has every event once, and those of a stream in order."""
        for numbers in self.numbers:
            by_stream = sorted(numbers, key=lambda number: number % self._run.streams)
            expected = sorted(range(self._run.events), key=lambda one: one % self._run.streams)
            assert by_stream == expected, f"{self._run.name}: lost, repeated or out of order"

    def figures(self, used_s: float) -> dict[str, float]:
        """Return events per second after the first batch and CPU of all processes, or latencies."""
        self.check()
        name, count, batch, rate, subscribers, _ = self._run
        if rate:
            tail = sorted(self.latencies_s[count // 10 :])
            return {
                f"{name}_p50_us": tail[len(tail) // 2] * 1e6,
                f"{name}_p99_us": tail[len(tail) * 99 // 100] * 1e6,
            }
        took = self._last_s - self._first_s
        return {
            f"{name}_events_s": (count - batch) * subscribers / took,
            f"{name}_cpu_us": used_s / (count * subscribers) * 1e6,
        }


class Consumer(Protocol):
    """The receiving side of a subject."""

    @property
    def address(self) -> str:
        """The address for the producer."""
        ...

    @property
    def pids(self) -> Sequence[int]:
        """The processes that receive, with this one."""
        ...

    async def receive(self, key: str, run: Run, arrivals: Arrivals) -> None:
        """Prepare to receive the events of a key; receive in the background afterwards."""
        ...


def chosen(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that `CHOSEN` names, with second passes and warm-ups; all if it is unset."""
    names = os.environ.get(CHOSEN, "").split(",")
    wanted = [run for run in runs if run.is_warm_up or names == [""] or run.first in names]
    return [] if all(run.is_warm_up for run in wanted) else wanted


async def measure_feed(
    subject: str, consumer: Consumer, runs: Sequence[Run] = RUNS
) -> dict[str, float]:
    """Measure the chosen runs, with one producer process."""
    command = [sys.executable, "-m", "benchmarks", "--produce", subject, consumer.address]
    pipe = asyncio.subprocess.PIPE
    producer = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert producer.stdin is not None and producer.stdout is not None
    figures: dict[str, float] = {}
    settle_memory()
    try:
        for run in chosen(runs):
            arrivals, key = Arrivals(run), f"{run.first}-{os.getpid()}"
            await consumer.receive(key, run, arrivals)
            pids = [producer.pid, *consumer.pids]
            before = cpu_s(pids)
            producer.stdin.write(f"{run.name} {key}\n".encode())
            async with asyncio.timeout(WAIT_S):
                await arrivals.is_complete.wait()
                assert await producer.stdout.readline(), "the producer has ended"
            if not run.is_warm_up:
                figures |= arrivals.figures(cpu_s(pids) - before)
    finally:
        producer.stdin.close()
        await producer.wait()
    return figures


async def produce(send: Send, send_each: SendEach | None = None) -> None:
    """Run the runs that standard input names, until it ends: lines of a run's name and a key.

    `send_each` gets the run's key, the stream of each event, and the events.
    """
    runs = {run.name: run for run in (*RUNS, *DURABLE_RUNS, *WIDE_RUNS)}
    loop = asyncio.get_running_loop()
    settle_memory()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, key = line.split()
        await _send_run(send, send_each, runs[name], key)
        print(name, flush=True)


async def _send_run(send: Send, send_each: SendEach | None, run: Run, key: str) -> None:
    started = now()
    for at in range(0, run.events, run.batch):
        if run.rate and (ahead := started + at / run.rate - now()) > 0:
            await asyncio.sleep(ahead)
        samples = [Sample(i, now(), DATA) for i in range(at, at + run.batch)]
        if send_each is None or run.streams == 1:
            await send(key, samples)
        else:
            await send_each(key, [run.key_of(key, one.number) for one in samples], samples)
