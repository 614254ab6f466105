"""Routes for messages: enqueue, read and change. Leases have a module of their own."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote

from msgspec import UNSET

from millstream.providers.priority.core import results
from millstream.providers.priority.core.commands import Cancel, Command, Enqueue
from millstream.providers.priority.core.commands import EnqueueMany as EnqueueManyCommand
from millstream.providers.priority.core.commands import Prioritise as PrioritiseCommand
from millstream.providers.priority.core.commands import Requeue as RequeueCommand
from millstream.providers.priority.core.message import State
from millstream.providers.priority.core.reading import is_large
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.http.forms.answers import (
    Answer,
    EnqueuedMany,
    Messages,
    Result,
    make_done,
    make_enqueued,
    message_of,
)
from millstream.providers.priority.http.forms.bodies import (
    AfterSequence,
    EnqueueMany,
    Message,
    NoFields,
    Peek,
    Prioritise,
    Reason,
    Requeue,
)
from millstream.providers.priority.http.forms.problems import body_of
from millstream.providers.priority.http.forms.strict import pairs_in
from millstream.providers.priority.surface.given import as_given, enqueue_of
from millstream.providers.priority.surface.priorities import PriorityClass

from .asked import id_of_key
from .route import Asked

__all__ = [
    "cancel",
    "enqueue",
    "enqueue_many",
    "get",
    "page",
    "payload",
    "peek",
    "prioritise",
    "requeue",
]


async def do(asked: Asked[Any, Any], command: Command) -> Any:
    """Carry out a command once; under a key, once also across repeats."""
    return await asked.queue.calls.do(command, asked.request)


async def enqueue(asked: Asked[Message, NoFields]) -> Answer:
    row: results.Enqueued = await do(asked, command_of(asked, asked.body))
    return answer_entry(asked, row)


def answer_entry(asked: Asked[Any, Any], row: results.Enqueued) -> Answer:
    """The answer to an enqueue: 201 with the message's location for a new message."""
    if not row.is_changed:
        return Answer(make_enqueued(row))
    queue, id = (quote(text, safe="") for text in (asked.path["queue"], row.id))
    place = {"Location": f"/v1/queues/{queue}/messages/{id}"}
    return Answer(make_enqueued(row), 201, headers=place)


def command_of(asked: Asked[Any, Any], message: Message, at: int | None = None) -> Enqueue:
    """The command for a message. Raises RequestInvalid."""
    urgency = message.priority
    priority = PriorityClass[urgency] if isinstance(urgency, str) else urgency
    id = make_id(asked.request, at) if message.id is None else message.id
    terms = (message.invisible_s, message.lease_s, message.attempts)
    new_id = asked.queue.calls.new_name
    return enqueue_of(
        asked.path["queue"], new_id, message.payload, priority, id, message.metadata, *terms
    )


def make_id(request: Request | None, at: int | None = None) -> str | None:
    return None if request is None else id_of_key(request, at)


async def enqueue_many(asked: Asked[EnqueueMany, NoFields]) -> Answer:
    body = asked.body
    commands = tuple(command_of(asked, one, at) for at, one in enumerate(body.messages))
    many: results.EnqueuedMany = await do(asked, EnqueueManyCommand(commands, body.all_or_nothing))
    name = asked.path["queue"]
    found = [Result(one and make_enqueued(one)) for one in many.answers]
    for refused in many.refusals:
        found[refused.at] = Result(problem=body_of(as_given(refused.error(name)), name))
    return Answer(EnqueuedMany(found))


async def requeue(asked: Asked[Requeue, NoFields]) -> Answer:
    command = RequeueCommand(asked.path["id"], asked.body.new_id)
    row: results.Enqueued = await do(asked, command)
    return answer_entry(asked, row)


async def cancel(asked: Asked[Reason, NoFields]) -> Answer:
    command = Cancel(asked.path["id"], None, asked.body.reason)
    return Answer(make_done(cast(results.Done, await do(asked, command))))


async def prioritise(asked: Asked[Prioritise, NoFields]) -> Answer:
    command = PrioritiseCommand(asked.path["id"], asked.body.priority)
    return Answer(make_done(cast(results.Done, await do(asked, command))))


# -- reads


async def get(asked: Asked[NoFields, NoFields]) -> Answer:
    return Answer(message_of(await asked.queue.handle.get(asked.path["id"])))


async def payload(asked: Asked[NoFields, NoFields]) -> Answer:
    return Answer(raw=(await asked.queue.handle.get(asked.path["id"])).payload)


async def page(asked: Asked[NoFields, AfterSequence]) -> Answer:
    query, wanted = asked.query, pairs_in("wanted", asked.query.wanted)
    state = None if query.state is UNSET else State[query.state.upper()]
    found = await asked.queue.handle.page(
        query.count, after=query.after, state=state, wanted=wanted
    )
    is_full = len(found) == query.count or is_large(found)
    after = found[-1].sequence if is_full else None
    return Answer(Messages([message_of(view, query.payload) for view in found], after))


async def peek(asked: Asked[NoFields, Peek]) -> Answer:
    query, wanted = asked.query, pairs_in("wanted", asked.query.wanted)
    found = await asked.queue.handle.peek(query.count, wanted=wanted)
    return Answer(Messages([message_of(view, query.payload) for view in found]))
