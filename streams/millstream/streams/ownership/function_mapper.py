"""Maps streams to queues with a function of the program.

`sound` checks mappers that a program writes as a whole. Invariants: a stream gets an existing
queue, or a StreamError that names mapper, stream and answer. An error of the function becomes a
StreamError.
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
    """A mapper that asks a function for the number of each stream's queue.

    ```python
    FunctionMapper(queues=8, by=lambda stream, queues: len(stream.key) % queues, name="by length")
    ```

    The function works with `resize`, because it gets the number of queues. If it raises, or answers
    no such number, nothing stops: `publish` and `publish_with` raise a `StreamError` that names
    stream, mapper and answer, before any message is sent. If one stream of a client's list has no
    queue, no event of the list is sent. `why` reports it as `"no_queue"`. Stored messages are still
    delivered, because the reader of a queue does not ask the mapper.

    Args:
        queues: number of queues, 1 to 65,536, named `prefix-0`, `prefix-1`, ...
        by: called with a `StreamId` and the number of queues; returns an `int` from 0 to queues-1.
            The event loop calls it for each publish, so it must be a plain, fast and pure function:
            equal arguments give equal answers in every silo and for ever.
        name: name of the function's behaviour, 1 to 100 characters. Functions cannot be compared,
            so silos compare this name, and it is stored with the queues. Change it if the function
            answers differently.
        prefix: prefix of the names of the queues.

    Raises:
        ConfigError: an argument is not valid.
        TypeError: `name` or `prefix` is no text that can be stored.
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
            raise ConfigError(
                f"FunctionMapper(queues={queues!r}): give a whole number from 1 to {QUEUES_MAX}"
            )
        if not callable(by) or inspect.iscoroutinefunction(by):
            what = "is async" if callable(by) else "cannot be called"
            raise ConfigError(
                f"FunctionMapper(by={show_text(repr(by))}): the argument {what}; give a plain "
                "function of a stream and the number of queues"
            )
        check_text("FunctionMapper(name=...)", name)
        check_text("FunctionMapper(prefix=...)", prefix)
        if not 1 <= len(name) <= NAME_CHARS_MAX:
            raise ConfigError(
                f"FunctionMapper(name={show_text(repr(name))}): give a name of 1 to "
                f"{NAME_CHARS_MAX} characters"
            )
        if not prefix:
            raise ConfigError(
                "FunctionMapper(prefix=''): give a prefix, because the names of the queues begin "
                "with it"
            )
        self._queues: tuple[QueueId, ...] = tuple(f"{prefix}-{n}" for n in range(queues))
        self._by = by
        self._name = name
        self._prefix = prefix
        self._epoch = 1

    @property
    def epoch(self) -> int:
        """The version of the mapping; each change of the number of queues adds one."""
        return self._epoch

    @property
    def name(self) -> str:
        """The name that silos compare instead of the function."""
        return self._name

    def with_queues(self, queues: int, epoch: int, /) -> FunctionMapper:
        """Return the same function over another number of queues, in a later epoch; `resize` calls
        this.

        Args:
            queues: number of queues.
            epoch: the new epoch.

        Raises:
            ConfigError: the number of queues is not valid.
        """
        mapper = FunctionMapper(queues=queues, by=self._by, name=self._name, prefix=self._prefix)
        mapper._epoch = epoch
        return mapper

    def queues(self) -> Sequence[QueueId]:
        """Return the names of all queues, by number."""
        return self._queues

    def queue_for(self, stream: StreamId, /) -> QueueId:
        """Return the queue of a stream.

        Args:
            stream: the stream.

        Raises:
            StreamError: the function raised, or answered no number of a queue.
        """
        count = len(self._queues)
        try:
            number = self._by(stream, count)
        except (Exception, asyncio.CancelledError) as error:
            why = f"raised {type(error).__name__}: {show_text(text_of(error))}"
            raise self._make_refusal(stream, why) from error
        if type(number) is int and 0 <= number < count:
            return self._queues[number]
        why = f"returned {show_text(_text(number))}, which is not an int from 0 to {count - 1}"
        raise self._make_refusal(stream, why)

    def _make_refusal(self, stream: StreamId, why: str) -> StreamError:
        where = f"FunctionMapper {show_text(repr(self._name))}"
        return StreamError(
            f"{show_text(str(stream))}: the stream has no queue: the function of {where} {why}"
        )


def _text(answer: object) -> str:
    """Return the text of an object whose `repr` may raise."""
    try:
        return repr(answer)
    except Exception:
        return f"a {type(answer).__name__}"
