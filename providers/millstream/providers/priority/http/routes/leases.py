"""Routes for leases: dequeue, extend, and the operations that end a lease.

Invariant: if the answer of a dequeue could not be sent, its leases are released without counting
the attempt. With an `Idempotency-Key` they stay for the repeat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from millstream.providers.priority.core import results
from millstream.providers.priority.core.commands import Cancel, Complete, Fail
from millstream.providers.priority.core.commands import Extend as ExtendCommand
from millstream.providers.priority.core.commands import Release as ReleaseCommand
from millstream.providers.priority.core.errors import RequestInvalid
from millstream.providers.priority.core.message import LeaseToken
from millstream.providers.priority.core.requests.sessions import NUMBER_MAX
from millstream.providers.priority.http.forms.answers import (
    Answer,
    LeaseBody,
    Leases,
    lease_of,
    make_done,
)
from millstream.providers.priority.http.forms.bodies import (
    Dequeue,
    Extend,
    NoFields,
    Reason,
    Release,
)
from millstream.providers.priority.surface.given import dequeue_of, milliseconds
from millstream.providers.priority.surface.lease import Lease
from millstream.providers.priority.surface.poll import give_back

from .asked import poll_by_key
from .messages import do
from .route import Asked

__all__ = ["LEASE_HEADER", "cancel", "complete", "dequeue", "extend", "fail", "release"]

LEASE_HEADER = "Millstream-Lease"
"""The header that has the lease as ASCII JSON if the body is the payload."""


async def dequeue(asked: Asked[Dequeue, NoFields]) -> Answer:
    body, name = asked.body, asked.path["queue"]
    if asked.wants_raw and body.count != 1:
        raise RequestInvalid(
            name, "count", f"is {body.count}; a raw answer has only one message: set it to 1"
        )
    command = dequeue_of(
        name, body.worker, body.count, body.wanted, body.lease_s, body.same_value_ok
    )
    calls = asked.queue.calls
    with asked.site.waiting(name, body.wait_s) as wait_s:
        if asked.request is not None:
            rows = await poll_by_key(calls, command, asked.request, wait_s)
            return answer_lease([lease_of(row) for row in rows], asked.wants_raw)
        found = await calls.leases(command, wait_s)
    answer = answer_lease([body_of(lease) for lease in found], asked.wants_raw)
    answer.undo = partial(give_back, found)
    return answer


def body_of(lease: Lease) -> LeaseBody:
    row = results.LeaseGrant(
        lease.id,
        lease.payload,
        lease.priority,
        lease.metadata,
        lease.token,
        lease.deadline_ms,
        lease.attempt,
        lease.attempts_left,
    )
    return lease_of(row)


def answer_lease(found: Sequence[LeaseBody], is_raw: bool) -> Answer:
    if not is_raw:
        return Answer(Leases(list(found)))
    if not found:
        return Answer(status=204)
    [lease] = found
    names = [name for name in lease.__struct_fields__ if name != "payload"]
    told = json.dumps({name: getattr(lease, name) for name in names})
    return Answer(raw=lease.payload, headers={LEASE_HEADER: told})


# -- ending leases


async def complete(asked: Asked[NoFields, NoFields]) -> Answer:
    return await end(asked, Complete(asked.path["id"], token_in(asked)))


async def fail(asked: Asked[Reason, NoFields]) -> Answer:
    return await end(asked, Fail(asked.path["id"], token_in(asked), asked.body.reason))


async def cancel(asked: Asked[Reason, NoFields]) -> Answer:
    return await end(asked, Cancel(asked.path["id"], token_in(asked), asked.body.reason))


async def extend(asked: Asked[Extend, NoFields]) -> Answer:
    lease_ms = milliseconds(asked.path["queue"], "lease_s", asked.body.lease_s)
    return await end(asked, ExtendCommand(asked.path["id"], token_in(asked), lease_ms))


async def release(asked: Asked[Release, NoFields]) -> Answer:
    body = asked.body
    delay_ms = milliseconds(asked.path["queue"], "delay_s", body.delay_s) or 0
    command = ReleaseCommand(asked.path["id"], token_in(asked), delay_ms, body.refund, body.reason)
    return await end(asked, command)


async def end(
    asked: Asked[Any, NoFields],
    command: Complete | Fail | Cancel | ExtendCommand | ReleaseCommand,
) -> Answer:
    done: results.Done = await do(asked, command)
    return Answer(make_done(done))


def token_in(asked: Asked[Any, NoFields]) -> LeaseToken:
    """The token that the path names. Raises RequestInvalid."""
    text = asked.path["token"]
    epoch, _, version = text.partition(".")
    if not (is_number(epoch) and is_number(version)):
        what = f"is {text[:64]!r}, not a lease token of the form epoch.version"
        raise RequestInvalid(asked.path["queue"], "token", what)
    return LeaseToken(int(epoch), int(version))


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= NUMBER_MAX
