"""The shared base of the marks `@on_gap` and `@on_error`.

It checks these marks and finds the marked method. `on_gap` and `on_error` say when the method is
called. Invariant: a class has at most one method for each mark and stream name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, get_type_hints

from millstream.runtime import DefinitionError
from millstream.runtime.extending import Mark, marks_of, source_of
from millstream.streams.api.handlers import parameter_of, text_of
from millstream.streams.api.namespace import StreamNamespace
from millstream.streams.api.subscribe import SubscribeMark

__all__ = ["NewsMark", "handler_of", "methods_of", "refuse_function"]


class NewsMark(Mark):
    """A mark on a method. `word` is its name, `news` describes the reports, and `takes` is the type
    of the argument."""

    makes_local = True
    needs_one_activation = True
    word: ClassVar[str]
    news: ClassVar[str]
    takes: ClassVar[type]

    def __init__(self, namespace: StreamNamespace[Any]) -> None:
        self.namespace = namespace

    @property
    def part(self) -> str:
        """The stream provider; without it the method would never be called."""
        return self.namespace.provider if isinstance(self.namespace, StreamNamespace) else ""

    def __str__(self) -> str:
        return f"`@{self.word}({self.namespace!r})`"

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the method. Raises DefinitionError with file and line."""
        subject = f"{source_of(fn)}: {owner.__name__}.{name}"
        if not isinstance(self.namespace, StreamNamespace):
            raise DefinitionError(
                f"{subject}: `@{self.word}` takes a namespace, such as "
                f'StreamNamespace("arrivals", Item), not {self.namespace!r}'
            )
        parameter = parameter_of(fn, subject, self.takes.__name__)
        self._check_annotation(subject, parameter, fn)
        self._check_alone(subject, owner, name)
        self._check_subscribed(subject, owner)

    def _check_annotation(self, subject: str, parameter: str, fn: Callable[..., Any]) -> None:
        try:
            hint = get_type_hints(fn).get(parameter)
        except NameError:
            return  # the type is not defined yet: a type checker checks it
        if hint is not self.takes:
            given = "nothing" if hint is None else text_of(hint)
            raise DefinitionError(
                f"{subject}: annotate `{parameter}: {self.takes.__name__}`, not {given}"
            )

    def _check_alone(self, subject: str, owner: type, name: str) -> None:
        found = methods_of(owner, type(self), self.namespace.name)
        others = [one for one in found if one != name]
        if others:
            raise DefinitionError(
                f"{subject}: `{others[0]}` already handles {self.news} of streams named "
                f"{self.namespace.name!r}: keep one of the methods"
            )

    def _check_subscribed(self, subject: str, owner: type) -> None:
        """Check that a namespace with implicit subscriptions only has a marked handler in this
        class."""
        if self.namespace.subscriptions == "implicit" and not is_subscribed(owner, self.namespace):
            raise DefinitionError(
                f"{subject}: {self.namespace!r} takes implicit subscriptions only, and "
                f"{owner.__name__} has no method with `@subscribe({self.namespace!r})`"
            )


def refuse_function(namespace: object, word: str) -> None:
    """Refuse a mark that was written without parentheses. Raises DefinitionError."""
    if inspect.isfunction(namespace):
        raise DefinitionError(
            f"{source_of(namespace)}: `@{word}` takes a namespace, not a function: "
            f"write `@{word}(NAMESPACE)`"
        )


def methods_of(cls: type, mark: type[NewsMark], namespace: str) -> list[str]:
    """Return the names of the methods with this mark for streams of this name."""
    return [
        name
        for name in dir(cls)
        for one in marks_of(cls, name)
        if isinstance(one, mark) and one.namespace.name == namespace
    ]


def is_subscribed(cls: type, namespace: StreamNamespace[Any]) -> bool:
    """Say whether the class has a marked handler for streams of this name."""
    return any(
        isinstance(mark, SubscribeMark) and mark.namespace.name == namespace.name
        for name in dir(cls)
        for mark in marks_of(cls, name)
    )


def handler_of(
    grain: Any, mark: type[NewsMark], namespace: str
) -> Callable[[Any], Coroutine[Any, Any, None]] | None:
    """Return the grain's method with this mark for streams of this name, if it has one."""
    names = methods_of(type(grain), mark, namespace)
    return getattr(grain, names[0]) if names else None
