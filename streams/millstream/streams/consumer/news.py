"""Marks of methods that hear what else happens to the streams of a namespace.

Owns: what these marks have in common: their checks, and finding the marked method. Not: what is
told, and when (`on_gap`, `on_error`). Invariant: one method of a class for each kind of news and
the streams of a name.
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
    """What such a mark says of a method; `word`: its name, `news`: what it is for, `takes`: the
    type of the argument."""

    makes_local = True
    word: ClassVar[str]
    news: ClassVar[str]
    takes: ClassVar[type]

    def __init__(self, namespace: StreamNamespace[Any]) -> None:
        self.namespace = namespace

    @property
    def part(self) -> str:
        """The stream provider, without which nothing would ever be heard."""
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
            return  # not defined yet: a type checker sees it
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
                f"{subject}: `{others[0]}` hears of {self.news} in streams named "
                f"{self.namespace.name!r} already: keep one"
            )

    def _check_subscribed(self, subject: str, owner: type) -> None:
        """Grains may subscribe at run time, unless the namespace says that they do not."""
        if self.namespace.subscriptions == "implicit" and not is_subscribed(owner, self.namespace):
            raise DefinitionError(
                f"{subject}: {self.namespace!r} takes implicit subscriptions only, and "
                f"{owner.__name__} has no method with `@subscribe({self.namespace!r})`"
            )


def refuse_function(namespace: object, word: str) -> None:
    """The mark was written without its parentheses. Raises DefinitionError."""
    if inspect.isfunction(namespace):
        raise DefinitionError(
            f"{source_of(namespace)}: `@{word}` takes a namespace, not a function: "
            f"write `@{word}(NAMESPACE)`"
        )


def methods_of(cls: type, mark: type[NewsMark], namespace: str) -> list[str]:
    """Names of the methods that hear such news of streams of this name."""
    return [
        name
        for name in dir(cls)
        for one in marks_of(cls, name)
        if isinstance(one, mark) and one.namespace.name == namespace
    ]


def is_subscribed(cls: type, namespace: StreamNamespace[Any]) -> bool:
    """Has the class a marked handler for streams of this name?"""
    return any(
        isinstance(mark, SubscribeMark) and mark.namespace.name == namespace.name
        for name in dir(cls)
        for mark in marks_of(cls, name)
    )


def handler_of(
    grain: Any, mark: type[NewsMark], namespace: str
) -> Callable[[Any], Coroutine[Any, Any, None]] | None:
    """The method of a grain that hears such news of streams of this name, if it has one."""
    names = methods_of(type(grain), mark, namespace)
    return getattr(grain, names[0]) if names else None
