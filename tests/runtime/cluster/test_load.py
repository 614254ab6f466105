"""Reports of load, their smoothing and checks, and the choice of a silo by load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import ConfigError, PlacementOptions
from millstream.runtime.cluster.load import (
    ACTIVATIONS_BASE,
    REPEATED_S,
    STALE_S,
    KnownLoads,
    Load,
    LoadMeter,
    LoadReport,
    choose_least_loaded,
    differs,
    score_all,
)
from millstream.runtime.machine import Usage
from millstream.runtime.testing import make_random

OPTIONS = PlacementOptions()
GIB = 2**30
IDLE = Load(
    activations=100,
    cpu=0.1,
    memory_used=GIB,
    memory_available=6 * GIB,
    memory_total=8 * GIB,
    lag_s=0.0,
)
BUSY = {
    "cpu": replace(IDLE, cpu=0.9),
    "memory used": replace(IDLE, memory_used=5 * GIB),
    "memory available": replace(IDLE, memory_available=2 * GIB),
    "a smaller machine": replace(
        IDLE, memory_used=GIB // 2, memory_available=3 * GIB, memory_total=4 * GIB
    ),
    "activations": replace(IDLE, activations=900),
    "lag": replace(IDLE, lag_s=0.5),
}
OVERLOADED = {
    "cpu": replace(IDLE, cpu=0.96),
    "memory": replace(IDLE, memory_available=0.5 * GIB),
    "lag": replace(IDLE, lag_s=1.1),
    "silent": replace(IDLE, is_stale=True),
}


def rolling(seed: object = 1) -> Callable[[int], int]:
    return make_random(seed, "load").randrange


def chosen(loads: dict[str, Load], local: str = "", seed: object = 1, **options: float) -> str:
    made = PlacementOptions(**options) if options else OPTIONS
    return choose_least_loaded(sorted(loads), local, loads, made, rolling(seed))


def choices(loads: dict[str, Load], local: str = "", **options: float) -> set[str]:
    return {chosen(loads, local, seed, **options) for seed in range(40)}


# --- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", BUSY.values(), ids=BUSY.keys())
def test_each_figure_makes_a_silo_worse(busy: Load) -> None:
    scores = score_all({"a": IDLE, "b": busy}, OPTIONS)
    assert 0 <= scores["a"] < scores["b"] <= 1
    assert choices({"a": IDLE, "b": busy}) == {"a"}


WEIGHTS = {
    "cpu_weight": BUSY["cpu"],
    "memory_used_weight": BUSY["memory used"],
    "memory_available_weight": BUSY["memory available"],
    "memory_total_weight": BUSY["a smaller machine"],
    "activations_weight": BUSY["activations"],
    "lag_weight": BUSY["lag"],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_figure_without_weight_has_no_effect_and_alone_it_decides(name: str) -> None:
    loads = {"a": IDLE, "b": WEIGHTS[name]}
    without = score_all(loads, PlacementOptions(**{name: 0}))
    assert without["a"] == pytest.approx(without["b"])
    alone = dict.fromkeys(WEIGHTS, 0.0) | {name: 1.0}
    scores = score_all(loads, PlacementOptions(**alone))
    assert scores["a"] < scores["b"]


def test_the_scores_are_these_by_hand() -> None:
    scores = score_all({"a": IDLE, "b": BUSY["activations"], "c": BUSY["lag"]}, OPTIONS)
    same = 40 * 0.1 + 20 * 1 / 8 + 20 * 2 / 8 + 5 * 0
    assert scores["a"] == pytest.approx((same + 15 / 9) / 120)
    assert scores["b"] == pytest.approx((same + 15) / 120)
    assert scores["c"] == pytest.approx((same + 15 / 9 + 20 / 2) / 120)


@pytest.mark.parametrize("figure", ["cpu", "activations", "memory_used", "lag_s"])
def test_a_missing_figure_counts_as_the_mean_of_the_others(figure: str) -> None:
    values: list[Any] = [0, {"memory_used": 8 * GIB}.get(figure, 1), None]
    lowest, highest, unknown = (replace(IDLE, **{figure: value}) for value in values)
    scores = score_all({"a": lowest, "b": highest, "c": unknown}, OPTIONS)
    assert scores["c"] == pytest.approx((scores["a"] + scores["b"]) / 2)
    alone = score_all({"a": unknown, "b": unknown}, OPTIONS)
    assert alone["a"] == alone["b"]


@pytest.mark.parametrize("idle", [Load(), Load(activations=0, cpu=0.0, memory_total=0.0)])
def test_silos_without_any_load_have_the_score_0(idle: Load) -> None:
    assert score_all({"a": idle, "b": Load()}, OPTIONS) == {"a": 0.0, "b": 0.0}


def test_silos_without_any_report_are_all_chosen() -> None:
    assert choices({"a": Load(), "b": Load(), "c": Load()}) == {"a", "b", "c"}


loads_of_any_kind = st.builds(
    Load,
    activations=st.none() | st.integers(0, 10**9),
    cpu=st.none() | st.floats(0, 1),
    memory_used=st.none() | st.floats(0, 2.0**50),
    memory_available=st.none() | st.floats(0, 2.0**50),
    memory_total=st.none() | st.floats(0, 2.0**50),
    lag_s=st.none() | st.floats(0, 3_600),
    placed=st.integers(0, 10**6),
    is_stale=st.booleans(),
)


@settings(max_examples=examples(200))
@given(st.lists(loads_of_any_kind, min_size=1, max_size=12), st.integers(0, 12), st.integers())
def test_any_loads_give_a_candidate_and_scores_from_0_to_1(
    loads: list[Load], local: int, seed: int
) -> None:
    by_silo = {f"s{at}": load for at, load in enumerate(loads)}
    assert chosen(by_silo, f"s{local}", seed) in by_silo
    assert all(-1e-9 <= score <= 1 + 1e-9 for score in score_all(by_silo, OPTIONS).values())


# --- overload, the caller's silo, candidates -----------------------------------------------------


@pytest.mark.parametrize("overloaded", OVERLOADED.values(), ids=OVERLOADED.keys())
def test_overloaded_silos_are_left_out_unless_all_are(overloaded: Load) -> None:
    worse = replace(IDLE, activations=10_000, cpu=0.94)
    assert choices({"a": worse, "b": overloaded}, local="b") == {"a"}
    everywhere = choices({"a": overloaded, "b": overloaded, "c": overloaded})
    assert everywhere == {"a", "b", "c"}


@pytest.mark.parametrize(
    "at_the_limit",
    [
        replace(IDLE, cpu=0.95),
        replace(IDLE, memory_available=0.8 * GIB),
        replace(IDLE, lag_s=1.0),
    ],
)
def test_a_silo_at_a_limit_is_not_overloaded(at_the_limit: Load) -> None:
    assert choices({"a": OVERLOADED["silent"], "b": at_the_limit}) == {"b"}


@pytest.mark.parametrize("figure", ["cpu", "memory_available", "memory_total", "lag_s"])
def test_a_silo_whose_figures_are_not_known_is_not_overloaded(figure: str) -> None:
    unknown: Any = {figure: None, "activations": 10_000}
    loads = {"a": OVERLOADED["silent"], "b": replace(IDLE, **unknown)}
    assert choices(loads, cpu_max=0.5, memory_max=0.5, lag_max_s=0.5) == {"b"}


def test_placements_since_a_report_do_not_make_a_silo_overloaded() -> None:
    burst = replace(IDLE, cpu=0.5, placed=10_000)
    assert choices({"a": burst, "b": OVERLOADED["cpu"]}) == {"a"}


def test_the_silo_of_the_caller_is_preferred_within_the_margin() -> None:
    # a difference of cpu counts for 40 of 120
    near = {"a": IDLE, "b": replace(IDLE, cpu=0.1 + 0.149)}
    far = {"a": IDLE, "b": replace(IDLE, cpu=0.1 + 0.151)}
    assert choices(near, local="b") == {"b"}
    assert choices(near, local="c") == {"a"}
    assert choices(far, local="b") == {"a"}
    assert choices(near, local="b", local_margin=0.0) == {"a"}
    assert choices({"a": IDLE, "b": IDLE}, local="b", local_margin=0.0) == {"b"}


def test_the_silo_of_the_caller_is_compared_whatever_is_drawn() -> None:
    loads = {f"s{at:02}": replace(IDLE, cpu=0.5) for at in range(30)} | {"local": IDLE}
    assert choices(loads, local="local") == {"local"}


@pytest.mark.parametrize(("silos", "drawn"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (100, 10)])
def test_about_the_square_root_of_the_silos_is_compared(silos: int, drawn: int) -> None:
    """The best silo is chosen exactly if it is drawn."""
    loads = {f"s{at:03}": replace(IDLE, activations=at + 1) for at in range(silos)}
    rolls: list[int] = []

    def roll(count: int) -> int:
        rolls.append(count)
        return count - 1

    choose_least_loaded(sorted(loads), "", loads, OPTIONS, roll)
    assert rolls == list(range(silos, silos - drawn, -1))
    share = sum(chosen(loads, seed=seed) == "s000" for seed in range(400)) / 400
    assert share == pytest.approx(drawn / silos, abs=0.1)


def test_no_silo_is_drawn_twice() -> None:
    loads = {"a": IDLE, "b": BUSY["cpu"]}
    for first in (0, 1):
        left = iter([first, 0])
        rolls = lambda _, left=left: next(left)  # noqa: E731
        assert choose_least_loaded(["a", "b"], "", loads, OPTIONS, rolls) == "a"


# --- bursts --------------------------------------------------------------------------------------


def burst(loads: dict[str, LoadReport], callers: list[str], count: int = 1_000) -> Counter[str]:
    """Place activations by several callers, each with its own estimate, within one period."""
    known = {caller: KnownLoads() for caller in callers}
    for each in known.values():
        for silo, report in loads.items():
            each.learn(silo, report, 0.0)
    roll, found = rolling("burst"), Counter[str]()
    for at in range(count):
        caller = callers[at % len(callers)]
        of_silos = known[caller].loads(loads, 0.5)
        silo = choose_least_loaded(sorted(loads), caller, of_silos, OPTIONS, roll)
        known[caller].place(silo, 0.5)
        found[silo] += 1
    return found


def report(activations: int = 100, cpu: float = 0.1, version: int = 1) -> LoadReport:
    return LoadReport(version, activations, cpu, GIB, 6 * GIB, 8 * GIB, 0.0)


@pytest.mark.parametrize("callers", [["a", "b", "c"], ["x", "y", "z"], ["a"], ["x"]])
def test_a_burst_between_two_reports_is_spread(callers: list[str]) -> None:
    """1,000 placements: no silo gets more than three times as many as another one."""
    found = burst({silo: report() for silo in "abc"}, callers)
    assert max(found.values()) <= 3 * min(found.values())
    assert len(found) == 3


def test_a_burst_reaches_a_silo_that_is_busier_before_the_burst() -> None:
    found = burst({"a": report(cpu=0.1), "b": report(cpu=0.3)}, ["x", "y", "z"])
    assert found["a"] > found["b"] > 100


def test_a_burst_fills_an_empty_silo_first() -> None:
    found = burst({"a": report(1_000), "b": report(1_000), "c": report(0)}, ["x"], count=100)
    assert found["c"] >= 50


def test_placements_raise_the_estimates_of_processor_time_and_activations() -> None:
    load = replace(IDLE, placed=100, activations=200)
    assert load.estimated_cpu == pytest.approx(0.15)
    assert load.estimated_activations == 300
    fresh = replace(IDLE, placed=ACTIVATIONS_BASE, activations=0)
    assert fresh.estimated_cpu == pytest.approx(0.2)
    assert replace(load, placed=10**6).estimated_cpu == 1.0


# --- what silos know of each other ---------------------------------------------------------------


def known_load(heard: LoadReport, after_s: float = 0.0) -> Load:
    known = KnownLoads()
    known.learn("a", heard, 10.0)
    return known.loads(["a"], 10.0 + after_s)["a"]


def test_a_report_is_known_as_it_was_sent() -> None:
    sent = LoadReport(1, 5, 0.25, 3, 4, 8, 0.5)
    assert known_load(sent) == Load(5, 0.25, 3, 4, 8, 0.5)


@pytest.mark.parametrize("absurd", [math.nan, -1, -math.inf, math.inf])
def test_absurd_figures_count_as_not_known(absurd: Any) -> None:
    sent = LoadReport(1, 5, absurd, absurd, absurd, absurd, absurd)
    assert known_load(sent) == Load(5)


def test_an_absurd_number_of_activations_counts_as_not_known() -> None:
    assert known_load(LoadReport(1, -5)).activations is None
    known = KnownLoads()
    known.learn("a", LoadReport(1, -5), 0.0)
    assert known.counts == {"a": 0}


def test_huge_figures_count_as_their_limits() -> None:
    sent = LoadReport(1, 10**18, 1e300, 2**62, 2**62, 2**62, 1e300)
    load = known_load(sent)
    assert load == Load(10**9, 1.0, 2**50, 2**50, 2**50, 3_600.0)


def test_a_report_with_resources_becomes_stale_and_a_mere_count_does_not() -> None:
    """An old release reports its count only when it changes."""
    assert not known_load(LoadReport(1, 5), STALE_S).is_stale
    assert known_load(LoadReport(1, 5), STALE_S + 0.1).is_stale
    assert not known_load(LoadReport(0, 5), 10 * STALE_S).is_stale
    assert STALE_S >= 3 * REPEATED_S


def test_a_later_report_replaces_the_placements_meanwhile() -> None:
    known = KnownLoads()
    known.learn("a", LoadReport(1, 5), 0.0)
    known.place("a", 0.0)
    known.place("a", 0.0)
    known.place("b", 0.0)
    assert known.counts == {"a": 7, "b": 1}
    assert known.loads("ab", 0.0) == {"a": Load(5, placed=2), "b": Load(placed=1)}
    known.learn("a", LoadReport(1, 6), 1.0)
    assert known.counts == {"a": 6, "b": 1}
    assert known.loads("a", 1.0)["a"].placed == 0


def test_placements_that_no_report_confirms_are_forgotten_by_half() -> None:
    known = KnownLoads()
    known.learn("a", LoadReport(1, 5), 0.0)
    for _ in range(8):
        known.place("a", 0.0)
    counts = []
    for _ in range(5):
        known.keep(["a"])
        counts.append(known.counts["a"])
    assert counts == [9, 7, 6, 5, 5]


def test_silos_that_are_gone_are_forgotten() -> None:
    known = KnownLoads()
    for silo in "abc":
        known.learn(silo, LoadReport(1, 5), 0.0)
    known.keep(["b", "d"])
    assert known.counts == {"b": 5}
    assert known.loads("abc", 0.0) == {"a": Load(), "b": Load(5), "c": Load()}


def test_fresh_reports_are_those_that_are_not_stale() -> None:
    known = KnownLoads()
    known.learn("a", LoadReport(1, 5), 0.0)
    known.learn("b", LoadReport(0, 6), 1.0)
    known.place("c", 1.0)
    assert known.fresh_reports(STALE_S) == {"a": LoadReport(1, 5), "b": LoadReport(0, 6)}
    assert known.fresh_reports(STALE_S + 0.5) == {"b": LoadReport(0, 6)}
    known.keep("abc")
    assert known.counts == {"a": 5, "b": 6, "c": 0}


# --- reports -------------------------------------------------------------------------------------


def test_a_meter_reports_the_share_of_a_core_and_the_rest_as_measured() -> None:
    meter = LoadMeter(2.0)
    first = meter.measure(10.0, 3, Usage(cpu_s=100.0, memory_used=5, memory_available=7), 0.25)
    assert first == LoadReport(1, 3, None, 5, 7, None, 0.25)
    second = meter.measure(12.0, 4, Usage(cpu_s=100.5, memory_total=9), 0.25)
    assert second == LoadReport(1, 4, 0.25, 5, 7, 9, 0.25)


def test_a_change_counts_by_half_after_the_time_of_smoothing() -> None:
    meter = LoadMeter(2.0)
    meter.measure(0.0, 0, Usage(cpu_s=0.0, memory_used=1_000), 0.0)
    meter.measure(1.0, 0, Usage(cpu_s=0.0, memory_used=1_000), 0.0)
    made = meter.measure(3.0, 9, Usage(cpu_s=2.0, memory_used=2_000), 1.0)
    assert (made.cpu, made.memory_used, made.lag_s, made.activations) == (0.5, 1_500, 0.5, 9)


@pytest.mark.parametrize(
    ("used_s", "cores", "expected"),
    [(0.2, None, 0.2), (0.2, 0.5, 0.4), (0.2, 8.0, 0.2), (5.0, None, 1.0), (-1.0, None, 0.0)],
)
def test_processor_time_is_a_share_of_a_core_or_of_a_lower_limit(
    used_s: float, cores: float | None, expected: float
) -> None:
    meter = LoadMeter(2.0)
    meter.measure(0.0, 0, Usage(cpu_s=10.0), 0.0)
    made = meter.measure(1.0, 0, Usage(cpu_s=10.0 + used_s, cores=cores), 0.0)
    assert made.cpu == pytest.approx(expected)


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(-10, 10), st.integers(0, 2**50), st.floats(-1, 9)),
        max_size=20,
    )
)
def test_smoothed_figures_stay_in_the_range_of_the_measured_ones(
    steps: list[tuple[float, float, int, float]],
) -> None:
    meter, now_s, cpu_s = LoadMeter(2.0), 0.0, 50.0
    for at, (elapsed_s, used_s, memory, lag_s) in enumerate(steps):
        now_s, cpu_s = now_s + elapsed_s, cpu_s + used_s
        made = meter.measure(now_s, 0, Usage(cpu_s=cpu_s, memory_used=memory), lag_s)
        seen = steps[: at + 1]
        assert made.cpu is None or 0 <= made.cpu <= 1
        assert made.memory_used is not None and made.lag_s is not None
        memories = [one[2] for one in seen]
        assert min(memories) - 1 <= made.memory_used <= max(memories) + 1
        assert -1e-6 <= made.lag_s <= max(0.0, *(one[3] for one in seen), 0.0) + 1e-6


BASE = LoadReport(1, 5, 0.5, 10, 50, 100, 0.2)
WITHOUT_TOTAL = msgspec.structs.replace(BASE, memory_total=None)


@pytest.mark.parametrize(
    ("change", "is_sent"),
    [
        ({}, False),
        ({"activations": 6}, True),
        ({"cpu": 0.51}, False),
        ({"cpu": 0.53}, True),
        ({"cpu": None}, True),
        ({"memory_used": 11}, False),
        ({"memory_used": 13}, True),
        ({"memory_available": 49}, False),
        ({"memory_available": 47}, True),
        ({"memory_total": 101}, True),
        ({"lag_s": 0.24}, False),
        ({"lag_s": 0.26}, True),
    ],
)
def test_a_report_is_sent_at_once_if_a_figure_has_moved(
    change: dict[str, Any], is_sent: bool
) -> None:
    assert differs(BASE, msgspec.structs.replace(BASE, **change)) is is_sent


@pytest.mark.parametrize(("used", "is_sent"), [(10, False), (11, True)])
def test_without_the_memory_of_the_machine_each_change_of_memory_is_sent(
    used: int, is_sent: bool
) -> None:
    changed = msgspec.structs.replace(WITHOUT_TOTAL, memory_used=used)
    assert differs(WITHOUT_TOTAL, changed) is is_sent


class LaterReport(LoadReport, array_like=True, frozen=True):
    """A report of a later version."""

    further: str = ""


def test_reports_of_later_and_earlier_versions_can_be_read() -> None:
    later = msgspec.msgpack.encode(LaterReport(2, 5, 0.5, further="x"))
    read = msgspec.msgpack.decode(later, type=LoadReport)
    assert (read.version, read.activations, read.cpu) == (2, 5, 0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([1, 5]), type=LoadReport) == LoadReport(
        1, 5
    )


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_weight", -1),
        ("lag_weight", 101),
        ("activations_weight", math.nan),
        ("local_margin", 1.1),
        ("local_margin", -0.1),
        ("cpu_max", 2),
        ("memory_max", -1),
        ("lag_max_s", 0),
        ("smoothing_s", 0),
        ("smoothing_s", math.inf),
    ],
)
def test_options_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"PlacementOptions\.{name} is "):
        PlacementOptions(**{name: value})


def test_options_without_any_weight_are_refused() -> None:
    with pytest.raises(ConfigError, match="all weights are 0: set one of cpu_weight, "):
        PlacementOptions(**dict.fromkeys(WEIGHTS, 0.0))
