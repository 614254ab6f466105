"""The runs of streams that take part, and the peer with a Redis stream for each. No test measures
time."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.feed import CHOSEN, RUNS, WIDE_RUNS, Arrivals, Run, Sample, chosen
from benchmarks.revision import ROOT, has_program
from benchmarks.servers import redis_process
from tests.real.redis_server import require_redis

from benchmarks import __main__ as command


def names(runs: list[Run]) -> list[str]:
    return [run.name for run in runs]


def test_a_chosen_run_comes_with_its_second_pass_and_what_warms_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CHOSEN, "")
    assert chosen(WIDE_RUNS) == list(WIDE_RUNS)
    command.choose("b1,streams10000", "streams")
    assert names(chosen(WIDE_RUNS)) == ["warm100", "streams10000", "streams10000_warm"]
    assert names(chosen(RUNS)) == ["warm100", "warm1", "b1"]
    monkeypatch.setenv(CHOSEN, "b1")
    assert chosen(WIDE_RUNS) == []


@pytest.mark.parametrize(
    ("given", "suite"), [("b1", "calls"), ("b1,b2", "streams"), ("warm100", "streams")]
)
def test_a_run_that_streams_do_not_have_is_refused(given: str, suite: str) -> None:
    with pytest.raises(SystemExit, match="--runs is of the suite streams, and of b100, b1, "):
        command.choose(given, suite)


def test_every_subject_is_a_program() -> None:
    for suite in command.SUITES:
        for parts in command.parts_of(suite, True).values():
            assert [part for part in parts if not has_program(ROOT, part)] == []


@pytest.mark.real
async def test_each_of_many_redis_streams_is_read_and_acknowledged_in_both_passes(
    tmp_path: Path,
) -> None:
    require_redis()
    pytest.importorskip("redis", reason="redis-py is not installed (extra `redis`)")
    from benchmarks.redis_peer import add
    from benchmarks.redis_streams import ManyStreamsConsumer, keys_of

    first = Run("many", 600, 200, 0, streams=300)
    async with redis_process(tmp_path) as (port, server):
        consumer = ManyStreamsConsumer(port, server.pid)
        for run in (first, first._replace(name="many_warm")):
            arrivals = Arrivals(run)
            await consumer.receive("k", run, arrivals)
            for at in range(0, run.events, run.batch):
                samples = [Sample(number, 0.0, b"") for number in range(at, at + run.batch)]
                wanted = [run.key_of("k", one.number) for one in samples]
                await add(consumer.redis, wanted, samples)
            await consumer.finish()
            arrivals.check()
        for key in keys_of("k", first):
            assert await consumer.redis.xlen(key) == 4
            assert (await consumer.redis.xpending(key, "g"))["pending"] == 0
        await consumer.redis.aclose()
