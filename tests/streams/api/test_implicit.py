"""The implicit subscriptions of a view."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import Grain, MemberRow, Status, TableView
from millstream.runtime.extending import Declaration
from millstream.streams import Event, StreamId, StreamNamespace, subscribe
from millstream.streams.api.implicit import ImplicitSet, ImplicitSubscription, implicit_in

RETENTION_S = 100.0
LIVE = (Status.JOINING, Status.ACTIVE, Status.STOPPING)
NOTES = StreamNamespace("notes", str)
LINES = StreamNamespace("lines", str, provider="other", subscriptions="implicit")
TALK = StreamNamespace("talk", str, subscriptions="explicit")


class Marked(Grain):
    @subscribe(NOTES, retries=7, dead_letter=False)
    async def on_note(self, event: Event[str]) -> None: ...

    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None: ...

    @subscribe(TALK)
    async def on_talk(self, event: Event[str]) -> None: ...


def declares(grain_type: str, handler: str = "on", retries: int | None = None) -> Declaration:
    return ImplicitSubscription(
        "default", "ns", "both", grain_type, handler, retries, True
    ).declaration()


def silo(
    number: int,
    *declared: Declaration,
    types: tuple[str, ...] = ("A",),
    status: Status = Status.ACTIVE,
    name: str = "",
    started_s: float = 0.0,
) -> MemberRow:
    address = f"h{number}:1@{int(started_s)}"
    return MemberRow(
        address,
        status,
        name or address,
        grain_types=types,
        started_s=started_s,
        alive_s=started_s,
        declarations=declared,
    )


def found(*rows: MemberRow, now_s: float = 10.0) -> ImplicitSet:
    return implicit_in(TableView(1, rows), "default", now_s, RETENTION_S)


def ids(declared: ImplicitSet) -> set[str]:
    return {one.removeprefix("implicit/ns/") for one in declared.of(StreamId("ns", "k"))}


def test_a_mark_is_declared_with_all_that_an_agent_needs() -> None:
    row = silo(1, *Marked.__millstream_type__.declarations(), types=("Marked",))
    one = ImplicitSubscription("default", "notes", "both", "Marked", "on_note", 7, False)
    assert found(row).of(StreamId("notes", "k")) == {"implicit/notes/Marked/on_note": one}
    assert found(row).of(StreamId("lines", "k")) == {}, "it belongs to another provider"
    other = implicit_in(TableView(1, (row,)), "other", 0.0, RETENTION_S)
    assert list(other.of(StreamId("lines", "k"))) == ["implicit/lines/Marked/on_line"]
    assert other.kinds("lines") == "implicit"


def test_explicit_namespaces_leave_marks_out() -> None:
    row = silo(1, *Marked.__millstream_type__.declarations(), types=("Marked",))
    assert found(row).of(StreamId("talk", "k")) == {}


def test_nobody_knows_the_kinds_of_a_namespace_without_marks() -> None:
    assert found().kinds("ns") == "both"


def test_every_live_silo_declares_whatever_its_status() -> None:
    rows = [silo(n, declares(f"T{n}"), types=(f"T{n}",), status=s) for n, s in enumerate(LIVE)]
    assert ids(found(*rows)) == {"T0/on", "T1/on", "T2/on"}
    assert found(*rows).absent == frozenset()


def test_what_any_live_silo_declares_holds_and_the_youngest_says_how() -> None:
    old = silo(1, declares("A", "on", 1), declares("A", "was"), started_s=1.0)
    new = silo(2, declares("A", "on", 2), started_s=2.0)
    for rows in ((old, new), (new, old)):
        assert ids(found(*rows)) == {"A/on", "A/was"}
        assert found(*rows).of(StreamId("ns", "k"))["implicit/ns/A/on"].retries == 2


def test_dead_silos_do_not_declare_for_types_that_a_live_one_hosts() -> None:
    old = silo(1, declares("A", "was"), status=Status.DEAD)
    assert ids(found(old, silo(2, declares("A")))) == {"A/on"}


def test_the_last_host_of_a_type_declares_for_it_when_all_are_dead() -> None:
    first = silo(1, declares("A", "was"), status=Status.DEAD, started_s=1.0)
    last = silo(2, declares("A"), status=Status.DEAD, started_s=2.0)
    declared = found(first, last, silo(3, types=("B",), started_s=3.0))
    assert ids(declared) == {"A/on"}
    assert declared.absent == {"A"}
    assert declared.until_s == 2.0 + RETENTION_S


def test_a_type_that_nobody_hosts_is_given_up_in_time() -> None:
    dead = silo(1, declares("A"), status=Status.DEAD, started_s=5.0)
    assert ids(found(dead, now_s=5.0 + RETENTION_S - 0.1)) == {"A/on"}
    assert found(dead, now_s=5.0 + RETENTION_S) == ImplicitSet()


def test_a_silo_that_came_back_without_a_type_gave_it_up() -> None:
    old = silo(1, declares("A"), status=Status.DEAD, name="one")
    by_name = silo(2, types=("B",), name="one", started_s=2.0)
    at_address = silo(1, types=("B",), name="two", started_s=2.0)
    for new in (by_name, at_address):
        for status in (*LIVE, Status.DEAD):
            row = silo(9, types=("B",), name=new.name, status=status, started_s=2.0)
            row = row if new is by_name else silo(1, types=("B",), status=status, started_s=2.0)
            assert ids(found(old, row)) == set()
    before = silo(1, types=("B",), name="one", started_s=-1.0, status=Status.DEAD)
    assert ids(found(old, before)) == {"A/on"}, "it was there before"


ROWS = st.lists(
    st.builds(
        lambda n, types, status, started: silo(
            n, *(declares(t) for t in types), types=tuple(types), status=status, started_s=started
        ),
        st.integers(0, 3),
        st.sets(st.sampled_from("ABC")).map(sorted),
        st.sampled_from(Status),
        st.integers(0, 120).map(float),
    ),
    max_size=6,
    unique_by=lambda row: row.silo,
)


@given(ROWS, st.integers(0, 300).map(float))
def test_what_holds_is_hosted_or_absent_and_never_both(rows: list[MemberRow], now_s: float) -> None:
    declared = found(*rows, now_s=now_s)
    hosted = {t for row in rows if row.status is not Status.DEAD for t in row.grain_types}
    types = {one.grain_type for one in declared.of(StreamId("ns", "k")).values()}
    assert types == hosted | declared.absent
    assert not hosted & declared.absent
    assert (declared.until_s is None) == (not declared.absent)
    assert declared.until_s is None or declared.until_s > now_s
