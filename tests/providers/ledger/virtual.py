"""Runs tests and other coroutines in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from tests.contract.in_virtual_time import in_virtual_time

P = ParamSpec("P")
T = TypeVar("T")


def virtually(run: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn a coroutine function into a plain function that runs in virtual time."""

    @wraps(run)
    def runs(*args: P.args, **kwargs: P.kwargs) -> T:
        return in_virtual_time(partial(run, *args, **kwargs))

    return runs
