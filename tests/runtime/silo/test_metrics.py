"""The metrics of a silo, in virtual time: each value is compared with what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from millstream.runtime import (
    CallTimeout,
    ConfigError,
    Grain,
    MemoryMembershipTable,
    Metrics,
    MetricsOptions,
    Occurrence,
    Overloaded,
    RuntimeOptions,
    Silo,
    grain,
    one_way,
    read_only,
    reminder,
    shielded,
    timeout,
)
from millstream.runtime.extending import Histogram, Metric, MetricRegistry, Sample, SiloPart
from millstream.runtime.testing import SimCluster, Simulation, run

GATE = [asyncio.Event()]


@grain(name="Desk")
class Desk(Grain):
    async def answer(self, text: str) -> str:
        return text

    async def fail(self) -> None:
        raise ValueError("no")

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @timeout(1.0)
    async def hang(self) -> None:
        await asyncio.sleep(100.0)

    @read_only
    async def look(self) -> int:
        return 1

    @one_way
    async def hear(self, text: str) -> None:
        return None

    @shielded
    async def keep(self) -> int:
        await asyncio.sleep(0.5)
        return 1

    async def end(self) -> None:
        self.context.deactivate_when_idle()


@grain(name="Broken")
class Broken(Grain):
    async def on_activate(self) -> None:
        raise RuntimeError("does not start")

    async def answer(self) -> int:
        return 1


@grain(name="Caller")
class Asker(Grain):
    async def ask(self, key: str, times: int) -> None:
        for _ in range(times):
            await self.grain(Desk, key).answer("x")

    async def ask_hung(self, key: str) -> None:
        await self.grain(Desk, key).hang()


def in_silos(
    main: Callable[[Sequence[Silo]], Awaitable[None]],
    *,
    silos: int = 1,
    options: RuntimeOptions | None = None,
    metrics: MetricsOptions | None = None,
) -> None:
    """Run a test in the first of some silos with metrics, in virtual time."""

    async def driver(sim: Simulation) -> None:
        made = {"metrics": lambda: Metrics(options=metrics)}
        grains = (Desk, Broken, Asker)
        async with SimCluster(
            sim, silos=silos, grains=grains, options=options, parts=made
        ) as cluster:
            found = [cluster.silo(name) for name in cluster.names]
            ready = [one for one in found if one is not None]
            await sim.call(sim.host(cluster.names[0]), as_coroutine(main(ready)))

    run(driver, seed=1)


async def as_coroutine(work: Awaitable[None]) -> None:
    await work


def values(silo: Silo, name: str) -> dict[tuple[str, ...], Any]:
    """Return the values of a metric now, by labels."""
    for metric, found in silo.services.metrics.collect().items():
        if metric.name == name:
            return dict(found)
    raise AssertionError(f"there is no metric {name}")


def value(silo: Silo, name: str, *labels: str) -> Any:
    """Return one value of a metric now; 0 for a series that does not exist."""
    return values(silo, name).get(labels, 0)


def calls(silo: Silo, method: str, outcome: str = "ok") -> Any:
    return value(silo, "millstream_calls_total", "Desk", method, outcome)


# -- calls


@pytest.mark.parametrize("number", [1, 5, 64, 65, 200])
def test_direct_turns_are_counted_exactly(number: int) -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        for _ in range(number):
            await desk.answer("x")
        assert calls(silos[0], "answer") == number
        assert values(silos[0], "millstream_sent_calls_total") == {}

    in_silos(main)


def test_a_sampled_direct_turn_counts_for_those_since_the_sample_before() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        await desk.answer("x")  # activates the grain: no direct turn
        found = value(silos[0], "millstream_call_duration_seconds", "Desk")
        assert found.count == 1
        for _ in range(1 + 64 + 10):
            await desk.wait(0.02)
        found = value(silos[0], "millstream_call_duration_seconds", "Desk")
        assert found.count == 1 + 1 + 64
        assert found.sum == pytest.approx(65 * 0.02, abs=0.01)
        at = found.bounds.index(0.025)
        assert found.counts[at] == 65
        assert calls(silos[0], "wait") == 75

    in_silos(main)


def test_each_direct_turn_is_measured_if_the_options_say_so() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        await desk.answer("x")
        for seconds in (0.02, 0.02, 0.3):
            await desk.wait(seconds)
        found = value(silos[0], "millstream_call_duration_seconds", "Desk")
        assert found.count == 4
        assert found.sum == pytest.approx(0.34, abs=0.01)
        assert found.counts[found.bounds.index(0.5)] == 1

    in_silos(main, metrics=MetricsOptions(sample_every_calls=1))


def test_errors_and_deadlines_are_counted_by_outcome() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        await desk.answer("x")
        for _ in range(3):
            with pytest.raises(ValueError):
                await desk.fail()
        for _ in range(2):
            with pytest.raises(CallTimeout):
                await desk.hang()
        assert calls(silos[0], "fail", "error") == 3
        assert calls(silos[0], "fail") == 0
        assert calls(silos[0], "hang", "timeout") == 2
        assert calls(silos[0], "hang") == 0
        found = value(silos[0], "millstream_call_duration_seconds", "Desk")
        assert found.count == 6
        assert found.sum == pytest.approx(2.0, abs=0.1)

    in_silos(main)


def test_a_call_that_its_caller_cancels_is_counted_as_cancelled() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        await desk.answer("x")
        task = asyncio.ensure_future(desk.wait(10.0))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        assert calls(silos[0], "wait", "cancelled") == 1

    in_silos(main)


@pytest.mark.parametrize("method", ["wait", "look"])
def test_a_call_that_ends_while_it_waits_is_counted_once(method: str) -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        await desk.answer("x")
        first = asyncio.ensure_future(desk.wait(5.0))
        await asyncio.sleep(0.1)
        work = desk.wait(1.0) if method == "wait" else desk.look()
        second = asyncio.ensure_future(work)
        await asyncio.sleep(0.5)
        second.cancel()
        await asyncio.wait([second])
        assert calls(silos[0], method, "cancelled") == 1
        assert calls(silos[0], method) == 0
        await first
        found = values(silos[0], "millstream_calls_total")
        assert sum(n for key, n in found.items() if key[0] == "Desk") == 3
        assert values(silos[0], "millstream_sent_calls_total") == {}

    in_silos(main)


def test_calls_by_other_ways_than_the_direct_turn_are_counted_once() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        for _ in range(4):
            await desk.look()
        for _ in range(3):
            await desk.keep()
        for _ in range(2):
            await desk.hear("x")
        both = asyncio.gather(desk.wait(1.0), desk.wait(1.0))
        await both
        assert [calls(silos[0], m) for m in ("look", "keep", "hear", "wait")] == [4, 3, 2, 2]
        found = value(silos[0], "millstream_call_duration_seconds", "Desk")
        assert found.sum == pytest.approx(3 * 0.5 + 1.0 + 2.0, abs=0.1)  # with the time of waiting

    in_silos(main, metrics=MetricsOptions(sample_every_calls=1))


def test_a_call_between_silos_counts_where_it_is_made_and_where_it_ends() -> None:
    async def is_in(here: Silo, silo: Silo, key: str) -> bool:
        await here.grain(Desk, key).look()
        return any(one.key == key for one in silo.assembly.catalog.all() if one.kind.name == "Desk")

    async def main(silos: Sequence[Silo]) -> None:
        here, there = silos
        keys = [key for key in map(str, range(20)) if await is_in(here, there, key)]
        key = keys[0]
        before = value(here, "millstream_sent_calls_total", "Desk", "ok")
        for _ in range(5):
            await here.grain(Desk, key).answer("x")
        assert calls(there, "answer") == 5
        assert calls(here, "answer") == 0
        assert value(here, "millstream_sent_calls_total", "Desk", "ok") == before + 5
        task = asyncio.ensure_future(here.grain(Desk, key).wait(2.0))
        await asyncio.sleep(0.1)
        with pytest.raises(CallTimeout):
            await here.grain(Desk, key).hang()  # its deadline passes while it waits there
        await task
        assert calls(there, "hang", "timeout") == 1
        assert value(here, "millstream_sent_calls_total", "Desk", "timeout") == 1
        sent = value(here, "millstream_sent_call_duration_seconds", "Desk")
        assert sent.sum == pytest.approx(2.0 + 1.0, abs=0.2)

    in_silos(main, silos=2)


def test_the_duration_of_a_call_of_another_silo_has_the_time_in_the_mailbox() -> None:
    async def is_in(here: Silo, silo: Silo, key: str) -> bool:
        await here.grain(Desk, key).look()
        return any(one.key == key for one in silo.assembly.catalog.all() if one.kind.name == "Desk")

    async def main(silos: Sequence[Silo]) -> None:
        here, there = silos
        keys = [key for key in map(str, range(20)) if await is_in(here, there, key)]
        desk = here.grain(Desk, keys[0])
        await asyncio.gather(desk.wait(2.0), desk.wait(1.0))
        found = value(there, "millstream_call_duration_seconds", "Desk")
        assert found.sum == pytest.approx(2.0 + 3.0, abs=0.2)

    in_silos(main, silos=2)


# -- activations and mailboxes


def test_activations_are_counted_by_type_start_failure_and_reason() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        silo = silos[0]
        before = value(silo, "millstream_activations_created_total")
        for key in ("a", "b", "c"):
            await silo.grain(Desk, key).answer("x")
        with pytest.raises(Exception, match="does not start"):
            await silo.grain(Broken, "a").answer()
        await silo.grain(Desk, "c").end()
        await asyncio.sleep(0.1)
        assert value(silo, "millstream_activations", "Desk") == 2
        assert value(silo, "millstream_activations", "Broken") == 0
        assert value(silo, "millstream_activations_created_total") - before == 4
        assert value(silo, "millstream_activations_failed_total") == 1
        assert values(silo, "millstream_activations_ended_total") == {("requested",): 1}

    in_silos(main)


def test_waiting_calls_and_the_deepest_mailbox_are_seen_at_the_next_look() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        silo = silos[0]
        work = [silo.grain(Desk, "a").wait(8.0) for _ in range(4)]
        work += [silo.grain(Desk, "b").wait(8.0) for _ in range(2)]
        tasks = [asyncio.ensure_future(one) for one in work]
        await asyncio.sleep(5.1)
        assert value(silo, "millstream_mailbox_waiting_calls", "Desk") == 3 + 1
        assert value(silo, "millstream_mailbox_deepest_calls", "Desk") == 3
        tasks[-1].cancel()  # it is withdrawn from the mailbox of b
        tasks[2].cancel()
        await asyncio.sleep(5.1)
        assert value(silo, "millstream_mailbox_waiting_calls", "Desk") == 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(5.1)
        assert values(silo, "millstream_mailbox_waiting_calls") == {}

    in_silos(main)


def test_calls_that_a_full_mailbox_refuses_are_counted() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        desk = silos[0].grain(Desk, "a")
        await desk.answer("x")
        tasks = [asyncio.ensure_future(desk.wait(1.0)) for _ in range(3)]
        await asyncio.sleep(0.1)
        for _ in range(2):
            with pytest.raises(Overloaded):
                await desk.answer("x")
        assert value(silos[0], "millstream_mailbox_refused_calls_total") == 2
        await asyncio.wait(tasks)

    in_silos(main, options=RuntimeOptions(waiting_calls_max=2))


# -- the cluster


def test_members_connections_and_the_directory_are_those_of_the_cluster() -> None:
    async def main(silos: Sequence[Silo]) -> None:
        for key in range(40):
            await silos[0].grain(Desk, str(key)).answer("x")
        await asyncio.sleep(3.0)
        for silo in silos:
            assert value(silo, "millstream_members", "active") == 3
            assert value(silo, "millstream_members", "dead") == 0
            view = silo.assembly.membership.view
            assert value(silo, "millstream_membership_version") == view.version
            assert value(silo, "millstream_connections", "client") == 0
            assert value(silo, "millstream_connections", "silo") >= 2
            assert value(silo, "millstream_directory_recovering") == 0
        entries = [value(one, "millstream_directory_entries") for one in silos]
        assert sum(entries) == 40
        received = sum(value(one, "millstream_received_bytes_total") for one in silos)
        sent = sum(value(one, "millstream_sent_bytes_total") for one in silos)
        assert 0.9 * sent <= received <= sent
        before = value(silos[0], "millstream_sent_bytes_total")
        for peer in silos[0].assembly.peers.list_known():
            peer.close("test")
        assert value(silos[0], "millstream_sent_bytes_total") >= before > 0
        info = values(silos[0], "millstream_silo_info")
        assert [(key[0], key[2]) for key in info] == [(silos[0].address, "sim")]

    in_silos(main, silos=3)


# -- reminders


@grain(name="Reminded")
class Reminded(Grain):
    async def set(self) -> None:
        await self.context.reminders.set("remind", every=60.0)

    @reminder
    async def remind(self, occurrence: Occurrence) -> None:
        if self.key == "bad":
            raise ValueError("bad")


def test_occurrences_of_reminders_are_counted() -> None:
    async def driver(sim: Simulation) -> None:
        parts = {"metrics": Metrics}
        async with SimCluster(sim, silos=1, grains=[Reminded], parts=parts) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None

            async def main() -> None:
                for key in ("a", "b", "bad"):
                    await silo.grain(Reminded, key).set()
                await asyncio.sleep(40.0)
                assert value(silo, "millstream_reminders_loaded") == 3
                await asyncio.sleep(30.0)
                assert value(silo, "millstream_reminders_delivered_total") == 3
                assert value(silo, "millstream_reminders_failed_total") == 1
                assert value(silo, "millstream_reminders_missed_total") == 0
                assert value(silo, "millstream_reminder_buckets") == 1_024
                assert value(silo, "millstream_reminder_deliveries") == 0

            await sim.call(sim.host(cluster.names[0]), main())

    run(driver, seed=1)


# -- the registry

ORDERS = Metric(name="shop_orders_total", type="counter", help="Orders.", labels=("shop",))
DEPTH = Metric(name="shop_depth", type="gauge", help="Depth.")


def test_series_of_several_readers_are_added() -> None:
    metrics = MetricRegistry()
    metrics.add([ORDERS], lambda: [Sample(ORDERS, ("a",), 2), Sample(ORDERS, ("b",), 1)])
    metrics.add([ORDERS], lambda: [Sample(ORDERS, ("a",), 3)])
    assert metrics.collect()[ORDERS] == {("a",): 5, ("b",): 1}


def test_a_reader_that_fails_loses_only_its_own_samples(caplog: pytest.LogCaptureFixture) -> None:
    metrics = MetricRegistry()

    def fail() -> list[Sample]:
        raise OSError("gone")

    metrics.add([DEPTH], fail)
    metrics.add([ORDERS], lambda: [Sample(ORDERS, ("a",), 2)])
    for number in (1, 2):
        found = {metric.name: values for metric, values in metrics.collect().items()}
        assert found["shop_orders_total"] == {("a",): 2}
        assert found["shop_depth"] == {}
        assert found["millstream_metrics_reader_failures_total"] == {(): number}
    assert len([one for one in caplog.records if "shop_depth" in one.getMessage()]) == 1


@pytest.mark.parametrize(
    "sample",
    [
        Sample(DEPTH, (), 1),
        Sample(ORDERS, (), 1),
        Sample(ORDERS, ("a", "b"), 1),
        Sample(ORDERS, ("a",), Histogram()),
    ],
)
def test_a_sample_that_does_not_fit_its_metric_is_refused(sample: Sample) -> None:
    metrics = MetricRegistry()
    metrics.add([ORDERS], lambda: [Sample(ORDERS, ("x",), 1), sample])
    found = {metric.name: values for metric, values in metrics.collect().items()}
    assert found["shop_orders_total"] == {}
    assert found["millstream_metrics_reader_failures_total"] == {(): 1}


def test_series_above_the_limit_are_dropped_and_counted() -> None:
    metrics = MetricRegistry(series_max=3)
    metrics.add([ORDERS], lambda: [Sample(ORDERS, (str(n),), n) for n in range(10)])
    for _ in range(2):
        found = {metric.name: values for metric, values in metrics.collect().items()}
        assert found["shop_orders_total"] == {("0",): 0, ("1",): 1, ("2",): 2}
        assert found["millstream_metrics_dropped_series"] == {("shop_orders_total",): 7}


def test_two_metrics_of_one_name_are_refused() -> None:
    metrics = MetricRegistry()
    metrics.add([ORDERS], lambda: [])
    other = Metric(name="shop_orders_total", type="counter", help="Orders.")
    with pytest.raises(ConfigError, match="shop_orders_total is already known as a counter"):
        metrics.add([other], lambda: [])


@pytest.mark.parametrize(
    ("name", "kind", "unit", "labels"),
    [
        ("Orders", "gauge", "", ()),
        ("orders", "counter", "", ()),
        ("orders_total", "gauge", "", ()),
        ("wait", "gauge", "seconds", ()),
        ("wait_seconds", "counter", "seconds", ()),
        ("wait_seconds", "timer", "seconds", ()),
        ("wait_hours", "gauge", "hours", ()),
        ("wait", "gauge", "", ("le",)),
        ("wait", "gauge", "", ("a-b",)),
    ],
)
def test_a_metric_that_breaks_the_conventions_is_refused(
    name: str, kind: Any, unit: Any, labels: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError):
        Metric(name=name, type=kind, help="x", unit=unit, labels=labels)


def test_values_fall_into_the_bucket_of_the_next_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(number)
    histogram.observe(1.5, weight=10)
    assert histogram.counts == [2, 12, 1]
    assert histogram.count == 15
    assert histogram.sum == pytest.approx(119.0)
    assert histogram.plus(histogram).counts == [4, 24, 2]


# -- the part


def test_a_silo_without_metrics_counts_no_calls() -> None:
    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=1, grains=(Desk,)) as cluster:
            silo = cluster.silo(cluster.names[0])
            assert silo is not None
            assert silo.assembly.turns.counts is None
            code: Any = type(silo.grain(Desk, "a")).answer
            assert not [name for name in code.__code__.co_names if "_ms_calls" in name]
            names = {metric.name for metric in silo.services.metrics.collect()}
            assert "millstream_calls_total" not in names

    run(driver, seed=1)


def test_a_silo_has_one_metrics_part() -> None:
    with pytest.raises(ConfigError, match="one Metrics part, and this one has 2"):
        Silo(grains=[Desk], parts={"a": Metrics(), "b": Metrics()})
    silo = Silo(grains=[Desk], parts={"metrics": Metrics()})
    with pytest.raises(ConfigError, match="a part named 'metrics' already"):
        silo.add_metrics(Metrics())
    silo = Silo(grains=[Desk], parts={"other": Metrics()})
    with pytest.raises(ConfigError, match="one Metrics part"):
        silo.add_metrics(Metrics())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Metrics("nowhere"),
        lambda: Metrics(7),  # type: ignore[arg-type]
        lambda: Metrics(options=7),  # type: ignore[arg-type]
        lambda: MetricsOptions(requests_max=0),
        lambda: MetricsOptions(sample_every_calls=0),
        lambda: MetricsOptions(probe_timeout_s=0.0),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


async def test_a_bookie_keeps_its_metrics() -> None:
    class Shelf(SiloPart):
        def has_bookie(self) -> bool:
            return True

    parts = {"shelf": Shelf(), "metrics": Metrics()}
    silo = Silo(grains=[Desk], membership=MemoryMembershipTable(), parts=parts)
    silo.reduce_to_bookie()
    async with silo:
        assert value(silo, "millstream_members", "active") == 1
        hosted = {key[0] for key in values(silo, "millstream_activations")}
        assert hosted == {"millstream.ReadinessProbe"}
