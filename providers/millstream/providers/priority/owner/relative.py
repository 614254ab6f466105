"""Priorities relative to the time of the enqueue, which only the queue's owner knows.

Owns the numbers that represent them in calls. They are far above all real priorities.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.providers.priority.core.commands import Command, Enqueue, EnqueueMany

__all__ = ["after_enqueue", "date"]

NOW = 2**60
LOWEST = 2**59


def after_enqueue(offset_ms: int) -> int:
    """The number for a priority that is `offset_ms` after the enqueue, or before it if negative."""
    return NOW + offset_ms


def date(command: Command, now_ms: Callable[[], int]) -> Command:
    """The command with the priorities that are stored."""
    if isinstance(command, Enqueue):
        return message_at(command, now_ms()) if command.priority >= LOWEST else command
    if isinstance(command, EnqueueMany) and any(
        message.priority >= LOWEST for message in command.messages
    ):
        at_ms = now_ms()
        messages = tuple([message_at(message, at_ms) for message in command.messages])
        return command._replace(messages=messages)
    return command


def message_at(message: Enqueue, now_ms: int) -> Enqueue:
    if message.priority < LOWEST:
        return message
    return message._replace(priority=now_ms + message.priority - NOW)
