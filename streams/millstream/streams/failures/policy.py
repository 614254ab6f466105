"""The failure policy of one subscription, where it differs from its provider's.

Owns: `FailurePolicy`, and its valid values. Not: applying it (`agent.delivery`), matching an
exception at the consumer (`consumer`). Invariants: a policy is sent and stored, so it has the names
of exception types. A subclass of a named type matches as well.
"""

from __future__ import annotations

import msgspec

from millstream.runtime.extending import Backoff, type_name

from .handler import DECISIONS, GiveUpDecision

__all__ = ["FailurePolicy", "is_one_of", "type_names", "wrong_policy"]


class FailurePolicy(msgspec.Struct, array_like=True, frozen=True):
    """Values for one subscription.

    None means the provider's value. `give_up_on`: names of exception types.
    """

    retries: int | None = None
    backoff: Backoff | None = None
    give_up_on: tuple[str, ...] = ()
    on_give_up: GiveUpDecision | None = None


def wrong_policy(retries: object, backoff: object, give_up_on: object, on_give_up: object) -> str:
    """The reason why the arguments of a policy are not valid, or "" if they are valid."""
    if retries is not None and (type(retries) is not int or retries < 0):
        return f"retries is {retries!r}; it must be a whole number of at least 0"
    if backoff is not None and not isinstance(backoff, Backoff):
        return f"backoff is {backoff!r}: write `Backoff(0.5)`"
    types = give_up_on if isinstance(give_up_on, tuple) else (None,)
    if not all(isinstance(one, type) and issubclass(one, Exception) for one in types):
        return (
            f"give_up_on is {give_up_on!r}: write a tuple of exception types, such as "
            "`(ValueError,)`"
        )
    if on_give_up is not None and on_give_up not in DECISIONS:
        return f"on_give_up is {on_give_up!r}: write one of {', '.join(map(repr, DECISIONS))}"
    return ""


def type_names(types: tuple[type[Exception], ...]) -> tuple[str, ...]:
    """Names of exception types for a policy."""
    return tuple(map(type_name, types))


def is_one_of(error: BaseException, names: tuple[str, ...]) -> bool:
    """Whether the type of the exception, or a base class of it, is among the names."""
    return any(type_name(one) in names for one in type(error).__mro__)
