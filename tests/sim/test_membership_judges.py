"""Suite `membership` detects violations: each test plants one fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.sim.suites import membership_suite
from tests.sim.suites.run import record
from tests.sim.suites.run.plan import KINDS, Plan, make_plan
from tests.sim.suites.runner import is_noticed, run_seed

from millstream.runtime import MemberRow, Status, TableView
from millstream.runtime.cluster import member
from millstream.runtime.cluster.joiner import Reach
from millstream.runtime.cluster.member import Member
from millstream.runtime.cluster.prober import Prober, Sign
from millstream.runtime.testing import HostDown, SiloDeclaredDead, ViewAdopted

pytestmark = pytest.mark.rotates


@pytest.fixture(autouse=True)
def all_violations_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "VIOLATIONS_SHOWN", record.VIOLATIONS_KEPT_MAX)


def only(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Let all seeds have one kind of fault."""
    assert kind in KINDS

    def planned(simulation: Any, steady: Sequence[str], *, duration_s: float) -> Plan:
        return make_plan(simulation, steady, duration_s=duration_s, kinds=(kind,))

    monkeypatch.setattr(membership_suite, "make_plan", planned)


def test_the_suite_finds_nothing_where_nothing_is_planted() -> None:
    assert not run_seed("membership", 1).failure


def test_a_view_that_goes_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes_the_last_one_between(self: Member, view: TableView) -> None:
        last = self.view
        take(self, view)
        if last.version < view.version and last.row(self.address) is not None:
            self.view = TableView(last.version - 1)
            take(self, last)
            take(self, view)

    take = Member.take
    monkeypatch.setattr(Member, "take", takes_the_last_one_between)
    assert is_noticed("membership", "from version")


def test_views_that_differ_in_one_version_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Member.take

    def leaves_out(self: Member, view: TableView) -> None:
        if self.address.startswith("silo-1:"):
            view = TableView(
                view.version, tuple(r for r in view.rows if r.status is not Status.DEAD)
            )
        take(self, view)

    monkeypatch.setattr(Member, "take", leaves_out)
    assert is_noticed("membership", "differently")


def test_a_dead_silo_that_comes_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Member.take

    def raises_the_dead(self: Member, view: TableView) -> None:
        rows = tuple(
            msgspec.structs.replace(row, status=Status.ACTIVE)
            if row.status is Status.DEAD and view.version % 5 == 0
            else row
            for row in view.rows
        )
        take(self, TableView(view.version, rows))

    monkeypatch.setattr(Member, "take", raises_the_dead)
    assert is_noticed("membership", "dead since")


def test_silos_evicted_from_a_slow_network_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "slow network")
    probe, count = Prober.probe, 0

    async def hasty(self: Prober, silo: str) -> Sign:
        nonlocal count
        count += 1
        sign = await probe(self, silo)
        return Sign.REFUSED if count % 400 < 60 else sign

    monkeypatch.setattr(Prober, "probe", hasty)
    assert is_noticed("membership", "from a slow network")


def test_a_crash_that_is_noticed_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "crashes")
    monkeypatch.setattr(Prober, "_has_missed", lambda self, silo: self._missed.get(silo, 0) >= 30)
    assert is_noticed("membership", "noticed after")


def test_a_crash_that_is_never_noticed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "crashes")
    monkeypatch.setattr(membership_suite, "BOTH_DETECTED_S", 3.0)
    members = membership_suite.Members.step

    def blind(self: Any, at_s: float, event: object) -> tuple[float | None, float]:
        if isinstance(event, SiloDeclaredDead):
            return None, 0.0
        return members(self, at_s, event)

    monkeypatch.setattr(membership_suite.Members, "step", blind)
    assert is_noticed("membership", "was never noticed")


@pytest.mark.parametrize(
    ("others_s", "limit_s"),
    [
        ([], membership_suite.DETECTED_S),
        ([1.0, 15.5], membership_suite.DETECTED_S),
        ([4.5], membership_suite.BOTH_DETECTED_S),
        ([13.0], membership_suite.BOTH_DETECTED_S),
    ],
)
def test_only_crashes_at_nearly_the_same_time_get_the_longer_limit(
    others_s: list[float], limit_s: float
) -> None:
    """A silo crashes at 10 s and is declared dead at 15.4 s."""
    events: list[tuple[float, object]] = [
        (0.0, ViewAdopted(f"{host}:1@1", 1, ((f"{host}:1@1", "active"),))) for host in "ab"
    ]
    events += [(10.0, HostDown("a")), *((at_s, HostDown("b")) for at_s in others_s)]
    members = membership_suite.Members()
    for at_s, event in sorted(events, key=lambda pair: pair[0]):
        if at_s < 15.4:
            assert members.step(at_s, event)[0] is None
    took_s, allowed_s = members.step(15.4, SiloDeclaredDead("a:1@1", 2, "b:1@1"))
    assert took_s == pytest.approx(5.4)
    assert allowed_s == limit_s


async def never(self: Prober, silo: str) -> bool:
    """Suspect no silo."""
    return False


def test_silos_that_accuse_nobody_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prober, "_suspect", never)
    assert is_noticed("membership")


def test_crashed_silos_that_stay_in_the_table_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """New silos join without waiting for any member, beside the crashed silos."""
    only(monkeypatch, "slow network")
    monkeypatch.setattr(Prober, "_suspect", never)
    monkeypatch.setattr(member, "find_superseded", lambda view, silo: [])

    async def everyone(self: Any) -> None:
        return None

    monkeypatch.setattr(Reach, "everyone", everyone)
    assert is_noticed("membership", "all crashed, and", "crashed with all others, and is active")


def test_a_silo_that_does_not_heed_its_eviction_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "partitions")
    hasty = Prober.probe

    async def short_sighted(self: Prober, silo: str) -> Sign:
        sign = await hasty(self, silo)
        is_victim = silo.startswith("silo-2:") and not self._me.startswith("silo-2:")
        return Sign.REFUSED if is_victim else sign

    make = Member.__init__

    def heedless(self: Member, row: MemberRow, *args: Any, **options: Any) -> None:
        options["evicted"] = lambda reason: None
        make(self, row, *args, **options)

    monkeypatch.setattr(Prober, "probe", short_sighted)
    monkeypatch.setattr(Member, "__init__", heedless)
    assert is_noticed("membership")


def test_a_cluster_that_falls_apart_after_the_repair_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble = membership_suite.trouble

    async def falls_apart(run: Any, plan: Plan, cluster: Any) -> None:
        await trouble(run, plan, cluster)
        cluster.is_whole = lambda: False

    monkeypatch.setattr(membership_suite, "trouble", falls_apart)
    assert is_noticed("membership", "is not any more")


@pytest.mark.parametrize("checker", ["check_views", "check_deaths", "check_detection"])
def test_what_a_checker_finds_fails_the_suite(
    checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_suite, checker, lambda *_: [f"{checker} found it"])
    assert f"{checker} found it" in run_seed("membership", 1).failure
