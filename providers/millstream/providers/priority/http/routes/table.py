"""The table of all routes. The server and the OpenAPI document use this table and no other
source.
"""

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
        "List the names of queues, in order.",
        queues.names,
        answers.Queues,
        query=bodies.AfterName,
    ),
    Route(
        "PUT",
        QUEUE,
        "createQueue",
        "Create the queue. A queue that has these settings already stays as it is.",
        queues.create,
        answers.Queue,
        body=bodies.Settings,
    ),
    Route(
        "GET",
        QUEUE,
        "getQueue",
        "Get the settings of the queue and their version.",
        queues.settings,
        answers.Queue,
    ),
    Route(
        "PATCH",
        QUEUE,
        "configureQueue",
        "Change the settings that the body contains.",
        queues.configure,
        answers.Queue,
        body=bodies.Settings,
        query=bodies.Version,
    ),
    Route(
        "DELETE",
        QUEUE,
        "deleteQueue",
        "Delete the queue with all its messages.",
        queues.delete,
        None,
        statuses=(204,),
    ),
    Route(
        "GET",
        f"{QUEUE}/depth",
        "getDepth",
        "Count the messages in each state.",
        queues.depth,
        answers.Depth,
        query=bodies.DepthQuery,
    ),
    Route(
        "GET",
        f"{QUEUE}/values",
        "getValues",
        "Count the messages in each state, for each exclusivity value.",
        queues.values,
        answers.Depths,
    ),
)
MESSAGES: tuple[Route[Any, Any], ...] = (
    Route(
        "POST",
        f"{QUEUE}/messages",
        "enqueue",
        "Enqueue one message.",
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
        "Enqueue several messages, in order.",
        messages.enqueue_many,
        answers.EnqueuedMany,
        body=bodies.EnqueueMany,
        is_keyed=True,
    ),
    Route(
        "GET",
        f"{QUEUE}/messages",
        "listMessages",
        "List messages in the order in which they were enqueued.",
        messages.page,
        answers.Messages,
        query=bodies.AfterSequence,
    ),
    Route(
        "GET",
        f"{QUEUE}/head",
        "peek",
        "Show the messages that a dequeue would lease, without leasing them.",
        messages.peek,
        answers.Messages,
        query=bodies.Peek,
    ),
    Route(
        "GET",
        MESSAGE,
        "getMessage",
        "Get one message.",
        messages.get,
        answers.MessageBody,
    ),
    Route(
        "GET",
        f"{MESSAGE}/payload",
        "getPayload",
        "Get the payload of a message as the body of the answer.",
        messages.payload,
        bytes,
    ),
    Route(
        "PATCH",
        MESSAGE,
        "prioritise",
        "Change the priority of a message.",
        messages.prioritise,
        answers.Done,
        body=bodies.Prioritise,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{MESSAGE}/cancel",
        "cancel",
        "Cancel a message in any unfinished state.",
        messages.cancel,
        answers.Done,
        body=bodies.Reason,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{MESSAGE}/requeue",
        "requeue",
        "Enqueue a copy of an errored or canceled message.",
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
        "Lease the most urgent messages, and wait for the first one if requested.",
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
        "Complete the message: the work is done.",
        leases.complete,
        answers.Done,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/fail",
        "fail",
        "Make the message errored: the work cannot be done.",
        leases.fail,
        answers.Done,
        body=bodies.Reason,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/cancel",
        "cancelLeased",
        "Cancel the message: the work is not needed.",
        leases.cancel,
        answers.Done,
        body=bodies.Reason,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/extend",
        "extend",
        "Extend the lease.",
        leases.extend,
        answers.Done,
        body=bodies.Extend,
        is_keyed=True,
    ),
    Route(
        "POST",
        f"{LEASE}/release",
        "release",
        "Give the message back, so that it can be leased again.",
        leases.release,
        answers.Done,
        body=bodies.Release,
        is_keyed=True,
    ),
)
ROUTES = (*QUEUES, *MESSAGES, *LEASES)
