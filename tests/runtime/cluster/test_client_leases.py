"""The leases of clients at their gateway, and the rows of clients in the directory. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import Overloaded, Rejected
from millstream.runtime.cluster.client_leases import Leases, Losses, name_client
from millstream.runtime.cluster.directory.partition import CLIENT_KIND, Entry, Partition

LEASE_S = 60.0


def alive(silo: str) -> bool:
    """Return that no silo is dead."""
    return False


def test_the_name_of_a_client_follows_from_its_secret() -> None:
    assert name_client(b"a" * 32) == name_client(b"a" * 32) != name_client(b"b" * 32)
    assert name_client(b"a" * 32).startswith("client-") and len(name_client(b"")) == 39


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    leases = Leases(LEASE_S, 10)
    leases.take("a", 1, 0.0)
    leases.take("b", 1, 1.0)
    leases.take("a", 1, 30.0)
    assert leases.next_due_s() == 61.0
    assert leases.expire(60.9) == []
    assert [lease.client for lease in leases.expire(61.0)] == ["b"]
    assert [lease.client for lease in leases.expire(90.0)] == ["a"]
    assert leases.next_due_s() is None and leases.find("a") is None


def test_a_lease_never_goes_back_to_an_earlier_attachment() -> None:
    leases = Leases(LEASE_S, 10)
    leases.take("a", 2, 0.0)
    with pytest.raises(Rejected, match=r"a was attached again \(2\) before its attachment 1"):
        leases.take("a", 1, 1.0)
    assert leases.next_due_s() == 60.0
    leases.take("a", 3, 1.0)
    lease = leases.find("a")
    assert lease is not None and lease.number == 3


def test_a_closed_client_is_remembered_for_one_lease() -> None:
    leases = Leases(LEASE_S, 10)
    leases.take("a", 2, 0.0)
    assert not leases.close("a", 1, 1.0)  # it has attached again since
    assert not leases.close("b", 1, 1.0)
    assert leases.close("a", 2, 1.0)
    assert not leases.close("a", 2, 2.0)  # a repeated goodbye does not extend it
    with pytest.raises(Rejected, match="a was closed before its attachment 3 arrived"):
        leases.take("a", 3, 2.0)
    assert leases.expire(60.5) == []
    (lease,) = leases.expire(61.0)
    assert lease.is_closed
    leases.take("a", 3, 62.0)


def test_the_number_of_leases_has_a_limit() -> None:
    leases = Leases(LEASE_S, 2)
    leases.take("a", 1, 0.0)
    leases.take("b", 1, 0.0)
    with pytest.raises(Overloaded) as caught:
        leases.take("c", 1, 0.0)
    assert (caught.value.limit_name, caught.value.limit) == ("observing_clients_max", 2)
    leases.take("b", 2, 0.0)  # those that are here go on
    leases.drop("a")
    leases.take("c", 1, 0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "close", "drop", "expire"]),
        st.sampled_from("abc"),
        st.integers(1, 4),
        st.floats(0, 30),
    ),
    max_size=40,
)


@settings(max_examples=examples(100))
@given(STEPS)
@pytest.mark.parametrize("clients_max", [2, 10])
def test_leases_keep_their_invariants(
    clients_max: int, steps: list[tuple[str, str, int, float]]
) -> None:
    leases, now = Leases(LEASE_S, clients_max), 0.0
    for verb, client, number, seconds in steps:
        now += seconds
        before = leases.find(client)
        number_before = before.number if before else 0
        if verb == "take":
            try:
                taken = leases.take(client, number, now)
            except (Rejected, Overloaded):
                continue
            assert taken.number == number >= number_before and taken.until_s == now + LEASE_S
        elif verb == "close":
            leases.close(client, number, now)
        elif verb == "drop":
            leases.drop(client)
        else:
            for lease in leases.expire(now):
                assert lease.until_s <= now
            assert (leases.next_due_s() or now + 1) > now
        leases.check()


# -- the silos that were lost a short time ago


def test_clients_of_a_lost_silo_have_time_to_come_back() -> None:
    losses = Losses(LEASE_S)
    losses.follow(["a", "b"], {}, 10.0, 1000.0)
    assert losses.until_s == 0.0
    losses.follow(["a", "b", "c"], {}, 11.0, 1001.0)
    assert losses.until_s == 0.0
    losses.follow(["a", "c"], {"b": 1001.0}, 12.0, 1002.0)
    assert losses.until_s == 72.0
    losses.follow(["a", "c"], {"b": 1001.0}, 20.0, 1010.0)
    assert losses.until_s == 72.0


def test_a_silo_that_joins_sees_how_long_ago_others_were_lost() -> None:
    losses = Losses(LEASE_S)
    losses.follow(["a"], {"old": 100.0, "new": 990.0}, 10.0, 1000.0)
    assert losses.until_s == 10.0 + LEASE_S - 10.0
    losses = Losses(LEASE_S)
    losses.follow(["a"], {"old": 100.0}, 10.0, 1000.0)
    assert losses.until_s == 0.0
    losses = Losses(LEASE_S)
    losses.follow(["a"], {"ahead": 1005.0}, 10.0, 1000.0)  # its clock is ahead
    assert losses.until_s == 70.0


# -- rows


def test_the_row_of_a_client_goes_to_its_latest_attachment() -> None:
    rows = Partition()
    assert rows.register(CLIENT_KIND, "a", Entry("s1", 1, 5), alive).silo == "s1"
    assert rows.register(CLIENT_KIND, "a", Entry("s2", 2, 5), alive).silo == "s2"
    assert rows.register(CLIENT_KIND, "a", Entry("s1", 1, 6), alive).silo == "s2"  # it was late
    assert rows.register(CLIENT_KIND, "a", Entry("s3", 2, 6), alive).silo == "s2"
    assert rows.register(CLIENT_KIND, "a", Entry("s2", 2, 7), alive).version == 7  # a renewal
    assert rows.register(CLIENT_KIND, "a", Entry("s2", 1, 8), alive).version == 7
    rows.unregister(CLIENT_KIND, "a", "s1", 1)  # of an attachment that has ended
    assert rows.lookup(CLIENT_KIND, "a") == Entry("s2", 2, 7)


def test_the_row_of_a_grain_does_not_move_to_a_higher_number() -> None:
    rows = Partition()
    rows.register("Match", "a", Entry("s1", 1, 5), alive)
    assert rows.register("Match", "a", Entry("s2", 2, 5), alive).silo == "s1"


def test_a_row_at_a_dead_silo_is_replaced_whatever_its_number() -> None:
    rows = Partition()
    rows.register(CLIENT_KIND, "a", Entry("s1", 7, 5), alive)
    found = rows.register(CLIENT_KIND, "a", Entry("s2", 3, 6), lambda silo: silo == "s1")
    assert found.silo == "s2"


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_recovery_keeps_the_latest_attachment(is_reversed: bool) -> None:
    earlier, later = Entry("s9", 1, 50), Entry("s1", 2, 40)
    rows = Partition()
    order = [later, earlier] if is_reversed else [earlier, later]
    assert rows.recover(CLIENT_KIND, "a", order[0]) is None
    assert rows.recover(CLIENT_KIND, "a", order[1]) == earlier
    assert rows.lookup(CLIENT_KIND, "a") == later
