"""Streams as arguments and fields: sent as provider, namespace and key.

Owns: the codec hook for `Stream[T]`. Invariants: the item type comes from the annotation where the
stream arrives. A bare `Stream` is refused, because a program could not publish to it.
"""

from __future__ import annotations

from typing import Any, get_args

from millstream.runtime.extending import register_opened

from .namespace import StreamNamespace
from .stream import Stream

__all__ = ["register_stream_hook"]


def encode_stream(value: Any) -> tuple[str, str, str]:
    """Provider, namespace and key."""
    return (value.provider, *value.id)


def decode_stream(annotation: Any, plain: Any, runtime: Any) -> object:
    """The stream, opened at the silo or client that decodes."""
    items = get_args(annotation)
    if not items:
        raise TypeError("annotate the stream with its item type: Stream[Item]")
    if not isinstance(plain, list | tuple) or len(plain) != 3 or runtime is None:
        raise TypeError(f"{plain!r} is not a stream of this cluster")
    provider, namespace, key = plain
    made: StreamNamespace[Any] = StreamNamespace(namespace, items[0], provider=provider)
    return made.open(runtime, key)


def register_stream_hook() -> None:
    """Let annotations name streams; called once, when streams are imported."""
    register_opened(lambda cls: issubclass(cls, Stream), encode_stream, decode_stream)


register_stream_hook()
