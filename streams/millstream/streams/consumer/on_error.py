"""The `@on_error` mark: it names the method that receives reports of events that were given up.

`agent.delivery` decides when the method is called. `failures` stores dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millstream.runtime.extending import add_mark
from millstream.streams.api.namespace import StreamNamespace
from millstream.streams.failures.handler import DeliveryFailure

from .news import NewsMark, handler_of, refuse_function

__all__ = ["ErrorMark", "error_handler", "on_error"]

G = TypeVar("G")
Method = Callable[[G, DeliveryFailure], Coroutine[Any, Any, None]]


class ErrorMark(NewsMark):
    """The mark that `@on_error` leaves on a method."""

    word, news, takes = "on_error", "errors", DeliveryFailure


def on_error(namespace: StreamNamespace[Any], /) -> Callable[[Method[G]], Method[G]]:
    """Mark the method that hears of given-up events: `@on_error(ARRIVALS)`.

    Put it on an `async def` method with one argument, a `DeliveryFailure`. The method is called
    when an event of a stream of that name was given up, for each subscription of the grain, marked
    or explicit. `failure.decision` is the fate of the event. A class has one such method for the
    streams of a name.

    The call comes after the decision is stored and before the next event, unless the grain moves
    meanwhile. It is made once, if the grain can be reached, and may take 10 s. An error of the
    method is logged.

    Args:
        namespace: the streams.

    Raises:
        DefinitionError: a rule is broken; raised with file and line when the class is defined.
    """
    refuse_function(namespace, "on_error")
    mark = ErrorMark(namespace)

    def mark_method(method: Method[G]) -> Method[G]:
        add_mark(method, mark)
        return method

    return mark_method


def error_handler(
    grain: Any, namespace: str
) -> Callable[[DeliveryFailure], Coroutine[Any, Any, None]] | None:
    """Return the grain's `@on_error` method for streams of this name, if it has one."""
    return handler_of(grain, ErrorMark, namespace)
