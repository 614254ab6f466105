"""Pausing and resuming a stream as a whole.

Owns: `pause_stream`, `resume_stream`. Not: the stored pause (the stream's rendezvous grain), and
its effects (the agent of the queue).
"""

from __future__ import annotations

from typing import TypeVar

from millstream.runtime.extending import Program

from .api.namespace import StreamNamespace
from .api.subscription_rows import HERE, WHOLE_STREAM

__all__ = ["pause_stream", "resume_stream"]

T = TypeVar("T")


async def pause_stream(program: Program, namespace: StreamNamespace[T], key: str, /) -> None:
    """Deliver no events of a stream until `resume_stream`; publishing to it continues.

    All subscriptions of the stream wait, and so do new ones; other streams are not affected. After
    the call has returned, no handler starts; a running one continues. The pause is stored, so it
    applies to every later owner of the queue, even after all silos were stopped. Events of a stream
    without subscriptions are acknowledged as usual. A repeated call does no harm.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        namespace: the namespace of the stream.
        key: the key of the stream.

    Raises:
        NotHosted: no silo has the provider.
        StorageError: the store failed.
        QueueUnavailable: the pause is stored, but the silo that reads the queue could not be told.
            Call again.
    """
    await program.stream(namespace, key).rendezvous_grain().pause(WHOLE_STREAM)


async def resume_stream(program: Program, namespace: StreamNamespace[T], key: str, /) -> None:
    """Undo `pause_stream`: each subscription continues at its position, unless it is paused itself.

    A repeated call does no harm.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        namespace: the namespace of the stream.
        key: the key of the stream.

    Raises:
        Exception: the errors of `pause_stream`.
    """
    await program.stream(namespace, key).rendezvous_grain().resume(WHOLE_STREAM, HERE)
