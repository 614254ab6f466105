"""Pausing a stream as a whole, and letting it go on.

Owns: `pause_stream`, `resume_stream`. Not: what keeps it, which is the stream's rendezvous grain,
and what follows, which the agent of its queue sees to.
"""

from __future__ import annotations

from typing import TypeVar

from millstream.runtime.extending import Program

from .api.namespace import StreamNamespace
from .api.subscription_rows import HERE, WHOLE_STREAM

__all__ = ["pause_stream", "resume_stream"]

T = TypeVar("T")


async def pause_stream(program: Program, namespace: StreamNamespace[T], key: str, /) -> None:
    """Deliver nothing more of a stream until `resume_stream`; publishing to it goes on.

    All its subscriptions wait, as if each was paused, and so do those that are made meanwhile; no
    other stream waits for it. When it has returned, no handler begins; one that runs goes on. It
    is stored, and holds for whoever reads the queue, also after a stop of all silos. An event that
    comes while no one subscribes to the stream is acknowledged as ever. Again is harmless.

    Args:
        program: a `Silo`, `Client`, `LocalCluster`, or a grain.
        namespace, key: which stream, as for `program.stream`.

    Raises NotHosted (no silo has the provider), StorageError, QueueUnavailable (it is stored, and
    who reads the queue could not be told: again), and what calls raise.
    """
    await program.stream(namespace, key).rendezvous_grain().pause(WHOLE_STREAM)


async def resume_stream(program: Program, namespace: StreamNamespace[T], key: str, /) -> None:
    """Undo `pause_stream`: each subscription goes on where it is, unless it is paused itself.

    Arguments and errors: those of `pause_stream`. Again is harmless.
    """
    await program.stream(namespace, key).rendezvous_grain().resume(WHOLE_STREAM, HERE)
