"""`millstream ledger recover`: gives an open ledger its end, with loss only if that is accepted.

Owns: the steps, and what is said. Not: how it is done (`offline`, `online`), recovery itself
(`providers.ledger.handle`). Invariant: nothing is given up without being said first, and asked for
twice.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.serving.mending import EndAnswer, LossAnswer
from millstream.runtime import ConfigError

from .lines import print_json, size
from .offline import stopped_cluster
from .online import running_cluster

__all__ = ["Mends", "recover_ledger"]


class Mends(Protocol):
    """Ends ledgers: a running cluster, or this process with its directories."""

    async def recover(self, ledger: int, wait_s: float, /) -> EndAnswer: ...
    async def left(self, ledger: int, /) -> LossAnswer: ...
    async def give_up(self, ledger: int, /) -> EndAnswer: ...


async def recover_ledger(arguments: argparse.Namespace) -> int:
    """Do it; 1 if it has no end yet. Raises LookupError, LedgerError, ConfigError, and what clients
    raise."""
    ledger: int = arguments.ledger
    if arguments.store and arguments.gateway:
        raise ConfigError("say --gateway or --store, not both: a running cluster, or none")
    opened: AbstractAsyncContextManager[Mends] = (
        stopped_cluster(arguments) if arguments.store else running_cluster(arguments)
    )
    async with opened as mends:
        answer = await mends.recover(ledger, arguments.wait)
        if not answer.refusal:
            return say_end(ledger, answer, arguments.json)
        if not arguments.accept_loss:
            text = "bring its bookies back; if they are lost for good, see --accept-loss"
            raise LedgerError(f"{answer.refusal}. What can be done: {text}")
        if arguments.yes:
            answer = await mends.give_up(ledger)
            if answer.refusal:
                raise LedgerError(answer.refusal)
            return say_end(ledger, answer, arguments.json)
        say_loss(ledger, await mends.left(ledger), arguments.json)
        return 1


def say_loss(ledger: int, left: LossAnswer, is_json: bool) -> None:
    """What would be lost. Raises LedgerError."""
    if left.refusal:
        raise LedgerError(left.refusal)
    lost = max(0, left.confirmed - left.last)
    if is_json:
        names = ("last", "confirmed", "behind", "away")
        facts = {name: getattr(left, name) for name in names}
        print_json({"ledger": ledger, "would_lose": facts | {"bytes": left.length, "lost": lost}})
        return
    print(
        f"ledger {ledger} would end with entry {left.last} ({size(left.length)})."
        if left.last >= 0
        else f"ledger {ledger} would end without an entry: none can be read."
    )
    if lost:
        text = f"entries {left.last + 1} to {left.confirmed} were acknowledged and would be lost"
        print(f"{text}, {left.behind} of them readable, but behind one that is not.")
    print("what is known only to these bookies would be lost, too:")
    for name in left.away:
        print(f"  {name}")
    print("numbers of lost messages are given again: grains that commit with their state, and had")
    print("handled some of them, take as many new ones for repeats.")
    print("if they are gone for good, say it again with --yes.")


def say_end(ledger: int, answer: EndAnswer, is_json: bool) -> int:
    """It has its end."""
    if is_json:
        print_json(
            {"ledger": ledger, "last": answer.last, "bytes": answer.length, "lost": answer.lost}
        )
        return 0
    end = f"ends with entry {answer.last} ({size(answer.length)})"
    how = f"; {answer.lost} entries that were acknowledged are lost" if answer.lost else ""
    print(f"ledger {ledger} {end if answer.last >= 0 else 'has no entry'}{how}")
    return 0
