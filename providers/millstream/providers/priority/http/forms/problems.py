"""Errors as problem documents (RFC 9457), with a status that tells the client how to react.

Owns `Problem`, and the status of each error. `server` sends problems.

Invariants: a problem names the queue and, if there are any, the field and the limit. Each error of
a queue has a type of its own. The details of an unknown error are written only to the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from millstream.providers.priority.core import errors
from millstream.providers.priority.core.errors import PriorityQueueError
from millstream.runtime import (
    CallTimeout,
    MillstreamError,
    NotHosted,
    NotInCluster,
    Overloaded,
    Rejected,
    SiloUnavailable,
    StorageUnavailable,
)

__all__ = ["Limit", "Problem", "ProblemBody", "body_of", "problem_of"]

AGAIN_S = 1
BLOCKED_AGAIN_S = 10
STATUS: dict[type[MillstreamError], int] = {
    errors.PriorityQueueNotFound: 404,
    errors.MessageNotFound: 404,
    errors.LeaseForeign: 404,
    errors.RequestInvalid: 400,
    errors.SettingsConflict: 409,
    errors.MessageExists: 409,
    errors.MessageFinished: 409,
    errors.LeaseLost: 410,
    errors.PriorityQueueFull: 429,
    errors.EnqueueBlocked: 503,
    errors.FilterNotReady: 503,
    errors.Moved: 503,
    errors.OwnerLost: 503,
    Overloaded: 429,
    NotHosted: 503,
    NotInCluster: 503,
    Rejected: 503,
    SiloUnavailable: 503,
    CallTimeout: 503,
    StorageUnavailable: 503,
}
RETRIED = {429: AGAIN_S, 503: AGAIN_S}
LIMIT = re.compile(r"(\w+_max) is (\d+)$|(?:not|from) (-?\d+) to (\d+)$|, (\d+) at most$")
"""The end of error texts of the core that name a limit."""


class Limit(msgspec.Struct, omit_defaults=True):
    """The limit that was reached: its value and, if it has one, its name."""

    value: int
    name: str = ""


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """Why a request was refused (RFC 9457). `type` distinguishes the problems."""

    type: str
    title: str
    status: int
    detail: str
    queue: str = ""
    field: str = ""
    limit: Limit | None = None


class Problem(Exception):
    """A request is refused. `body` and `headers` are those of the answer."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        queue: str = "",
        field: str = "",
        limit: Limit | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.body = ProblemBody(
            f"urn:millstream:priority:{kebab(title)}", title, status, detail, queue, field, limit
        )
        again_s = BLOCKED_AGAIN_S if title == "EnqueueBlocked" else RETRIED.get(status)
        self.headers = dict(headers or {})
        if again_s is not None:
            self.headers["Retry-After"] = str(again_s)


def kebab(title: str) -> str:
    """`LeaseLost` as `lease-lost`."""
    return re.sub(r"(?<=.)([A-Z])", r"-\1", title).lower()


def status_of(error: MillstreamError) -> int:
    """The status of the nearest base class that has one; 0 for an unknown error."""
    found = (STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)
    return next(found, 0)


def problem_of(error: MillstreamError, queue: str) -> Problem | None:
    """The problem for an error of the cluster or the queue; None for an unexpected error."""
    status = status_of(error)
    if not status:
        return None
    field = getattr(error, "field", "")
    if field == "payload":
        status = 413
    title, detail = type(error).__name__, str(error)
    if isinstance(error, errors.RequestInvalid) and field == "number":
        # a key is a session with one request, and that was a different one
        return key_reused(error.queue)
    named = error.queue if isinstance(error, PriorityQueueError) else queue
    return Problem(status, title, detail, queue=named, field=field, limit=limit_of(error))


def key_reused(queue: str) -> Problem:
    """The problem of a key that was used for another request."""
    what = f"queue {queue!r}: the Idempotency-Key was used for another request: choose a new one"
    return Problem(422, "KeyReused", what, queue=queue, field="Idempotency-Key")


def limit_of(error: MillstreamError) -> Limit | None:
    """Return the limit that an error names, or None."""
    if isinstance(error, Overloaded):
        return Limit(error.limit, error.limit_name)
    found = LIMIT.search(str(error))
    if found is None:
        return None
    name, most, _, upto, atmost = found.groups(default="")
    return Limit(int(most or upto or atmost), name)


def body_of(error: MillstreamError, queue: str) -> ProblemBody:
    """The problem document for one message of a batch."""
    problem = problem_of(error, queue)
    assert problem is not None, "every refusal of a message has a status"
    return problem.body
