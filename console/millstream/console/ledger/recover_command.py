"""`millstream ledger recover`: closes open ledgers, or gives up lost entries.

This module owns the steps and the output, and `providers.ledger.handle` owns recovery. The command
gives nothing up before it has shown the loss and got a second confirmation. For a bookie that may
come back, the operator must declare that it never will.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from millstream.console.dead_letters import plain
from millstream.console.gateway import connect_gateway
from millstream.providers.ledger.inspection import (
    EndAnswer,
    LedgerError,
    LossAnswer,
    LostPart,
    RepairTarget,
    open_repair_target,
    places_of,
)
from millstream.runtime import Client, ConfigError, QueueUnavailable, RuntimeOptions
from millstream.runtime.extending import ask_gateway

from .lines import print_json, print_lines, size
from .source import source_of

__all__ = ["Mends", "recover_ledger"]

PARTS_MAX = 20  # parts that are printed
GONE_MIN = 4  # the fewest characters of a UUID that name a bookie
ANSWER_S = 600.0
"""How long a silo may read a ledger to find missing entries, in seconds."""


class Mends(Protocol):
    """Repairs ledgers: a running cluster, or this process with its directories."""

    async def recover(self, ledger: int, wait_s: float, /) -> EndAnswer: ...
    async def left(self, ledger: int, gone: list[str], /) -> LossAnswer: ...
    async def give_up(self, ledger: int, gone: list[str], /) -> LossAnswer: ...


async def recover_ledger(arguments: argparse.Namespace) -> int:
    """Run the command; returns 1 if work remains.

    Raises LookupError, LedgerError, ConfigError, and errors of the client.
    """
    if arguments.store and arguments.gateway:
        raise ConfigError("give --gateway or --store, not both: --store is for stopped silos")
    for name in arguments.gone:
        if len(name) < GONE_MIN:
            raise ConfigError(f"--gone {name}: give at least {GONE_MIN} characters of the UUID")
    opened: AbstractAsyncContextManager[Mends] = (
        open_stopped_cluster(arguments) if arguments.store else running_cluster(arguments)
    )
    act = accept_loss if arguments.accept_loss else end
    async with opened as mends:
        return max([await act(mends, ledger, arguments) for ledger in arguments.ledger])


async def end(mends: Mends, ledger: int, arguments: argparse.Namespace) -> int:
    """Close a ledger as any takeover would. Raises LedgerError."""
    answer = await mends.recover(ledger, arguments.wait)
    if answer.refusal:
        text = "start its bookies; if they are lost for good, see --accept-loss"
        raise LedgerError(f"{answer.refusal}. What can be done: {text}")
    if arguments.json:
        print_json({"ledger": ledger, "last": answer.last, "bytes": answer.length})
    else:
        print(f"ledger {ledger} {ending(answer.last, answer.length)}")
    return 0


def ending(last: int, length: int) -> str:
    return f"ends with entry {last} ({size(length)})" if last >= 0 else "has no entry"


async def accept_loss(mends: Mends, ledger: int, arguments: argparse.Namespace) -> int:
    """Print missing entries, or give them up. Raises LedgerError."""
    answer = await mends.recover(ledger, arguments.wait)  # recovers everything that can be read
    gone: list[str] = arguments.gone
    ask = mends.give_up if arguments.yes else mends.left
    told = await ask(ledger, gone)
    if told.refusal:
        raise LedgerError(told.refusal)
    is_done = arguments.yes or not told.parts
    if arguments.json:
        print_json(loss_facts(ledger, told, is_done, bool(answer.refusal)))
    elif not told.parts:
        print(f"ledger {ledger} {ending(told.last, told.length)}; no entry is missing")
    else:
        print_lines(map(plain, loss_lines(ledger, told, is_done, bool(answer.refusal))))
    return 0 if is_done else 1


def loss_facts(ledger: int, told: LossAnswer, is_done: bool, is_open: bool) -> dict[str, Any]:
    """Return the missing entries as plain values."""
    parts = [
        {
            "first": part.first,
            "last": part.last,
            "first_message": part.number or None,
            "messages_end": part.end or None,
            "may_be_more": part.is_endless,
        }
        for part in told.parts
    ]
    return {
        "ledger": ledger,
        "topic": told.topic,
        "had_end": not is_open,
        "last": told.last,
        "bytes": told.length,
        "is_lost": is_done,
        "entries": told.entries,
        "messages": told.messages,
        "parts": parts,
        "lost_bookies": told.lost,
        "away_bookies": told.away,
    }


def loss_lines(ledger: int, told: LossAnswer, is_done: bool, is_open: bool) -> list[str]:
    """Return the missing entries as text."""
    will = "are" if is_done else "would be"
    lines = [f"ledger {ledger} of {told.topic or 'no topic'}: these entries {will} lost for good:"]
    lines += [f"  {part_line(part)}" for part in told.parts[:PARTS_MAX]]
    if len(told.parts) > PARTS_MAX:
        lines.append(f"  ... and {len(told.parts) - PARTS_MAX} more parts; --json prints all")
    known = "" if all(one.number and one.end for one in told.parts) else ", as far as known"
    lines.append(f"in total {told.entries:,} entries with {told.messages:,} messages{known}")
    if is_open:
        lines.append(f"the ledger was not closed; it {ending(told.last, told.length)}")
        lines.append("the topic skips message numbers, so that no lost number is used again")
    if is_done:
        return lines
    return [
        *lines,
        *bookie_lines("lost bookies that may have these entries", told.lost),
        *bookie_lines("bookies that may have these entries, are away, and may return", told.away),
        *([f"if bookie {one} will not return, give --gone {one}" for one in told.away]),
        "nothing is given up yet: to accept the loss, repeat the command with --yes",
    ]


def bookie_lines(what: str, bookies: Sequence[str]) -> list[str]:
    return [f"{what}:", *(f"  {name}" for name in bookies)] if bookies else []


def part_line(part: LostPart) -> str:
    """Return one range of entries, and its messages."""
    if part.last < part.first:
        entries = f"all entries after {part.first - 1}" if part.first else "all entries"
    elif part.last == part.first:
        entries = f"entry {part.first}"
    else:
        entries = f"entries {part.first} to {part.last}"
    more = ", and any entries after them" if part.is_endless else ""
    if part.last < part.first:
        more = ""
    if part.number and part.end:
        count = part.end - part.number
        what = f"messages {part.number} to {part.end - 1} ({count:,})" if count else ""
        what = what or "no messages"
    elif part.number:
        what = f"messages from {part.number} on, an unknown number"
    else:
        what = "unknown messages"
    return f"{entries}{more}: {what}"


@asynccontextmanager
async def open_stopped_cluster(arguments: argparse.Namespace) -> AsyncIterator[RepairTarget]:
    """Run the bookies of this machine in this process.

    Raises LookupError (no such ledger), ConfigError (a silo runs one of the bookies).
    """
    async with source_of(arguments) as source:
        content = await source.content()
        for ledger in arguments.ledger:
            content.ledger(ledger)
        places = places_of(content, arguments.directory)
        try:
            async with open_repair_target(source, content, places) as target:
                yield target
        except QueueUnavailable as error:
            text = "give --gateway instead of --store, or stop the silos that run these bookies"
            raise ConfigError(f"{error}. What can be done: {text}") from error


class RemoteTarget:
    """The repair target of one silo, called through a client."""

    def __init__(self, client: Client, provider: str) -> None:
        self._client = client
        self._target = f"{RepairTarget.target_name}/{provider}"

    async def recover(self, ledger: int, wait_s: float, /) -> EndAnswer:
        return await ask_gateway(
            self._client, "", self._target, RepairTarget.recover, ledger, wait_s
        )

    async def left(self, ledger: int, gone: list[str], /) -> LossAnswer:
        return await ask_gateway(self._client, "", self._target, RepairTarget.left, ledger, gone)

    async def give_up(self, ledger: int, gone: list[str], /) -> LossAnswer:
        method = RepairTarget.give_up
        return await ask_gateway(self._client, "", self._target, method, ledger, gone)


@asynccontextmanager
async def running_cluster(arguments: argparse.Namespace) -> AsyncIterator[RemoteTarget]:
    """Connect to a gateway. Raises errors of the client."""
    options = RuntimeOptions(call_timeout_s=ANSWER_S)
    async with connect_gateway(arguments, options) as client:
        yield RemoteTarget(client, arguments.provider)
