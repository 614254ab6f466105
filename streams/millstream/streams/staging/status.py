"""What an operator is told of a writer that stages batches. Pure.

Owns: `WriterStatus`. Not: how it is asked for (`target`).
"""

from __future__ import annotations

import msgspec

from .coordinator import Abandoned, WriterState

__all__ = ["WriterStatus", "status_of"]


class WriterStatus(msgspec.Struct, frozen=True):
    """A writer, as it is stored.

    Attributes: `writer`, its identity in the queues; `last`, the highest batch that is decided, -1:
    none; `waiting`, the decided batch that is not wholly published, None: none; `messages`, how
    many that one has; `is_abandoned`: what queues refuse of it is being given up; `refusal`, why a
    queue refuses a message of it for good, empty: none does, as far as its silo has seen;
    `attempts`, how many are open; `staged_bytes`, of these and of what is not swept; `abandoned`,
    the last batch of which messages were given up.
    """

    writer: str
    last: int
    waiting: int | None
    messages: int
    is_abandoned: bool
    refusal: str
    attempts: int
    staged_bytes: int
    abandoned: Abandoned | None

    @property
    def name(self) -> tuple[str, str]:
        """Namespace and name of the writer."""
        length, _, rest = self.writer.partition(":")
        size = int(length)
        return rest[:size], rest[size + 1 :]


def status_of(writer: str, state: WriterState, refusal: str = "") -> WriterStatus:
    """The status of a writer whose row says this."""
    waiting = state.delivering
    staged = sum(one.bytes for one in state.open.values()) + sum(state.dropped.values())
    return WriterStatus(
        writer,
        state.last,
        None if waiting is None else waiting.number,
        0 if waiting is None else waiting.messages,
        state.is_abandoned,
        refusal if waiting is not None else "",
        len(state.open),
        staged,
        state.abandoned,
    )
