"""The status of a writer, as an operator sees it. Pure.

`target` returns it.
"""

from __future__ import annotations

import msgspec

from .coordinator import Abandoned, WriterState

__all__ = ["WriterStatus", "status_of"]


class WriterStatus(msgspec.Struct, frozen=True):
    """The status of a writer that stages batches, as it is stored.

    Attributes:
        writer: identity of the writer in the queues.
        last: the highest decided batch. -1: none.
        waiting: the decided batch that is not wholly published. None: none.
        messages: number of messages of that batch.
        is_abandoned: the messages of that batch that queues refuse are being given up.
        refusal: why a queue refuses a message of that batch for good. Empty: no refusal, as far as
            its silo knows.
        attempts: number of open attempts.
        staged_bytes: bytes of the open attempts, and of attempts that are not removed yet.
        abandoned: the last batch of which messages were given up.
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
    """Return the status of a writer with this row."""
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
