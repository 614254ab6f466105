"""A call that waits gets exactly one answer, and later answers are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millstream.runtime import GrainError
from millstream.runtime.calls.waits import LocalWait, Moved, RemoteFailure, RemoteWait
from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.turns.request import Request

BODY = msgspec.Raw(b"\xc0")


class Unheard(Exception):
    """An error whose module is unknown to callers."""


def a_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def local_wait() -> LocalWait:
    spec: Any = SimpleNamespace(label="bump")
    return LocalWait(a_future(), Request(None, None, None, spec, 0.0, 1), KnownErrors([]))


def tellings(wait: LocalWait | RemoteWait) -> list[Callable[[], object]]:
    """Return all possible answers to a waiting call."""
    if isinstance(wait, LocalWait):
        return [wait.grant, lambda: wait.on_moved("b:1@1"), lambda: wait.fail(ValueError("full"))]
    return [
        lambda: wait.reply(BODY),
        lambda: wait.failure(BODY),
        lambda: wait.redirect("b:1@1"),
        lambda: wait.on_broken(ValueError("gone")),
    ]


def outcome(future: asyncio.Future[Any]) -> object:
    return future.exception() or future.result()


@pytest.mark.parametrize("make", [local_wait, lambda: RemoteWait(a_future())])
async def test_who_was_told_once_is_told_nothing_more(
    make: Callable[[], LocalWait | RemoteWait],
) -> None:
    for number in range(len(tellings(make()))):
        wait = make()
        tellings(wait)[number]()
        first = outcome(wait.future)
        for tell in tellings(wait):
            tell()
        assert outcome(wait.future) is first


@pytest.mark.parametrize("make", [local_wait, lambda: RemoteWait(a_future())])
async def test_who_went_away_is_told_nothing(
    make: Callable[[], LocalWait | RemoteWait],
) -> None:
    for number in range(len(tellings(make()))):
        wait = make()
        wait.future.cancel()
        tellings(wait)[number]()
        assert wait.future.cancelled()


async def test_a_grant_that_nobody_takes_says_so() -> None:
    wait = local_wait()
    assert wait.grant() is True
    assert wait.future.result() is None
    gone = local_wait()
    gone.future.cancel()
    assert gone.grant() is False


async def test_a_local_caller_hears_where_its_grain_went_or_why_it_did_not_start() -> None:
    moved, failed = local_wait(), local_wait()
    moved.on_moved("b:1@1")
    assert moved.future.result() == "b:1@1"
    raised = ValueError("full")
    failed.fail(raised)
    error = failed.future.exception()
    assert type(error) is ValueError and str(error) == "full"
    assert error is not raised  # each caller has its own error object


async def test_an_error_that_is_not_known_here_arrives_as_what_a_remote_caller_gets() -> None:
    wait = local_wait()
    wait.fail(Unheard("odd"))
    error = wait.future.exception()
    assert type(error) is GrainError and error.message == "odd"
    assert error.__notes__[-1].startswith("raised in bump:")


async def test_an_answer_from_elsewhere_is_a_result_a_failure_or_another_silo() -> None:
    waits = [RemoteWait(a_future()) for _ in range(4)]
    for number, wait in enumerate(waits):
        tellings(wait)[number]()
    result, failure, moved, broken = [outcome(wait.future) for wait in waits]
    assert result is BODY
    assert isinstance(failure, RemoteFailure) and failure.body is BODY
    assert isinstance(moved, Moved) and moved.silo == "b:1@1"
    assert isinstance(broken, ValueError)
