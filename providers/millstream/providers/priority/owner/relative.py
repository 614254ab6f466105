"""Times relative to the enqueue, which only the queue's owner knows: priorities, and due times.

Owns the numbers that represent them in calls. They are far above all real numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.providers.priority.core.commands import Command, Enqueue, EnqueueMany

__all__ = ["after_enqueue", "date", "until"]

NOW = 2**60
LOWEST = 2**59


def after_enqueue(offset_ms: int) -> int:
    """The number for a priority that is `offset_ms` after the enqueue, or before it if negative."""
    return NOW + offset_ms


def until(due_ms: int) -> int:
    """The number for an invisibility that ends at a time in Unix milliseconds."""
    return NOW + due_ms


def date(command: Command, now_ms: Callable[[], int]) -> Command:
    """The command with the priorities and invisibilities that are stored."""
    if isinstance(command, Enqueue):
        return message_at(command, now_ms()) if is_relative(command) else command
    if isinstance(command, EnqueueMany) and any(map(is_relative, command.messages)):
        at_ms = now_ms()
        messages = tuple([message_at(message, at_ms) for message in command.messages])
        return command._replace(messages=messages)
    return command


def is_relative(message: Enqueue) -> bool:
    """Whether a number of the message depends on the time of the enqueue."""
    return message.priority >= LOWEST or (message.invisible_ms or 0) >= LOWEST


def message_at(message: Enqueue, now_ms: int) -> Enqueue:
    if message.priority >= LOWEST:
        message = message._replace(priority=now_ms + message.priority - NOW)
    if message.invisible_ms is not None and message.invisible_ms >= LOWEST:
        message = message._replace(invisible_ms=max(0, message.invisible_ms - NOW - now_ms))
    return message
