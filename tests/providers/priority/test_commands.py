"""Commands and looks are plain values. They cross the wire and do the same as the operations."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from millstream.providers.priority import LeaseToken, QueueSettings, RequestInvalid, State
from millstream.providers.priority.core import commands
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.commands import (
    Adopt,
    Answered,
    Cancel,
    Command,
    Complete,
    Configure,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Extend,
    Fail,
    Get,
    Heads,
    Look,
    Page,
    Peek,
    Prioritise,
    ReadSettings,
    Release,
    Requeue,
    Seen,
    Settle,
    Strays,
    Values,
    name_of,
    perform,
)
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.requests.sessions import Request
from millstream.runtime.extending import codec_of

FOO = (("project", "foo"),)


def token(version: int, epoch: int) -> LeaseToken:
    return LeaseToken(epoch, version)


COMMANDS: list[Command] = [
    Enqueue("a", b"x", 3, FOO),
    EnqueueMany((Enqueue("b", b"", 1, FOO), Enqueue("c", b"", 2), Enqueue("d", b"", 9, FOO))),
    Dequeue("w"),
    Extend("b", token(2, 1), 90_000),
    Release("b", token(2, 1), 5, True, "later"),
    Dequeue("w", 2, FOO, 1_000, True),
    Complete("a", token(2, 2), "done"),
    Fail("d", token(2, 3), "no"),
    Cancel("b", None, "late", True),
    Requeue("b", "e"),
    Prioritise("e", 7),
    Configure(QueueSettings("project", lease_ms=5), 1),
]
LOOKS: list[Look] = [
    Get("d"),
    Peek(2),
    Page(3, 1),
    Depth(FOO),
    Values(),
    ReadSettings(),
    Heads(2),
    Strays(),
]
OWN = (Adopt, Settle)
"""Commands between owners of shards, which no program sends."""


def opened() -> PriorityCore:
    return PriorityCore.create(0, "q", QueueSettings("project", limit=9))


def over_the_wire(hint: Any, value: Any) -> Any:
    codec = codec_of(hint, "a test")
    return codec.decode(codec.encode(value))


def test_every_command_look_and_answer_crosses_the_wire() -> None:
    core = opened()
    for command in COMMANDS:
        again = over_the_wire(Command, command)
        assert again == command and type(again) is type(command)
        answer: Any = perform(core, 10, again, None)
        assert over_the_wire(Answered, answer) == answer
    for look in LOOKS:
        assert over_the_wire(Look, look) == look
        seen: Any = look.on(core, 10)
        assert over_the_wire(Seen, seen) == seen
    assert {type(one) for one in COMMANDS} == set(get_args(Command))
    assert {type(one) for one in LOOKS} == set(get_args(Look))


def test_commands_did_what_they_are_called() -> None:
    core = opened()
    for command in COMMANDS:
        assert hasattr(core, name_of(command)), command
        answer: Any = perform(core, 10, command, None)
        assert getattr(answer, "is_changed", True), command
    states = {view.id: view.state for view in core.read.page()}
    expected = {
        "a": State.COMPLETED,
        "b": State.CANCELED,
        "d": State.ERRORED,
        "e": State.PENDING,
    }
    assert states == expected
    assert core.read.get("e").priority == 7 and core.settings_version == 2


def test_names_are_for_every_operation_and_each_for_one() -> None:
    assert set(commands.NAMES) == {*get_args(Command), *get_args(Look), *OWN}
    assert len(set(commands.NAMES.values())) == len(commands.NAMES)


@pytest.mark.parametrize("command", [Enqueue("a", b"", 0, FOO), Dequeue("w"), Cancel("z")])
def test_a_command_with_a_request_is_done_once(command: Command) -> None:
    core = opened()
    core.enqueue(0, MessageFields("z", b"", 0, FOO))
    first: Any = perform(core, 1, command, Request("s", 1))
    before = core.read.page()
    assert perform(core, 2, command, Request("s", 1)) == first
    assert core.read.page() == before


def test_a_mark_tells_requests_of_one_name_apart() -> None:
    core = opened()
    perform(core, 0, Enqueue("a", b"", 0, FOO), Request("s", 1, mark="x"))
    for mark, was in (("", "'enqueue x', and cannot be used for 'enqueue'"), ("y", "'enqueue y'")):
        with pytest.raises(RequestInvalid, match=was):
            perform(core, 0, Enqueue("a", b"", 0, FOO), Request("s", 1, mark=mark))
