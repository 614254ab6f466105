"""Which queue carries a stream: as a function of the program says.

Owns: `FunctionMapper`. Not: mappers that are somebody else's whole (`sound`). Invariants: a stream
gets a queue that exists, or a StreamError that names mapper, stream and answer; what the function
raises goes no further.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence

from millstream.runtime import ConfigError, StreamError
from millstream.runtime.extending import check_text, show_text
from millstream.streams.contracts.answers import text_of
from millstream.streams.contracts.identity import QueueId, StreamId

from .mapper import QUEUES_MAX

__all__ = ["FunctionMapper"]

NAME_CHARS_MAX = 100


class FunctionMapper:
    """Puts a stream into the queue whose number a function answers.

    Args:
        queues: how many, 1..65,536, named `prefix-0`, `prefix-1`, ...
        by: called with a `StreamId` and the number of queues; answers 0..queues-1. Pure and quick:
            equal arguments give equal answers in every silo and for ever, and it is called on the
            event loop for each publish. The number of queues is another one after `resize`.
        name: of what the function does, 1..100 characters. Functions cannot be compared, so it is
            this that silos must have alike, and that is stored with the queues: give another one
            to a function that answers otherwise.

    Raises: ConfigError; TypeError: `name` or `prefix` is no text that can be stored.
    """

    __slots__ = ("_by", "_epoch", "_name", "_prefix", "_queues")

    def __init__(
        self,
        *,
        queues: int,
        by: Callable[[StreamId, int], int],
        name: str,
        prefix: str = "queue",
    ) -> None:
        if type(queues) is not int or not 1 <= queues <= QUEUES_MAX:
            raise ConfigError(f"FunctionMapper(queues={queues!r}): not in 1..{QUEUES_MAX}")
        if not callable(by) or inspect.iscoroutinefunction(by):
            what = "is async" if callable(by) else "cannot be called"
            raise ConfigError(
                f"FunctionMapper(by={show_text(repr(by))}): {what}; it is a plain function of a "
                "stream and the number of queues"
            )
        check_text("FunctionMapper(name=...)", name)
        check_text("FunctionMapper(prefix=...)", prefix)
        if not 1 <= len(name) <= NAME_CHARS_MAX:
            raise ConfigError(
                f"FunctionMapper(name={show_text(repr(name))}): not 1..{NAME_CHARS_MAX} characters"
            )
        if not prefix:
            raise ConfigError("FunctionMapper(prefix=''): a queue is named by it")
        self._queues: tuple[QueueId, ...] = tuple(f"{prefix}-{n}" for n in range(queues))
        self._by = by
        self._name = name
        self._prefix = prefix
        self._epoch = 1

    @property
    def epoch(self) -> int:
        """Each change of the number of queues is one more."""
        return self._epoch

    @property
    def name(self) -> str:
        """What silos compare in place of the function."""
        return self._name

    def with_queues(self, queues: int, epoch: int, /) -> FunctionMapper:
        """The same function over another number of queues, in a later epoch. Raises ConfigError."""
        mapper = FunctionMapper(queues=queues, by=self._by, name=self._name, prefix=self._prefix)
        mapper._epoch = epoch
        return mapper

    def queues(self) -> Sequence[QueueId]:
        """All queue ids, by number."""
        return self._queues

    def queue_for(self, stream: StreamId, /) -> QueueId:
        """The queue of a stream. Raises StreamError: the function raised, or named no queue."""
        count = len(self._queues)
        try:
            number = self._by(stream, count)
        except (Exception, asyncio.CancelledError) as error:
            why = f"raised {type(error).__name__}: {show_text(text_of(error))}"
            raise self._make_refusal(stream, why) from error
        if type(number) is int and 0 <= number < count:
            return self._queues[number]
        why = f"answered {show_text(_text(number))}, which is not an int in 0..{count - 1}"
        raise self._make_refusal(stream, why)

    def _make_refusal(self, stream: StreamId, why: str) -> StreamError:
        where = f"FunctionMapper {show_text(repr(self._name))}"
        return StreamError(
            f"{show_text(str(stream))}: no queue carries it: the function of {where} {why}"
        )


def _text(answer: object) -> str:
    """Somebody else's object, which may be unable to make its text."""
    try:
        return repr(answer)
    except Exception:
        return f"a {type(answer).__name__}"
