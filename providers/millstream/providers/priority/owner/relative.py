"""Priorities that are told from the time of the enqueue, which only a queue's owner knows.

Owns: the numbers that stand for them on the wire: far above all priorities that there are.
"""

from __future__ import annotations

from millstream.providers.priority.core.commands import Command, Enqueue, EnqueueMany

__all__ = ["after_enqueue", "dated", "is_relative"]

NOW = 2**60
LOWEST = 2**59


def after_enqueue(offset_ms: int) -> int:
    """The priority of a message whose deadline is so long after its enqueue (or before)."""
    return NOW + offset_ms


def is_relative(command: Command) -> bool:
    """Does it bring a priority that is to be dated?"""
    if isinstance(command, Enqueue):
        return command.priority >= LOWEST
    return isinstance(command, EnqueueMany) and any(
        message.priority >= LOWEST for message in command.messages
    )


def dated(command: Command, now_ms: int) -> Command:
    """The command with priorities as they are stored."""
    if isinstance(command, Enqueue):
        return message_at(command, now_ms)
    if isinstance(command, EnqueueMany):
        messages = tuple(message_at(message, now_ms) for message in command.messages)
        return command._replace(messages=messages)
    return command


def message_at(message: Enqueue, now_ms: int) -> Enqueue:
    if message.priority < LOWEST:
        return message
    return message._replace(priority=now_ms + message.priority - NOW)
