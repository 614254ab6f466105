"""The work of `millstream index`: queries an index and prints the answer.

The content of a message cannot control the terminal. JSON uses the names of the columns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence

from millstream.console.dead_letters import plain
from millstream.console.gateway import connect_gateway
from millstream.console.ledger.lines import facts, print_json, print_lines, table, when
from millstream.providers.priority import priority_queue, priority_queues
from millstream.providers.spark.index import ChangeRow, Finding, PriorityIndex, differences
from millstream.runtime import Env

__all__ = ["ask", "verify"]

Depths = dict[str, dict[str, int]]


def ask(arguments: argparse.Namespace) -> int:
    """Answer one question."""
    queue, id = arguments.queue, arguments.id
    with PriorityIndex(arguments.index) as index:
        match arguments.question:
            case "depth":
                found = index.depth(queue, wanted=dict(arguments.wanted))
                show(arguments, found, depth_lines(found))
            case "message":
                latest = index.messages(queue, id)
                show_changes(arguments, latest)
                return 0 if latest else 1
            case "history":
                changes = index.history(queue, id)
                show_changes(arguments, changes)
                return 0 if changes else 1
            case "times":
                times = index.time_in_state(queue, id, now_ms=round(Env().wall_s() * 1000))
                rows = [(one.state, *map(str, one[1:])) for one in times]
                lines = table(("state", "visits", "total ms", "longest ms"), rows)
                show(arguments, [one._asdict() for one in times], lines)
            case "errors":
                errors = index.processing_errors(queue, id)
                counts = {**errors._asdict(), "total": errors.total}
                lines = facts({name: str(count) for name, count in counts.items()})
                show(arguments, counts, lines)
    return 0


def show(arguments: argparse.Namespace, value: object, lines: list[str]) -> None:
    """Print JSON or lines."""
    if arguments.json:
        print_json(value)
    else:
        print_lines(map(plain, lines))


def depth_lines(found: Depths) -> list[str]:
    rows = [
        (queue, state, str(count))
        for queue, states in found.items()
        for state, count in sorted(states.items())
    ]
    return table(("queue", "state", "messages"), rows)


def show_changes(arguments: argparse.Namespace, changes: Sequence[ChangeRow]) -> None:
    """Print a line for each change, or all changes as JSON."""
    if arguments.json:
        print_json([{**one._asdict(), "metadata": json.loads(one.metadata)} for one in changes])
        return
    rows = [
        (
            *(
                str(one.shard),
                str(one.version),
                when(one.time_ms / 1000),
                one.step,
                one.to_state or "-",
            ),
            *(str(one.attempt), str(one.priority), one.worker, one.reason),
        )
        for one in changes
    ]
    head = ("shard", "version", "time", "step", "state", "attempt", "priority", "worker", "reason")
    print_lines(
        map(plain, table(head, rows) if rows else ["the index has no change of this message"])
    )


def verify(arguments: argparse.Namespace) -> int:
    """Print faults and differences from the queues; returns 1 if there are any."""
    with PriorityIndex(arguments.index) as index:
        findings = index.verify()
        others = differences(index.depth(), depths(arguments)) if arguments.queues else []
    if arguments.json:
        missing = [one._asdict() for one in findings]
        print_json({"findings": missing, "differences": [one._asdict() for one in others]})
    else:
        print_lines(
            plain(f"{name_subject(one)}: {one.missing} missing: {one.what}") for one in findings
        )
        print_lines(
            plain(
                f"{one.queue}, {one.state}: {one.in_index} in the index, "
                f"{one.in_queue} in the queue"
            )
            for one in others
        )
        whole = "the index is complete" + (", and agrees with the queues" * arguments.queues)
        print_lines([] if findings or others else [whole])
    return 1 if findings or others else 0


def name_subject(finding: Finding) -> str:
    """Return the subject of a finding."""
    shard = f"{finding.queue}, shard {finding.shard}"
    return f"{shard}, message {finding.id}" if finding.id else shard


def depths(arguments: argparse.Namespace) -> Depths:
    """Return the depths of a cluster's queues."""
    return asyncio.run(_depths(arguments))


async def _depths(arguments: argparse.Namespace) -> Depths:
    found: dict[str, dict[str, int]] = {}
    async with connect_gateway(arguments) as client:
        async for name in priority_queues(client, part=arguments.part):
            counts = await priority_queue(client, name, part=arguments.part).depth()
            found[name] = {state.name.lower(): count for state, count in counts.items() if count}
    return found
