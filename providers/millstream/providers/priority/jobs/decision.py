"""The decision about a job after its method was called. Pure.

Owns `decide` and its answers.

Invariants: a job whose method failed runs again as long as it has attempts. A call that the cluster
refused before the method ran uses no attempt, unless it was refused later than `refused_for_s`
after the due time.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.runtime import NotHosted, NotInCluster, Overloaded, Rejected, SiloUnavailable
from millstream.runtime.extending import type_name

from .options import JobRetry

__all__ = ["GiveUp", "Repeat", "Succeed"]

REFUSALS = (NotHosted, NotInCluster, Overloaded, Rejected)
"""Errors of a call that did not run the method."""


class Succeed(NamedTuple):
    """The method returned: store the result, and complete the job."""


class Repeat(NamedTuple):
    """Run the job again after `delay_s`. With `is_refund`, the attempt does not count."""

    delay_s: float
    is_refund: bool
    reason: str


class GiveUp(NamedTuple):
    """No attempt is left: store the error, and fail the job."""

    reason: str


def decide(
    error: Exception | None,
    attempt: int,
    attempts_left: int,
    late_s: float,
    retry: JobRetry,
    *,
    is_unreadable: bool = False,
) -> Succeed | Repeat | GiveUp:
    """Decide what follows a call.

    Args:
        error: The error of the call; None if the method returned.
        attempt: The number of the attempt, 1 for the first.
        attempts_left: The attempts after this one.
        late_s: Seconds since the due time.
        retry: The options.
        is_unreadable: Whether this silo could not make the call: it lacks the method, or cannot
            read the arguments.
    """
    if error is None:
        return Succeed()
    reason = reason_of(error)
    if is_refusal(error) and late_s < retry.refused_for_s:
        return Repeat(retry.refused_delay_s, True, reason)
    if not attempts_left:
        return GiveUp(reason)
    delay_s = retry.unreadable_delay_s if is_unreadable else retry.delay_s(attempt)
    return Repeat(delay_s, False, reason)


def is_refusal(error: Exception) -> bool:
    """Whether the method did not run, as far as the class of the error tells."""
    if isinstance(error, SiloUnavailable):
        return not error.may_have_run
    return isinstance(error, REFUSALS)


def reason_of(error: Exception) -> str:
    """Type and text of an error."""
    name = type_name(type(error)).removeprefix("builtins.")
    try:
        return f"{name}: {error}"
    except Exception:  # the text of a user's error may fail
        return name
