"""All routes. What is here is served, and is in the OpenAPI document; nothing else is."""

from __future__ import annotations

from typing import Any

from millstream.providers.priority.http.forms import answers, bodies

from . import leases, messages, queues
from .route import Route

__all__ = ["ROUTES"]

QUEUE = "/v1/queues/{queue}"
MESSAGE = f"{QUEUE}/messages/{{id}}"
LEASE = f"{MESSAGE}/leases/{{token}}"

QUEUES: tuple[Route[Any, Any], ...] = (
    Route(
        "GET",
        "/v1/queues",
        "listQueues",
        "Names of queues, in order.",
        queues.names,
        answers.Queues,
        query=bodies.AfterName,
    ),
    Route(
        "PUT",
        QUEUE,
        "createQueue",
        "Create it; one with these settings is left alone.",
        queues.create,
        answers.Queue,
        body=bodies.Settings,
    ),
    Route(
        "GET",
        QUEUE,
        "getQueue",
        "Its settings, and which version of them.",
        queues.settings,
        answers.Queue,
    ),
    Route(
        "PATCH",
        QUEUE,
        "configureQueue",
        "Change the settings that are given.",
        queues.configure,
        answers.Queue,
        body=bodies.Settings,
        query=bodies.Version,
    ),
    Route(
        "DELETE",
        QUEUE,
        "deleteQueue",
        "Delete it with all of its messages.",
        queues.delete,
        None,
        statuses=(204,),
    ),
    Route(
        "GET",
        f"{QUEUE}/depth",
        "getDepth",
        "How many messages are in each state.",
        queues.depth,
        answers.Depth,
        query=bodies.DepthQuery,
    ),
    Route(
        "GET",
        f"{QUEUE}/values",
        "getValues",
        "The depth of each exclusivity value.",
        queues.values,
        answers.Depths,
    ),
)
MESSAGES: tuple[Route[Any, Any], ...] = (
    Route(
        "POST",
        f"{QUEUE}/messages",
        "enqueue",
        "Take a message in.",
        messages.enqueue,
        answers.Enqueued,
        body=bodies.Message,
        raw=bodies.RawMessage,
        statuses=(201, 200),
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{QUEUE}/batches",
        "enqueueMany",
        "Take messages in, in order.",
        messages.enqueue_many,
        answers.EnqueuedMany,
        body=bodies.EnqueueMany,
        is_keyed=True,
    ),
    Route(
        "GET",
        f"{QUEUE}/messages",
        "listMessages",
        "Messages in the order of their enqueue.",
        messages.page,
        answers.Messages,
        query=bodies.AfterSequence,
    ),
    Route(
        "GET",
        f"{QUEUE}/head",
        "peek",
        "Show the messages that a dequeue would lease; leases nothing.",
        messages.peek,
        answers.Messages,
        query=bodies.Peek,
    ),
    Route(
        "GET",
        MESSAGE,
        "getMessage",
        "A message as it is.",
        messages.get,
        answers.MessageBody,
    ),
    Route(
        "GET",
        f"{MESSAGE}/payload",
        "getPayload",
        "Its payload as the body.",
        messages.payload,
        bytes,
    ),
    Route(
        "PATCH",
        MESSAGE,
        "prioritise",
        "Give it another priority.",
        messages.prioritise,
        answers.Done,
        body=bodies.Prioritise,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{MESSAGE}/cancel",
        "cancel",
        "It is not needed, in whatever state it is.",
        messages.cancel,
        answers.Done,
        body=bodies.Reason,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{MESSAGE}/requeue",
        "requeue",
        "An errored or canceled one, as a new message.",
        messages.requeue,
        answers.Enqueued,
        body=bodies.Requeue,
        statuses=(201, 200),
        is_keyed=True,
    ),
)
LEASES: tuple[Route[Any, Any], ...] = (
    Route(
        "POST",
        f"{QUEUE}/leases",
        "dequeue",
        "Lease the most urgent; wait for a first.",
        leases.dequeue,
        answers.Leases,
        body=bodies.Dequeue,
        statuses=(200, 204),
        is_keyed=True,
        gives_raw=True,
    ),
    Route(
        "POST",
        f"{LEASE}/complete",
        "complete",
        "The work is done.",
        leases.complete,
        answers.Done,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/fail",
        "fail",
        "It cannot be done: the message is errored.",
        leases.fail,
        answers.Done,
        body=bodies.Reason,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/cancel",
        "cancelLeased",
        "The work is not needed any more.",
        leases.cancel,
        answers.Done,
        body=bodies.Reason,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/extend",
        "extend",
        "The lease holds for longer.",
        leases.extend,
        answers.Done,
        body=bodies.Extend,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/release",
        "release",
        "Give the message back.",
        leases.release,
        answers.Done,
        body=bodies.Release,
        is_keyed=True,
    ),
)
ROUTES = (*QUEUES, *MESSAGES, *LEASES)
