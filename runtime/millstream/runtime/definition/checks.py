"""The checks of a class and its methods when the class is defined.

Annotations are checked by the package `codec`. Every function here raises DefinitionError with file
and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from millstream.runtime.errors import DefinitionError

from .markers import Flag, Mark
from .method import source_of
from .state import StateField

__all__ = [
    "HOOKS",
    "OWN_NAMES",
    "check_hooks",
    "check_init",
    "check_method",
    "check_name_is_free",
    "check_observer",
    "check_states",
    "check_workers",
    "is_root",
    "takes_positional",
]

RESERVED_PREFIX = "_ms"
OWN_NAMES = frozenset({"key", "grain", "stream", "context"})
"""Names that Contract and Grain define. No subclass may redefine them."""
HOOKS = {"on_activate": "self", "on_deactivate": "self, reason"}
"""The life-cycle methods and their parameters."""
PARAMETER_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def is_root(cls: type[Any]) -> bool:
    """Return whether the class is Contract, Grain or Observer itself."""
    return bool(vars(cls).get("__millstream_root__"))


def check_name_is_free(name: str, subject: str) -> None:
    """Refuse names that generated code uses."""
    if name.startswith(RESERVED_PREFIX):
        raise DefinitionError(
            f"{subject}: names that begin with {RESERVED_PREFIX!r} are reserved; choose another"
        )


def check_hooks(cls: type[Any], source: str) -> None:
    """Refuse attributes that hide members of `Grain`, and hooks that cannot be called."""
    for name in sorted(OWN_NAMES):
        owner = _definer(cls, name)
        if owner is not None and not is_root(owner):
            raise DefinitionError(
                f"{source}: {cls.__name__}.{name}: `{name}` is a member of every grain; "
                "choose another name"
            )
    for name, parameters in HOOKS.items() if cls.__millstream_hosted__ else ():
        _check_hook(cls, name, parameters, source)


def _check_hook(cls: type[Any], name: str, parameters: str, source: str) -> None:
    hook = inspect.getattr_static(cls, name)
    is_sound = inspect.iscoroutinefunction(hook) and takes_positional(
        hook, len(parameters.split(", "))
    )
    if not is_sound:
        where = source_of(hook) if inspect.isfunction(hook) else source
        raise DefinitionError(
            f"{where}: {cls.__name__}.{name}: write `async def {name}({parameters})`"
        )


def check_init(cls: type[Any], source: str) -> None:
    """Refuse an `__init__` that needs arguments, since the runtime calls it without any."""
    init = cls.__init__
    if cls.__millstream_hosted__ and inspect.isfunction(init) and not takes_positional(init, 1):
        is_written = not init.__code__.co_filename.startswith("<")  # not by a decorator
        raise DefinitionError(
            f"{source_of(init) if is_written else source}: {cls.__name__}.__init__"
            f"{inspect.signature(init)}: a grain is created without arguments; give the "
            "parameters defaults, or load the data in `on_activate`"
        )


def takes_positional(fn: Any, count: int) -> bool:
    """Return whether a function can be called with `count` positional arguments and no others."""
    try:
        inspect.signature(fn).bind(*range(count))
    except (TypeError, ValueError):  # ValueError: it has no signature
        return False
    return True


def check_states(states: Mapping[str, StateField[Any]], cls: type[Any], source: str) -> None:
    """Refuse two states that would share a row."""
    taken: dict[tuple[str, str], str] = {}
    for attribute, field in states.items():
        other = taken.setdefault((field.store, field.name), attribute)
        if other != attribute:
            raise DefinitionError(
                f"{field.source or source}: {cls.__name__}.{attribute} and {cls.__name__}.{other} "
                f"are both stored as {field.name!r} in store {field.store!r}; give one of them "
                "another `name=`"
            )


def check_workers(
    cls: type[Any],
    states: Mapping[str, StateField[Any]],
    marks: Mapping[str, Collection[Mark]],
    source: str,
) -> None:
    """Refuse members of a class of stateless workers that presume one activation of each key."""
    for name, field in states.items():
        raise not_for_workers(
            f"{field.source or source}: {cls.__name__}.{name}",
            "a state",
            "keep the state in a grain of another class, and call that grain",
        )
    for name in dir(cls):
        if inspect.isasyncgenfunction(inspect.getattr_static(cls, name)):
            raise not_for_workers(
                f"{source}: {cls.__name__}.{name}",
                "a streamed result",
                "return a list, or put the method into a grain of another class",
            )
    for name, of_name in marks.items():
        for mark in of_name:
            if mark.needs_one_activation:
                raise not_for_workers(
                    f"{source}: {cls.__name__}.{name}",
                    mark,
                    "put the method into a grain of another class, which calls the workers",
                )


def not_for_workers(subject: str, what: object, remedy: str) -> DefinitionError:
    """Return the error for a member that presumes one activation."""
    return DefinitionError(
        f"{subject}: a stateless worker cannot have {what}, because a silo has several activations "
        f"of one key: {remedy}"
    )


def check_observer(
    cls: type[Any], states: Collection[str], handlers: Collection[str], source: str
) -> None:
    """Refuse states, timers and handlers in a class of observers, since no silo hosts it."""
    if not (cls.__millstream_observer__ and not cls.__millstream_hosted__):
        return
    for what, names in (("a state", states), ("a timer or handler", handlers)):
        for name in names:
            raise DefinitionError(
                f"{source}: {cls.__name__}.{name}: an observer cannot have {what}, because its "
                "object is in a client and not in a silo; use a Grain for it"
            )


def _definer(cls: type[Any], name: str) -> type[Any] | None:
    return next((base for base in cls.__mro__ if name in base.__dict__), None)


def check_method(cls: type[Any], name: str, fn: Any, marks: list[Mark]) -> None:
    """Refuse a public method that cannot be called through a reference."""
    subject = f"{source_of(fn)}: {cls.__name__}.{name}"
    _check_implemented(cls, name, fn, subject)
    flags = {mark.name for mark in marks if isinstance(mark, Flag)}
    if inspect.iscoroutinefunction(fn):
        if is_streamed_annotation(fn):
            raise DefinitionError(f"{subject}: {_explain_generator(cls, name)}")
    else:
        _check_streamed(cls, name, fn, flags, subject)
    for parameter in list(inspect.signature(fn).parameters.values())[1:]:
        if parameter.kind not in PARAMETER_KINDS:
            raise DefinitionError(f"{subject}: `{parameter}` cannot be sent; name each parameter")
        check_name_is_free(parameter.name, f"{subject}: parameter `{parameter.name}`")
    if "one_way" in flags and inspect.signature(fn).return_annotation not in (None, "None"):
        raise DefinitionError(f"{subject}: a one-way method has no result: annotate `-> None`")


def is_streamed_annotation(fn: Any) -> bool:
    """Return whether the result of a function is annotated as an AsyncGenerator."""
    return "AsyncGenerator[" in str(inspect.signature(fn).return_annotation)


def _explain_generator(cls: type[Any], name: str) -> str:
    body = "..." if not cls.__millstream_hosted__ else "yield ..."
    start = "def" if not cls.__millstream_hosted__ else "async def"
    fact = "a method with a streamed result is an async generator"
    return f"{fact}: write `{start} {name}(self) -> AsyncGenerator[T, None]: {body}`"


def _check_streamed(cls: type[Any], name: str, fn: Any, flags: set[str], subject: str) -> None:
    """Refuse a method that is neither a coroutine function nor an async generator."""
    is_generator = inspect.isasyncgenfunction(fn)
    is_declared = not cls.__millstream_hosted__ and is_streamed_annotation(fn)
    if not is_generator and not is_declared:
        if inspect.isgeneratorfunction(fn) or is_streamed_annotation(fn):
            raise DefinitionError(f"{subject}: {_explain_generator(cls, name)}")
        raise DefinitionError(
            f"{subject}: a public method must be `async def`; write `async`, or name it `_{name}`"
        )
    if cls.__millstream_observer__:
        raise DefinitionError(
            f"{subject}: an observer has no streamed results; call the observer once for each item"
        )
    if flags:
        raise DefinitionError(
            f"{subject}: a method with a streamed result cannot have "
            f"{', '.join(f'`@{flag}`' for flag in sorted(flags))}: a generator interleaves with "
            "all other turns, and ends when its consumer ends it; remove the mark"
        )


def _check_implemented(cls: type[Any], name: str, fn: Any, subject: str) -> None:
    """Refuse a grain that inherits the empty body of a method from a contract."""
    if not cls.__millstream_hosted__:
        return
    owner = next(base for base in cls.__mro__ if name in base.__dict__)
    if getattr(owner, "__millstream_hosted__", None) is False:
        raise DefinitionError(
            f"{subject}: {cls.__name__} inherits `{name}` from the contract {owner.__name__} "
            "and must implement it"
        )
