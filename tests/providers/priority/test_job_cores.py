"""The pure parts of durable jobs: decisions, stored forms and options."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.providers.priority.core.commands import Cancel, Enqueue, EnqueueMany
from millstream.providers.priority.jobs import JobOptions, JobRetry
from millstream.providers.priority.jobs.decision import GiveUp, Repeat, Succeed, decide
from millstream.providers.priority.jobs.row import (
    JobRow,
    OutcomeKind,
    metadata_of,
    outcome_of,
    pack,
    read_outcome,
    read_row,
)
from millstream.providers.priority.owner.relative import after_enqueue, date, until
from millstream.runtime import (
    ActivationTimeout,
    CallTimeout,
    ConfigError,
    NotHosted,
    NotInCluster,
    Overloaded,
    Rejected,
    SiloUnavailable,
    StorageUnavailable,
)

RETRY = JobRetry()
NOW_MS = 1_790_000_000_000


# -- numbers relative to the enqueue


@given(st.integers(-(10**14), 10**14))
def test_the_owner_computes_how_long_a_job_waits(due_ms: int) -> None:
    command = Enqueue("a", b"", due_ms, (), until(due_ms))
    found = date(command, lambda: NOW_MS)
    stored = command._replace(invisible_ms=max(0, due_ms - NOW_MS))
    assert found == stored
    assert date(EnqueueMany((command,)), lambda: NOW_MS) == EnqueueMany((stored,))


def test_a_delay_gives_the_due_time_as_the_priority() -> None:
    command = Enqueue("a", b"", after_enqueue(500), (), 500)
    assert date(command, lambda: NOW_MS) == Enqueue("a", b"", NOW_MS + 500, (), 500)


def test_usual_numbers_of_an_enqueue_stay() -> None:
    command = Enqueue("a", b"", 5, (), 1_000)
    assert date(command, lambda: NOW_MS) is command


def test_numbers_from_2_to_the_59_on_are_relative() -> None:
    first, last = 2**59, 2**59 - 1
    assert date(Enqueue("a", b"", first), lambda: 5) == Enqueue("a", b"", 5 - first)
    command = Enqueue("a", b"", last, (), last)
    assert date(command, lambda: 5) is command
    assert date(command._replace(priority=after_enqueue(0)), lambda: 5) == command._replace(
        priority=5
    )
    waits = Enqueue("a", b"", 1, (), first)
    assert date(waits, lambda: 5) == Enqueue("a", b"", 1, (), 0)


def test_other_commands_stay() -> None:
    plain = EnqueueMany((Enqueue("a", b"", 1), Enqueue("b", b"", 2)))
    for command in (plain, Cancel("a"), EnqueueMany(())):
        assert date(command, lambda: 5) is command


# -- decisions


def test_the_delays_of_the_default_are_2_4_8_and_16_seconds() -> None:
    found = [decide(ValueError("x"), n, 5 - n, 0.0, RETRY) for n in range(1, 6)]
    delays = [one.delay_s for one in found if isinstance(one, Repeat)]
    assert delays == [2.0, 4.0, 8.0, 16.0]
    assert found[4] == GiveUp("ValueError: x")


def test_a_delay_has_a_bound() -> None:
    assert JobRetry(delay_max_s=10.0, attempts=1_000).delay_s(900) == 10.0


@given(st.integers(1, 1_000), st.integers(0, 999), st.floats(-1e9, 1e9))
def test_a_method_that_returned_has_succeeded(attempt: int, left: int, late_s: float) -> None:
    assert decide(None, attempt, left, late_s, RETRY) == Succeed()


REFUSED = [
    Overloaded("x", "y", 1),
    Rejected("x"),
    NotHosted("x"),
    NotInCluster("x"),
    SiloUnavailable("x", may_have_run=False),
]
COUNTED = [
    ValueError("x"),
    CallTimeout("x"),
    ActivationTimeout("x"),
    StorageUnavailable("x"),
    SiloUnavailable("x", may_have_run=True),
]


@pytest.mark.parametrize("error", REFUSED, ids=lambda one: type(one).__name__)
def test_a_refused_call_is_no_attempt_for_an_hour(error: Exception) -> None:
    found = decide(error, 5, 0, 3_599.0, RETRY)
    assert isinstance(found, Repeat) and found.is_refund and found.delay_s == 5.0
    late = decide(error, 1, 4, 3_600.0, RETRY)
    assert isinstance(late, Repeat) and not late.is_refund and late.delay_s == 2.0
    assert isinstance(decide(error, 5, 0, 3_600.0, RETRY), GiveUp)


@pytest.mark.parametrize("error", COUNTED, ids=lambda one: f"{type(one).__name__}")
def test_a_call_that_may_have_run_is_an_attempt(error: Exception) -> None:
    found = decide(error, 1, 4, 0.0, RETRY)
    assert isinstance(found, Repeat) and not found.is_refund
    assert isinstance(decide(error, 5, 0, 0.0, RETRY), GiveUp)


def test_a_job_that_cannot_be_read_waits_longer_and_has_an_end() -> None:
    found = decide(ValueError("x"), 1, 4, 0.0, RETRY, is_unreadable=True)
    assert found == Repeat(60.0, False, "ValueError: x")
    assert isinstance(decide(ValueError("x"), 5, 0, 0.0, RETRY, is_unreadable=True), GiveUp)


class Broken(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_error_without_a_text_has_its_type() -> None:
    found = decide(Broken(), 5, 0, 0.0, RETRY)
    assert isinstance(found, GiveUp) and found.reason.endswith("test_job_cores.Broken")


# -- stored forms


def test_a_stored_job_is_read_back() -> None:
    row = JobRow("Order", "tea", "charge", b"\x91\x05", 2.5, {"a": "b"}, {"c": "d"})
    assert read_row(pack(row)) == row
    assert read_row(pack(["Order", "tea", "charge", b""])) == JobRow("Order", "tea", "charge", b"")


def test_a_job_of_a_later_release_is_read() -> None:
    assert read_row(pack(["O", "k", "m", b"", None, {}, {}, 1, "new"])).method == "m"


def test_a_long_name_is_cut_in_the_metadata_and_the_type_is_not() -> None:
    (call, text), (key, name) = metadata_of(JobRow("Order", "ü" * 300, "charge", b""))
    assert (call, key, name) == ("call", "type", "Order")
    assert text.startswith("Order/ü") and len(text.encode()) <= 256


@given(st.integers(0, 20))
def test_a_result_above_the_limit_is_replaced_by_its_size(size: int) -> None:
    found = read_outcome(pack(outcome_of(b"x" * size, 10)))
    assert (found.kind is OutcomeKind.VALUE) is (size <= 10)
    assert found.data == (b"x" * size if size <= 10 else str(size).encode())


# -- options


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: JobRetry(attempts=0), "JobRetry.attempts is 0"),
        (lambda: JobRetry(attempts=1_001), "at most 1000"),
        (lambda: JobRetry(first_delay_s=5.0, delay_max_s=1.0), "first_s must be at most"),
        (lambda: JobRetry(refused_for_s=float("nan")), "JobRetry.refused_for_s"),
        (lambda: JobOptions(running_max=0), "JobOptions.running_max is 0"),
        (lambda: JobOptions(lease_s=0.0), "JobOptions.lease_s"),
        (lambda: JobOptions(result_bytes_max=2 << 20), "at most 1048576"),
        (lambda: JobOptions(kept_s=0.5), "JobOptions.kept_s"),
    ],
)
def test_a_wrong_option_is_refused(made: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        made()
